"""A head in the torch runner changes no answer: in any mode, at any depth, with joins, in blocks that others left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mtplx.batching.state import DraftRequest, Row, SchedulerMode, StepPlan
from mtplx.errors import ModelError
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.folder import read_spec
from mtplx.model.mtp import find_mtp_weights
from mtplx.model.runner import Logits, drafting_runner
from mtplx.model.torch.runner import TorchRunner
from mtplx.server.engine import Submit
from mtplx.server.modes import make_speculator
from tests.drivers import run_closed_loop
from tests.engine.draft_driver import greedy
from tests.engine.test_identity import submits
from tests.fakes import flat_costs
from tests.tiny_heads import MTP_FAMILIES, add_weights, drop_weights, load_tiny_runner, write_tiny_mtp_model
from tests.tiny_models import VOCAB_SIZE, write_tiny_model

PROMPT = tuple(range(3, 40))
BLOCKS = (5, 0, 2)
OTHER_BLOCKS = (7, 1, 9)
NUM_MODULES = {"deepseek_v3": 2, "glm4_moe": 1, "mellum": 1}


@pytest.fixture(scope="module", params=MTP_FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = str(request.param)
    return write_tiny_mtp_model(tmp_path_factory.mktemp(name), name, NUM_MODULES[name])


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[TorchRunner]:
    runner = load_tiny_runner(folder)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def oracle(folder: Path) -> list[tuple[int, ...]]:
    """Serial, without a head."""
    return run_closed_loop(
        load_tiny_runner(folder, use_head=False), load(), mode=SchedulerMode.SERIAL, concurrency=1, chunk=512
    )


def load() -> list[Submit]:
    return submits([[(7 * k + 5 * i * i) % VOCAB_SIZE for i in range(1 + 11 * k)] for k in range(4)], max_tokens=12)


@pytest.mark.parametrize(
    ("mode", "depth", "concurrency", "chunk"),
    [
        (SchedulerMode.SERIAL, 3, 1, 16),
        (SchedulerMode.HYPER, 8, 1, 512),
        (SchedulerMode.COOPERATIVE, 2, 4, 7),
        (SchedulerMode.MTP_BATCH, 1, 8, 16),
        (SchedulerMode.MTP_BATCH, 4, 3, 64),
        (SchedulerMode.MTP_BATCH, None, 5, 16),
        (SchedulerMode.MTP_COHORT_EXPERIMENTAL, 4, 5, 16),
    ],
)
def test_answers_are_those_without_a_head(
    runner: TorchRunner,
    oracle: list[tuple[int, ...]],
    mode: SchedulerMode,
    depth: int | None,
    concurrency: int,
    chunk: int,
) -> None:
    """Greedy, seeded, and with filters and penalties; as one ends the next joins."""
    speculator = make_speculator(depth, flat_costs() if depth is None else None, prefill_chunk_tokens=chunk)
    assert (
        run_closed_loop(runner, load(), mode=mode, concurrency=concurrency, chunk=chunk, speculator=speculator)
        == oracle
    )


def prompt_row(num_logits: int = 0) -> Row:
    return Row(0, 0, PROMPT, BLOCKS, num_logits=num_logits)


def request(depth: int = 3, seq_id: int = 0, blocks: tuple[int, ...] = BLOCKS) -> DraftRequest:
    return DraftRequest(seq_id, 1, (*PROMPT[1:], 50), blocks, depth)


def test_run_has_the_bits_of_a_runner_without_a_head(folder: Path) -> None:
    """In exact mode and in float32, with drafts in between."""
    plain = load_tiny_runner(folder, dtype="float32", use_head=False)
    drafting = load_tiny_runner(folder, dtype="float32")
    assert plain.info.exact, plain.info.exact_note
    assert drafting.info.exact, drafting.info.exact_note
    steps = [prompt_row(num_logits=37), Row(0, 37, (50, 9, 8, 7), BLOCKS, num_logits=4, num_drafts=3)]
    for row in steps:
        assert drafting.run(StepPlan((row,))).tobytes() == plain.run(StepPlan((row,))).tobytes()
        drafting.draft([request()], greedy)


def test_a_call_that_failed_can_be_made_again(runner: TorchRunner) -> None:
    """Also after what it guessed was left behind, and beside another row."""
    runner.run(StepPlan((prompt_row(), replace(prompt_row(), seq_id=1, block_ids=OTHER_BLOCKS))))
    expected = runner.draft([request()], greedy)

    def failing(
        requests: Sequence[int],
        logits_RW: Logits,
        ids_W: npt.NDArray[np.integer] | None = None,
        argmax_R: Sequence[int] | None = None,
    ) -> list[int | None]:
        raise RuntimeError("no drafts today")

    with pytest.raises(RuntimeError, match="no drafts today"):
        runner.draft([request()], failing)
    assert runner.draft([request(seq_id=1, blocks=OTHER_BLOCKS), request()], greedy) == expected * 2


def test_a_row_that_ends_its_guessing_shifts_nobody(runner: TorchRunner) -> None:
    """Row 1 gets no token at its second level; row 0 wants none at all."""
    runner.run(StepPlan((prompt_row(), replace(prompt_row(), seq_id=1, block_ids=OTHER_BLOCKS))))
    (expected,) = runner.draft([request(depth=4)], greedy)
    asked: list[list[int]] = []

    def choose(
        requests: Sequence[int],
        logits_RW: Logits,
        ids_W: npt.NDArray[np.integer] | None = None,
        argmax_R: Sequence[int] | None = None,
    ) -> list[int | None]:
        asked.append(list(requests))
        found = greedy(requests, logits_RW, ids_W)
        is_second_level = len(asked) == 2
        return [None if is_second_level and index == 1 else found[line] for line, index in enumerate(requests)]

    requests = [request(depth=0), request(depth=4, seq_id=1, blocks=OTHER_BLOCKS), request(depth=4)]
    assert runner.draft(requests, choose) == [(), expected[:1], expected]
    assert asked == [[1, 2], [1, 2], [2], [2]]


def test_what_others_left_in_the_blocks_reaches_nobody(folder: Path, runner: TorchRunner) -> None:
    runner.run(StepPlan((prompt_row(),)))
    expected = runner.draft([request(depth=8)], greedy)
    spoilt = load_tiny_runner(folder)
    head = spoilt._draft_head
    assert head is not None
    for tensor in (*head._cache.keys, *head._cache.values, *head._inputs):
        tensor[: spoilt.num_blocks * BLOCK_SIZE] = float("nan")
    spoilt.run(StepPlan((prompt_row(),)))
    assert spoilt.draft([request(depth=8)], greedy) == expected


def test_foreign_modules_are_named_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weights of a head that this family isn't known to have keep nobody from being served."""
    folder = write_tiny_model(tmp_path / "model", "llama")
    add_weights(folder, {"mtp.fc.weight": torch.zeros(32, 64)})
    assert load_tiny_runner(folder).max_draft_depth == 0
    assert "multi-token-prediction weights of this LlamaForCausalLM can't be used" in caplog.text
    assert find_mtp_weights(folder, read_spec(folder)).num_modules == 0


