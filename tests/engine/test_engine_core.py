"""The engine on a fake model: what goes in comes out once, steps that fail are contained, counters tell the truth."""

from __future__ import annotations

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import FinishReason, SchedulerMode, StepPlan, StopRules
from mtplx.errors import EngineDeadError
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import MAX_FAILED_STEPS, Cancel, EngineCore, SequenceOutput, Submit
from mtplx.server.modes import make_scheduler
from tests.fakes import EOS, FakeRunner

MODES = (SchedulerMode.SERIAL, SchedulerMode.COOPERATIVE, SchedulerMode.AR_BATCH)


def core_of(runner: FakeRunner, mode: SchedulerMode = SchedulerMode.AR_BATCH, width: int = 4) -> EngineCore:
    blocks = BlockAllocator(runner.num_blocks, runner.block_size)
    return EngineCore(runner, make_scheduler(mode, blocks, decode_batch_max=width, prefill_chunk_tokens=8))


def submit(seq_id: int, *, max_tokens: int = 6, prompt_len: int = 5, **params: object) -> Submit:
    return Submit(
        seq_id,
        tuple(range(65, 65 + prompt_len)),
        SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
        seed=seq_id,
        choice=0,
        stops=StopRules(max_tokens, frozenset({EOS})),
    )


def run_until_idle(core: EngineCore) -> dict[int, list[SequenceOutput]]:
    outputs: dict[int, list[SequenceOutput]] = {}
    while core.has_work:
        for output in core.step():
            outputs.setdefault(output.seq_id, []).append(output)
        core.scheduler.table.check()
    return outputs


def ids(outputs: list[SequenceOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


@pytest.mark.parametrize("mode", MODES)
def test_every_sequence_ends_once_with_its_own_tokens(mode: SchedulerMode) -> None:
    alone = {}
    for seq_id in range(6):
        core = core_of(FakeRunner(), SchedulerMode.SERIAL)
        core.add(submit(seq_id, max_tokens=3 + seq_id))
        alone.update(run_until_idle(core))
    core = core_of(FakeRunner(), mode)
    for seq_id in range(6):
        core.add(submit(seq_id, max_tokens=3 + seq_id))
    together = run_until_idle(core)
    for seq_id, outputs in together.items():
        assert ids(outputs) == ids(alone[seq_id])
        assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
        assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert core.status().num_finished == {FinishReason.LENGTH: 6}


@pytest.mark.parametrize("mode", MODES)
def test_preemption_changes_no_answer(mode: SchedulerMode) -> None:
    def run(num_blocks: int) -> tuple[dict[int, list[int]], int]:
        core = core_of(FakeRunner(num_blocks=num_blocks), mode)
        for seq_id in range(4):
            core.add(submit(seq_id, max_tokens=30, prompt_len=6))
        outputs = run_until_idle(core)
        return {seq_id: ids(parts) for seq_id, parts in outputs.items()}, core.status().num_preemptions

    roomy, none = run(256)
    tight, some = run(14)
    assert tight == roomy
    assert none == 0
    assert some > 0 or mode is SchedulerMode.SERIAL


def test_a_failed_step_runs_its_rows_alone_and_fails_only_the_guilty() -> None:
    def fault(plan: StepPlan) -> None:
        if any(row.seq_id == 2 and row.num_logits for row in plan.rows):
            raise RuntimeError("boom")

    core = core_of(FakeRunner(fault=fault))
    clean = core_of(FakeRunner())
    for seq_id in range(4):
        core.add(submit(seq_id))
        if seq_id != 2:
            clean.add(submit(seq_id))
    outputs, expected = run_until_idle(core), run_until_idle(clean)
    assert [output.finish_reason for output in outputs.pop(2)] == [FinishReason.ERROR]
    assert {k: ids(v) for k, v in outputs.items()} == {k: ids(v) for k, v in expected.items()}
    assert core.status().num_blocks_used == 0
    assert core.status().num_failed_steps >= 1


def test_steps_that_always_fail_end_the_engine() -> None:
    def fault(plan: StepPlan) -> None:
        raise RuntimeError("gone")

    core = core_of(FakeRunner(fault=fault))
    for seq_id in range(MAX_FAILED_STEPS - 1):
        core.add(submit(seq_id))
        assert run_until_idle(core)[seq_id][-1].finish_reason is FinishReason.ERROR
    core.add(submit(99))
    with pytest.raises(EngineDeadError):
        run_until_idle(core)


def test_cancel_in_any_state_frees_everything() -> None:
    core = core_of(FakeRunner(), width=2)
    for seq_id in range(4):
        core.add(submit(seq_id, max_tokens=50, prompt_len=20))
    for _ in range(9):
        core.step()
    for seq_id in (0, 1, 2, 3, 3, 77):
        core.cancel(Cancel(seq_id))
    assert not core.has_work
    assert core.status().num_blocks_used == 0
    assert core.status().num_finished == {FinishReason.CANCELLED: 4}


def test_logprobs_are_cut_with_the_tokens() -> None:
    core = core_of(FakeRunner(script=lambda history: EOS if len(history) == 8 else 70))
    core.add(submit(0, max_tokens=20, logprobs=2))
    outputs = run_until_idle(core)[0]
    assert ids(outputs) == [70, 70, 70, EOS]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert all(len(output.logprobs) == len(output.token_ids) for output in outputs)
    assert all(len(entry.top) == 2 for output in outputs for entry in output.logprobs)


def test_fail_all_ends_running_and_waiting_with_an_error() -> None:
    core = core_of(FakeRunner(), width=2)
    for seq_id in range(4):
        core.add(submit(seq_id, max_tokens=50))
    core.step()
    outputs = core.fail_all("closing")
    assert {(output.seq_id, output.finish_reason, output.error) for output in outputs} == {
        (seq_id, FinishReason.ERROR, "closing") for seq_id in range(4)
    }
    assert not core.has_work


def test_status_counts_what_ran() -> None:
    core = core_of(FakeRunner())
    for seq_id in range(4):
        core.add(submit(seq_id, max_tokens=6, prompt_len=8))
    run_until_idle(core)
    status = core.status()
    assert status.num_prefill_tokens + status.num_decode_tokens == 4 * (8 + 5)
    assert status.num_decode_tokens == 4 * 5
    assert sum(status.width_histogram.values()) == status.num_steps
    assert sum(width * steps for width, steps in status.width_histogram.items()) == 4 * (1 + 5), (
        "one row a chunk or token"
    )


@pytest.mark.parametrize("mode", [SchedulerMode.COOPERATIVE, SchedulerMode.AR_BATCH])
def test_small_ones_do_not_wait_behind_a_huge_one_that_was_preempted(mode: SchedulerMode) -> None:
    """The huge one can only go on when the long one ends; what fits beside both of them is served meanwhile."""
    core = core_of(FakeRunner(num_blocks=32), mode)
    core.add(submit(0, max_tokens=100, prompt_len=4))
    core.add(submit(1, max_tokens=20, prompt_len=100))
    while core.status().num_preemptions == 0:
        core.step()
    core.add(submit(2, max_tokens=4, prompt_len=3))
    core.add(submit(3, max_tokens=4, prompt_len=3))
    ends: list[int] = []
    while core.has_work:
        ends += [output.seq_id for output in core.step() if output.finish_reason]
    assert ends[:2] == [2, 3]
    assert sorted(ends) == [0, 1, 2, 3]
