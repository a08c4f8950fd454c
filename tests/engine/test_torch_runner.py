"""What the torch runner promises beyond right answers: results that stay, steps that can be repeated, clean caches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mtplx.batching.state import Row, StepPlan
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.torch.loader import load_torch_runner
from mtplx.model.torch.runner import TorchRunner
from tests.tiny_models import MAX_POSITION, VOCAB_SIZE, read_tiny_model, write_tiny_model

PROMPT = tuple(range(3, 40))
BLOCKS = (5, 0, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("gemma3"), "gemma3")


def load(folder: Path, *, exact: bool, dtype: str = "float64") -> TorchRunner:
    return load_torch_runner(
        folder, device="cpu", dtype=dtype, exact=exact, threads=1, kv_cache_tokens=160, max_model_len=MAX_POSITION
    )


@pytest.fixture(scope="module", params=[True, False], ids=["exact", "batched"])
def runner(request: pytest.FixtureRequest, folder: Path) -> TorchRunner:
    return load(folder, exact=bool(request.param))


def prompt_row(num_logits: int) -> Row:
    return Row(0, 0, PROMPT, BLOCKS, num_logits=num_logits)


def test_logits_of_every_token_are_transformers_own(runner: TorchRunner, folder: Path) -> None:
    """The last `num_logits` tokens' logits, in token order, after two other rows of the plan."""
    model = read_tiny_model(folder, "gemma3")
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
    others = (Row(1, 0, (9, 8), (7,), num_logits=0), Row(2, 0, (4,), (8,), num_logits=1))
    logits = runner.run(StepPlan((*others, prompt_row(num_logits=20))))
    assert logits.shape == (21, VOCAB_SIZE)
    # The norms of the model definition compute in float32, whatever the model's type.
    np.testing.assert_allclose(logits[1:], expected[-20:], rtol=0, atol=1e-5)


def test_a_verify_block_has_the_logits_of_single_steps(runner: TorchRunner) -> None:
    """1 + 3 tokens of one row with all their logits, as one token a step gives them."""
    runner.run(StepPlan((prompt_row(num_logits=0),)))
    drafts, end = (50, 60, 70, 80), len(PROMPT)
    block = runner.run(StepPlan((Row(0, end, drafts, BLOCKS, num_logits=4, num_drafts=3),)))
    singles = [
        runner.run(StepPlan((Row(0, end + index, (token,), BLOCKS, num_logits=1),)))[0]
        for index, token in enumerate(drafts)
    ]
    np.testing.assert_allclose(block, singles, rtol=0, atol=1e-6)


def test_running_a_plan_again_changes_nothing(runner: TorchRunner) -> None:
    plan = StepPlan((prompt_row(num_logits=3),))
    first = runner.run(plan)
    assert runner.run(plan).tobytes() == first.tobytes()


def test_a_result_belongs_to_the_caller(runner: TorchRunner) -> None:
    """A later step doesn't change it, and writing into it doesn't change a later step."""
    plan = StepPlan((prompt_row(num_logits=2),))
    first = runner.run(plan)
    kept = first.copy()
    runner.run(StepPlan((Row(1, 0, (90, 91, 92), (7,), num_logits=3),)))
    assert np.array_equal(first, kept)
    first[:] = 0.0
    assert np.array_equal(runner.run(plan), kept)


def test_a_plan_without_wanted_logits_gives_none(runner: TorchRunner) -> None:
    assert runner.run(StepPlan((prompt_row(num_logits=0),))).shape == (0, VOCAB_SIZE)
    assert runner.run(StepPlan(())).shape == (0, VOCAB_SIZE)


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_left_in_freed_blocks_reaches_nobody(folder: Path, exact: bool) -> None:
    """Blocks full of NaN, as a failed sequence may leave them, are as good as new ones."""
    prompts = StepPlan((prompt_row(num_logits=4), Row(1, 0, (9, 8, 7), (7,), 0), Row(2, 0, (6, 5), (8,), 1)))
    decoding = StepPlan((Row(1, 3, (4,), (7,), num_logits=1), Row(2, 2, (3,), (8,), num_logits=1)))
    clean, runner = load(folder, exact=exact), load(folder, exact=exact)
    assert runner._cache is not None
    for tensor in (*runner._cache.keys, *runner._cache.values):
        tensor[: runner.num_blocks * BLOCK_SIZE] = float("nan")
    for plan in (prompts, decoding):
        expected = clean.run(plan)
        assert np.isfinite(expected).all()
        assert runner.run(plan).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "result"), [("float32", np.float32), ("bfloat16", np.float32), ("float64", np.float64)]
)
def test_logits_are_float32_or_float64(folder: Path, dtype: str, result: type) -> None:
    runner = load(folder, exact=True, dtype=dtype)
    assert runner.run(StepPlan((prompt_row(num_logits=1),))).dtype == result
    assert (runner.info.runner, runner.info.device, runner.info.dtype) == ("torch", "cpu", dtype)


def test_a_row_whose_blocks_end_too_early_is_a_bug_of_the_caller(runner: TorchRunner) -> None:
    with pytest.raises(AssertionError, match="blocks must cover"):
        runner.run(StepPlan((Row(0, 0, PROMPT, BLOCKS[:2], num_logits=1),)))


def test_a_closed_runner_runs_nothing(folder: Path) -> None:
    runner = load(folder, exact=False)
    runner.close()
    with pytest.raises(AssertionError, match="closed"):
        runner.run(StepPlan((prompt_row(num_logits=1),)))
