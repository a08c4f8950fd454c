"""Whatever breaks in a step, and wherever: who is guilty fails with a reason, and nobody else notices anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import FinishReason, Row, SchedulerMode, StepPlan, StopRules
from mtplx.errors import EngineDeadError, RequestError
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import MAX_FAILED_STEPS, EngineCore, Submit
from mtplx.server.modes import make_scheduler, make_speculator
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner, History
from tests.faults import BAD_LOGITS, STAGES, ShortRunner, SickRunner, raising

MODES = tuple(SchedulerMode)
DRAFTING = tuple(mode for mode in MODES if mode is not SchedulerMode.AR_BATCH)
GUILTY = 2
PROMPT_LEN = 21  # three chunks of 8
MAX_TOKENS = 12
Answers = dict[int, tuple[tuple[int, ...], str | None]]  # by sequence: its tokens, and the error that ended it


def core_of(runner: FakeRunner, mode: SchedulerMode = SchedulerMode.SERIAL, *, depth: int | None = None) -> EngineCore:
    """With a prefix cache; at depth 4 unless told otherwise."""
    if depth is None:
        depth = 0 if mode is SchedulerMode.AR_BATCH else 4
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=None if mode is SchedulerMode.HYPER else 6,
        prefill_chunk_tokens=8,
        speculator=make_speculator(depth, None, prefill_chunk_tokens=8),
        prefix_salt=b"shared",
    )
    return EngineCore(runner, scheduler)


def submit(seq_id: int) -> Submit:
    """All begin alike for two blocks; every second one is sampled, with logprobs."""
    params = SamplingParams(temperature=1.0, logprobs=2) if seq_id % 2 else SamplingParams(temperature=0.0)
    prompt = (*b"Together", *(65 + seq_id for _ in range(PROMPT_LEN - 8)))
    return Submit(seq_id, prompt, params, seed=seq_id, choice=0, stops=StopRules(MAX_TOKENS, frozenset({EOS})))


def play(core: EngineCore, *seq_ids: int) -> Answers:
    """Runs these together to their ends, checking after every step; nothing is left afterwards."""
    tokens: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    ends: Answers = {}
    for seq_id in seq_ids:
        core.add(submit(seq_id))
    while core.has_work:
        for output in core.step():
            tokens[output.seq_id] += output.token_ids
            if output.finish_reason is not None:
                assert (output.finish_reason is FinishReason.ERROR) == (output.error is not None)
                assert output.seq_id not in ends, "ended twice"
                ends[output.seq_id] = (tokens[output.seq_id], output.error)
        core.scheduler.table.check()
        core._sampler.check()
    assert core.status().num_blocks_used == core.status().num_running == core.status().num_waiting == 0
    assert core._sampler._entries == {}
    return ends


@pytest.fixture(scope="module")
def healthy() -> Answers:
    answers: Answers = {}
    for seq_id in range(6):
        answers |= play(core_of(FakeRunner(), depth=0), seq_id)
    return answers


def is_at(stage: str) -> Callable[[Row], bool]:
    return lambda row: row.seq_id == GUILTY and STAGES[stage](row)


def stages_of(*modes: SchedulerMode) -> list[tuple[SchedulerMode, str]]:
    """Each stage in each mode that comes to it."""
    return [(mode, stage) for mode in modes for stage in STAGES if stage != "verifying" or mode in DRAFTING]


@pytest.mark.parametrize(("mode", "stage"), stages_of(*MODES))
def test_a_step_that_raises_once_costs_nobody_anything(mode: SchedulerMode, stage: str, healthy: Answers) -> None:
    fault = raising(lambda plan: any(map(is_at(stage), plan.rows)), times=1)
    core = core_of(FakeDraftingRunner(0.6, fault=fault), mode)
    assert play(core, *range(6)) == healthy
    assert core.status().num_failed_steps == 1


@pytest.mark.parametrize(("mode", "stage"), stages_of(*MODES))
def test_who_makes_steps_raise_fails_alone(mode: SchedulerMode, stage: str, healthy: Answers) -> None:
    core = core_of(FakeDraftingRunner(0.6, fault=raising(lambda plan: any(map(is_at(stage), plan.rows)))), mode)
    answers = play(core, *range(6))
    token_ids, error = answers.pop(GUILTY)
    assert error == "the model failed on this request"
    assert token_ids == healthy[GUILTY][0][: len(token_ids)]
    assert answers == {seq_id: answer for seq_id, answer in healthy.items() if seq_id != GUILTY}
    assert play(core, 0, 5) == {0: healthy[0], 5: healthy[5]}, "and it goes on"


@pytest.mark.parametrize("guilty", [2, 3], ids=["greedy", "sampled"])
@pytest.mark.parametrize("bad", BAD_LOGITS)
@pytest.mark.parametrize("num_emitted", [0, 1, 5, MAX_TOKENS - 1])
@pytest.mark.parametrize("mode", MODES)
def test_bad_logits_end_an_answer_exactly_where_they_are(
    mode: SchedulerMode, num_emitted: int, bad: str, guilty: int, healthy: Answers
) -> None:
    """After the prompt, in the middle of what can be a block of accepted drafts, at the last token; never token 0."""

    def is_sick(history: History) -> bool:
        return history[8] == 65 + guilty and len(history) == PROMPT_LEN + num_emitted

    core = core_of(SickRunner(is_sick, BAD_LOGITS[bad]), mode)
    answers = play(core, *range(6))
    token_ids, error = answers.pop(guilty)
    assert token_ids == healthy[guilty][0][:num_emitted]
    assert error == "the model returned logits without a finite largest value"
    assert answers == {seq_id: answer for seq_id, answer in healthy.items() if seq_id != guilty}
    assert core.status().num_failed_steps == 0


@pytest.mark.parametrize("bad", BAD_LOGITS)
@pytest.mark.parametrize("mode", DRAFTING)
def test_bad_logits_of_the_head_cost_drafts_and_no_answer(mode: SchedulerMode, bad: str, healthy: Answers) -> None:
    runner = SickRunner(spoil=BAD_LOGITS[bad], is_head_sick=lambda history: len(history) % 3 == 0, p_right=1.0)
    core = core_of(runner, mode)
    assert play(core, *range(6)) == healthy
    assert core.counters.drafts.num_accepted_tokens > 0
    assert core.status().drafting.num_failed == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", MODES)
def test_logits_that_are_not_what_was_asked_for_fail_that_step_and_no_other(
    mode: SchedulerMode, healthy: Answers
) -> None:
    short = [True]

    def is_short(plan: StepPlan) -> bool:
        return plan.num_logits > 0 and bool(short) and short.pop()

    core = core_of(ShortRunner(is_short), mode)
    answers = play(core, *range(6))
    failed = {seq_id for seq_id, (_, error) in answers.items() if error}
    assert failed
    assert all(answers[seq_id] == ((), "the model failed on this request") for seq_id in failed)
    assert all(answers[seq_id] == healthy[seq_id] for seq_id in answers.keys() - failed)
    assert core.status().num_failed_steps == 1
    assert play(core, *sorted(failed)) == {seq_id: healthy[seq_id] for seq_id in failed}


def test_logits_that_are_never_what_was_asked_for_end_the_engine() -> None:
    core = core_of(ShortRunner(lambda plan: plan.num_logits > 0), depth=0)
    for seq_id in range(MAX_FAILED_STEPS - 1):
        assert play(core, seq_id % 6)[seq_id % 6][1]
    with pytest.raises(EngineDeadError):
        play(core, 0)


def test_a_sequence_that_cannot_be_taken_up_leaves_nothing(healthy: Answers) -> None:
    core = core_of(FakeRunner(), depth=0)
    core.add(submit(0))
    for twice_or_empty in (submit(0), replace(submit(1), prompt_ids=())):
        with pytest.raises(AssertionError):
            core.add(twice_or_empty)
    with pytest.raises(RequestError, match="logit_bias"):
        core.add(replace(submit(1), params=SamplingParams(logit_bias={10**6: 1.0})))
    core.scheduler.table.check()
    assert core.status().num_waiting == 1
    assert play(core, 1) == {0: healthy[0], 1: healthy[1]}
