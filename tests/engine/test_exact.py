"""Exact mode: the bits of a row's logits don't depend on what shares its batch, nor on how its prompt was cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtplx.batching.state import Row, StepPlan
from mtplx.model.runner import Logits
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.model.torch.exact import CHECK_BLOCKS, find_difference
from mtplx.model.torch.loader import load_torch_runner
from mtplx.model.torch.runner import TorchRunner
from tests.engine.plan_driver import Generated, generate_together
from tests.tiny_models import MAX_POSITION, VOCAB_SIZE, write_tiny_model

NUM_NEW = 6
PROMPTS = tuple(
    tuple(np.random.default_rng(length).integers(VOCAB_SIZE, size=length).tolist())
    for length in (1, 2, 15, 16, 17, 33, 60)
)


@pytest.fixture(scope="module", params=["llama", "qwen2_sliding_top", "gemma3", "deepseek_v3", "mellum"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder = write_tiny_model(tmp_path_factory.mktemp(request.param), request.param, torch.float32)
    return load_torch_runner(
        folder, device="cpu", exact=True, threads=1, kv_cache_tokens=1024, max_model_len=MAX_POSITION
    )


@pytest.fixture(scope="module")
def alone(runner: TorchRunner) -> list[Generated]:
    """Each prompt by itself, in one chunk."""
    return [generate_together(runner, [prompt], NUM_NEW)[0] for prompt in PROMPTS]


def test_the_start_up_check_passes(runner: TorchRunner) -> None:
    assert runner.info.exact, runner.info.exact_note


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chosen=st.lists(st.sampled_from(range(len(PROMPTS))), min_size=1, max_size=7),
    chunk=st.sampled_from([1, 3, 5, 16, 17, 64]),
    seed=st.integers(0, 1000),
)
def test_bits_are_those_of_the_prompt_alone(
    runner: TorchRunner, alone: list[Generated], chosen: list[int], chunk: int, seed: int
) -> None:
    """Any neighbours, the same prompt among them twice, any chunk, any order of rows and any blocks."""
    together = generate_together(runner, [PROMPTS[index] for index in chosen], NUM_NEW, chunk=chunk, seed=seed)
    assert together == [alone[index] for index in chosen]


def test_bits_are_the_same_on_another_thread(runner: TorchRunner, alone: list[Generated]) -> None:
    """The runner is made on one thread and used on another."""
    results: list[Generated] = []
    thread = threading.Thread(target=lambda: results.extend(generate_together(runner, [PROMPTS[-1]], NUM_NEW)))
    thread.start()
    thread.join()
    assert results == [alone[-1]]


Leak = Callable[[StepPlan, Row, int], bool]

LEAKS: dict[str, Leak] = {
    "the place in the tile": lambda plan, row, place: place % 16 == 9,
    "a neighbour at another position": lambda plan, row, place: any(other.start != row.start for other in plan.rows),
    "another row in front of the chunk": lambda plan, row, place: plan.rows[0] != row and len(row.token_ids) == 16,
    "a step of one token": lambda plan, row, place: plan.num_tokens == 1,
}


class _Leaky:
    """A runner without a model: a logit is its token's position, and one more where `leak(plan, row, place)`."""

    def __init__(self, leak: Leak) -> None:
        self.leak = leak
        self.spec = ModelSpec("Leaky", 1, 1, 1, 1, 1, VOCAB_SIZE, 64, frozenset())
        self.info = RunnerInfo("fake", "cpu", "float32", exact=False, exact_note="")
        self.num_blocks = CHECK_BLOCKS
        self.block_size = 16

    def run(self, plan: StepPlan) -> Logits:
        logits: list[float] = []
        place = 0
        for row in plan.rows:
            assert max(row.block_ids) < self.num_blocks
            first_wanted = len(row.token_ids) - row.num_logits
            for offset in range(len(row.token_ids)):
                if offset >= first_wanted:
                    logits.append(row.start + offset + self.leak(plan, row, place))
                place += 1
        return np.array(logits, dtype=np.float32).reshape(-1, 1)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("what", LEAKS)
def test_the_check_sees_every_kind_of_leak(what: str) -> None:
    assert find_difference(_Leaky(lambda plan, row, place: False)) is None
    assert find_difference(_Leaky(LEAKS[what])) is not None


def test_without_exact_the_reason_is_given(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "llama", torch.float32)
    runner = load_torch_runner(
        folder, device="cpu", exact=False, threads=1, kv_cache_tokens=64, max_model_len=MAX_POSITION
    )
    assert (runner.info.exact, runner.info.exact_note) == (False, "switched off by --no-exact")


def test_threads_that_cut_through_a_row_are_not_exact(tmp_path: Path) -> None:
    """Three threads share the elements of 16 rows so that two rows are computed partly by scalar code."""
    folder = write_tiny_model(tmp_path, "llama", torch.float32)
    runner = load_torch_runner(
        folder, device="cpu", exact=True, threads=3, kv_cache_tokens=64, max_model_len=MAX_POSITION
    )
    torch.set_num_threads(1)
    assert not runner.info.exact
    assert "cut through a row" in runner.info.exact_note


@pytest.mark.real_model
def test_bits_on_the_default_model(default_model_folder: Path) -> None:
    """Four prompts alone, together, and with other chunks: equal bits at every token."""
    runner = load_torch_runner(
        default_model_folder, device="cpu", exact=True, threads=1, kv_cache_tokens=1024, max_model_len=256
    )
    assert runner.info.exact, runner.info.exact_note
    prompts = [np.random.default_rng(n).integers(17, 49_000, size=n).tolist() for n in (1, 9, 33, 50)]
    alone = [generate_together(runner, [prompt], 4)[0] for prompt in prompts]
    assert generate_together(runner, prompts, 4, chunk=7) == alone
    assert generate_together(runner, prompts, 4, chunk=24, seed=1) == alone
