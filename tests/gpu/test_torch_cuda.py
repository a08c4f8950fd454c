"""The torch runner on a CUDA device: the same logic on other kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtplx.model.torch.loader import load_torch_runner
from tests.engine.plan_driver import generate_together
from tests.engine.test_families import NUM_NEW, PROMPT_LENGTHS, reference_ids
from tests.tiny_models import MAX_POSITION, TINY_FAMILIES, VOCAB_SIZE, read_tiny_model, write_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_greedy_ids_equal_generate_on_the_cpu(name: str, tmp_path: Path) -> None:
    """float64 on both, so that other kernels' rounding can't turn a choice."""
    folder = write_tiny_model(tmp_path, name)
    generator = torch.Generator().manual_seed(11)
    prompts = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    model = read_tiny_model(folder, name)
    runner = load_torch_runner(folder, device="cuda", dtype="float64", kv_cache_tokens=1024, max_model_len=MAX_POSITION)
    generated = generate_together(runner, prompts, NUM_NEW, chunk=16)
    assert [one.token_ids for one in generated] == [reference_ids(model, prompt) for prompt in prompts]


def test_defaults_on_a_gpu(tmp_path: Path) -> None:
    """bfloat16, a cache by free memory, and no claim to be exact."""
    folder = write_tiny_model(tmp_path, "llama", torch.float32)
    runner = load_torch_runner(folder, device="auto", max_model_len=MAX_POSITION)
    assert (runner.info.device, runner.info.dtype, runner.info.exact) == ("cuda", "bfloat16", False)
    assert "cuda" in runner.info.exact_note
    assert runner.num_blocks == 16 * MAX_POSITION // runner.block_size
    assert len(generate_together(runner, [[5, 6, 7]], 4)[0].token_ids) == 4
