"""The engine's steps as its recorder hears of them: what was computed, in which stages, and no answer changed by it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import DraftRequest, SchedulerMode, StepPlan, StopRules
from mtplx.config import Settings
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import build_core
from mtplx.server.engine import EngineCore, SequenceOutput, Submit
from mtplx.server.modes import make_scheduler, make_speculator
from mtplx.telemetry.stages import Recording, Stage, StageRecorder, StepRecorder
from tests.fakes import FakeDraftingRunner, FakeRunner

DRAFTING = [Stage.PLAN, Stage.DRAFT, Stage.PLAN, Stage.FORWARD, Stage.SAMPLE, Stage.COMMIT]
PROMPT_LENS = (17, 3)
PLAIN = [Stage.PLAN, Stage.FORWARD, Stage.SAMPLE, Stage.COMMIT]


def hyper_core(runner: FakeRunner, recorder: StageRecorder | None, *, depth: int = 3) -> EngineCore:
    scheduler = make_scheduler(
        SchedulerMode.HYPER,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=None,
        prefill_chunk_tokens=8,
        speculator=make_speculator(depth, None, prefill_chunk_tokens=8),
    )
    return EngineCore(runner, scheduler, clock=lambda: 0.0, recorder=recorder)


def ticking_recorder() -> StepRecorder:
    """Every look at its clock is a second."""
    ticks = itertools.count()
    return StepRecorder(clock=lambda: float(next(ticks)))


def run_two(core: EngineCore) -> list[SequenceOutput]:
    """Two answers, of 20 and 10 tokens; the first prompt's last chunk is one token, as a decode row's is."""
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    for seq_id, (prompt_len, max_tokens) in enumerate(zip(PROMPT_LENS, (20, 10), strict=True)):
        prompt = tuple(range(65, 65 + prompt_len))
        core.add(Submit(seq_id, prompt, params, seed=0, choice=0, stops=StopRules(max_tokens)))
    outputs = []
    while core.has_work:
        outputs += core.step()
    return outputs


def recording_of(core: EngineCore) -> Recording:
    recording = core.recorder.recording()
    assert recording is not None
    return recording


def test_every_step_is_recorded_as_it_was() -> None:
    runner = FakeDraftingRunner(0.6)
    core = hyper_core(runner, ticking_recorder())
    outputs = run_two(core)
    recording = recording_of(core)
    assert recording.last_step == core.counters.num_steps == len(runner.plans)
    for step, plan in zip(recording.steps, runner.plans, strict=True):
        assert step.num_tokens == plan.num_tokens
        assert step.num_drafts == sum(row.num_drafts for row in plan.rows)
        assert step.is_decode == all(row.start >= PROMPT_LENS[row.seq_id] for row in plan.rows)
        assert [span.start_s for span in step.spans[1:]] == [span.end_s for span in step.spans[:-1]]
        if step.num_drafts:
            assert [span.stage for span in step.spans] == DRAFTING
    assert [span.stage for span in recording.steps[0].spans] == PLAIN, "nothing to draft before the first chunk"
    counts = core.counters.drafts
    assert sum(step.num_emitted for step in recording.steps) == sum(len(output.token_ids) for output in outputs) == 30
    assert sum(step.num_drafts for step in recording.steps) == counts.num_draft_tokens > 0
    assert sum(step.num_accepted for step in recording.steps) == counts.num_accepted_tokens > 0


@pytest.mark.parametrize("mode", ["serial", "cooperative", "ar_batch", "mtp_batch", "hyper"])
def test_a_server_records_in_hyper_alone(mode: str) -> None:
    core = build_core(Settings(scheduler_mode=mode, prefill_chunk_tokens=8, draft_depth=0), FakeDraftingRunner())
    run_two(core)
    assert (core.recorder.recording() is not None) == (mode == "hyper")


def test_recording_changes_no_answer() -> None:
    recorded = run_two(hyper_core(FakeDraftingRunner(0.6), ticking_recorder()))
    assert recorded == run_two(hyper_core(FakeDraftingRunner(0.6), None))


def test_no_work_is_no_step() -> None:
    core = hyper_core(FakeDraftingRunner(), ticking_recorder())
    assert core.step() == []
    assert recording_of(core).steps == ()


def test_a_head_that_fails_still_took_its_time() -> None:
    def fail(requests: Sequence[DraftRequest]) -> None:
        raise RuntimeError("no head today")

    core = hyper_core(FakeDraftingRunner(head_fault=fail), ticking_recorder())
    run_two(core)
    stages = [[span.stage for span in step.spans] for step in recording_of(core).steps]
    assert DRAFTING in stages
    assert all(found in (DRAFTING, PLAIN) for found in stages)


@pytest.mark.parametrize("num_faults", [1, 2])
def test_a_step_that_fails_is_recorded_with_its_second_try(num_faults: int) -> None:
    """The second failure ends the sequence, the first one doesn't."""
    left = [num_faults]

    def fail(plan: StepPlan) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise RuntimeError("a bad moment")

    core = hyper_core(FakeRunner(fault=fail), ticking_recorder(), depth=0)
    outputs = run_two(core)
    assert len([output for output in outputs if output.error]) == num_faults - 1
    first = recording_of(core).steps[0]
    expected = PLAIN if num_faults == 1 else [Stage.PLAN, Stage.FORWARD, Stage.COMMIT]
    assert [span.stage for span in first.spans] == expected
    assert recording_of(core).last_step == core.counters.num_steps
