"""Every supported family, beside transformers' own `generate` on the same tiny random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mtplx.model.families import FAMILIES
from mtplx.model.folder import read_spec
from mtplx.model.torch.loader import load_torch_runner
from mtplx.model.torch.runner import TorchRunner
from tests.engine.plan_driver import generate_together
from tests.tiny_models import MAX_POSITION, TINY_FAMILIES, VOCAB_SIZE, read_tiny_model, write_tiny_model

NUM_NEW = 44
PROMPT_LENGTHS = (1, 5, 16, 37, 70)  # below, at and over a block, a tile, and the sliding window


@pytest.fixture(scope="module", params=TINY_FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp(name), name)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def expected(folder: Path, name: str, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    model = read_tiny_model(folder, name)
    return [reference_ids(model, prompt) for prompt in prompts]


def reference_ids(model: Any, prompt: list[int]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=NUM_NEW,  # an end token would cut the comparison short
        max_new_tokens=NUM_NEW,
        eos_token_id=None,
    )
    return tuple(output[0, len(prompt) :].tolist())


def load(folder: Path, *, exact: bool) -> TorchRunner:
    return load_torch_runner(
        folder, device="cpu", dtype="float64", exact=exact, threads=1, kv_cache_tokens=1024, max_model_len=MAX_POSITION
    )


@pytest.mark.parametrize(("exact", "chunk"), [(True, 7), (True, 10_000), (False, 7), (False, 16)])
def test_greedy_ids_equal_generate(
    folder: Path, prompts: list[list[int]], expected: list[tuple[int, ...]], exact: bool, chunk: int
) -> None:
    """Five prompts decoded together, prefilled in chunks, in blocks scattered over the cache."""
    generated = generate_together(load(folder, exact=exact), prompts, NUM_NEW, chunk=chunk)
    assert [one.token_ids for one in generated] == expected


def test_the_answers_are_worth_comparing(expected: list[tuple[int, ...]]) -> None:
    """Models that repeat one token would agree with nearly anything."""
    assert len(set(expected)) == len(expected)
    assert sum(len(set(ids)) for ids in expected) >= 40


def test_spec_is_what_transformers_reads(folder: Path, name: str) -> None:
    spec = read_spec(folder)
    model = read_tiny_model(folder, name)
    attention = model.get_decoder().layers[-1].self_attn
    assert spec.architecture == type(model).__name__
    assert spec.num_layers == len(model.get_decoder().layers)
    assert spec.head_dim == getattr(attention, "qk_head_dim", None) or attention.head_dim
    assert spec.num_heads * (spec.value_head_dim or spec.head_dim) == attention.o_proj.in_features
    assert spec.num_heads // spec.num_kv_heads == attention.num_key_value_groups
    assert (spec.vocab_size, spec.hidden_size) == tuple(model.get_input_embeddings().weight.shape)
    assert spec.sliding_window == getattr(model.config, "sliding_window", None)
    assert spec.eos_ids == {2}


def test_every_supported_architecture_is_tested_here() -> None:
    assert {family.model_class.__name__ for family in TINY_FAMILIES.values()} == set(FAMILIES)  # type: ignore[attr-defined]