def test_modules_that_are_not_whole_are_refused(folder: Path, tmp_path: Path) -> None:
    """A head of random numbers would only cost time, and nobody would know why."""
    partial = drop_weights(
        folder, tmp_path / "partial", lambda name: name.endswith(("hnorm.weight", "norm_hidden.weight"))
    )
    with pytest.raises(ModelError, match=r"multi-token-prediction layers: .*missing.*--draft-head none"):
        load_tiny_runner(partial)
    assert load_tiny_runner(partial, use_head=False).max_draft_depth == 0


def test_no_head_where_none_is_wanted(folder: Path) -> None:
    runner = load_tiny_runner(folder, use_head=False)
    assert drafting_runner(runner) is None
    assert drafting_runner(load_tiny_runner(folder)) is not None


def test_a_checkpoint_that_lost_its_modules_serves_without(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As many fine-tuned models do; the configuration still names them."""
    lost = drop_weights(folder, tmp_path / "lost", re.compile(r"layers\.[34]\.|^mtp\.").search)
    runner = load_tiny_runner(lost)
    assert drafting_runner(runner) is None
    assert [record.getMessage() for record in caplog.records if record.name.startswith("mtplx")] == [
        f"{lost}: config.json names multi-token-prediction layers, but the checkpoint has none; "
        "it serves without a draft head"
    ]
