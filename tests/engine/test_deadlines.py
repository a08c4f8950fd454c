"""A sequence that is past its deadline ends before the next step, with what it has, wherever it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import FinishReason, SchedulerMode
from mtplx.server.engine import Cancel, EngineCore
from mtplx.server.modes import make_scheduler, make_speculator
from tests.engine.test_engine_core import submit
from tests.fakes import FakeDraftingRunner


@dataclass(slots=True)
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def core_of(mode: SchedulerMode, clock: Clock, depth: int = 4) -> EngineCore:
    runner = FakeDraftingRunner()
    speculator = None if mode is SchedulerMode.AR_BATCH else make_speculator(depth, None, prefill_chunk_tokens=8)
    blocks = BlockAllocator(runner.num_blocks, runner.block_size)
    scheduler = make_scheduler(mode, blocks, decode_batch_max=2, prefill_chunk_tokens=8, speculator=speculator)
    return EngineCore(runner, scheduler, clock)


@pytest.mark.parametrize("mode", SchedulerMode)
def test_running_prefilling_and_waiting_ones_end_in_the_step_that_follows(mode: SchedulerMode) -> None:
    clock = Clock()
    core = core_of(mode, clock)
    core.add(replace(submit(0, max_tokens=90), deadline_s=5.0))
    core.step()
    core.add(replace(submit(1, max_tokens=90, prompt_len=60), deadline_s=5.0))
    core.add(replace(submit(2, max_tokens=90), deadline_s=5.0))
    core.add(replace(submit(3, max_tokens=90), deadline_s=5.1))
    clock.now_s = 4.9
    core.step()
    clock.now_s = 5.0
    outputs = core.step()
    ended = {output.seq_id: output.finish_reason for output in outputs if output.finish_reason}
    assert ended == dict.fromkeys((0, 1, 2), FinishReason.TIMEOUT)
    assert [output.token_ids for output in outputs if output.finish_reason] == [()] * 3
    core.scheduler.table.check()
    clock.now_s = 99.0
    assert [output.seq_id for output in core.step()] == [3]
    assert not core.has_work
    assert core.step() == []
    assert core.status().num_finished == {FinishReason.TIMEOUT: 4}
    assert core.scheduler.table.blocks.num_used == 0


def test_whoever_ends_before_has_no_deadline_any_more() -> None:
    clock = Clock()
    core = core_of(SchedulerMode.AR_BATCH, clock)
    for seq_id in range(3):
        core.add(replace(submit(seq_id, max_tokens=2), deadline_s=50.0))
    core.cancel(Cancel(2))
    while core.has_work:
        core.step()
    core.add(submit(2, max_tokens=2))  # the same id again, without one
    clock.now_s = 60.0
    assert [output.finish_reason for _ in range(3) for output in core.step()][-1] is FinishReason.LENGTH
