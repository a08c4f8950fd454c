"""Whatever a head guesses, the answers are those of serial without drafts; heads right, wrong and in between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.drafting import Speculator
from mtplx.batching.state import DraftRequest, FinishReason, SchedulerMode, StepPlan, StopRules
from mtplx.decode.logprobs import TokenLogprobs
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Cancel, EngineCore, Submit
from mtplx.server.head_calls import MAX_FAILED_DRAFTS
from mtplx.server.modes import make_scheduler, make_speculator
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner, flat_costs, saying

COHORT = SchedulerMode.MTP_COHORT_EXPERIMENTAL
MODES = tuple(mode for mode in SchedulerMode if mode is not SchedulerMode.AR_BATCH)
DEPTHS = (0, 1, 2, 4, 8, None)  # None is auto
HEADS = {"right": 1.0, "wrong": 0.0, "often right": 0.6}
LOADS = ((1, 64), (5, 3), (16, 16))  # concurrency and chunk
Answer = tuple[tuple[int, ...], tuple[TokenLogprobs, ...], FinishReason]


def speculator_of(depth: int | None, chunk: int) -> Speculator | None:
    return make_speculator(depth, flat_costs() if depth is None else None, prefill_chunk_tokens=chunk)


def core_of(
    runner: FakeRunner, mode: SchedulerMode, depth: int | None, *, width: int = 4, chunk: int = 16
) -> EngineCore:
    blocks = BlockAllocator(runner.num_blocks, runner.block_size)
    scheduler = make_scheduler(
        mode, blocks, decode_batch_max=width, prefill_chunk_tokens=chunk, speculator=speculator_of(depth, chunk)
    )
    return EngineCore(runner, scheduler, clock=lambda: 0.0)  # no step takes time: the costs stay as they are


def wishes() -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.6, repetition_penalty=1.3, logprobs=2),
        SamplingParams(temperature=0.0, frequency_penalty=2.0, logprobs=0),
        SamplingParams(temperature=1.2, min_tokens=8, stop_token_ids=tuple(range(60, 100))),
        SamplingParams(temperature=1.2, stop_token_ids=tuple(range(97, 123)), ignore_eos=True),
        SamplingParams(temperature=0.7, top_k=5, min_p=0.05, logit_bias={70: 3.0}, logprobs=1, draft_depth=2),
    ]


def load() -> list[Submit]:
    """Prompts of 1 to 50 tokens under every wish; answers of 1 to 22 tokens, some of which end early."""
    rng = random.Random(4)
    submits = []
    for seq_id in range(28):
        params = wishes()[seq_id % 7]
        max_tokens = max(params.min_tokens, rng.choice([1, 2, 5, 13, 22]))
        prompt = tuple(rng.randint(32, 120) for _ in range(rng.choice([1, 2, 7, 16, 17, 33, 50])))
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {EOS})
        submits.append(Submit(seq_id, prompt, params, seed=seq_id, choice=0, stops=StopRules(max_tokens, stop_ids)))
    return submits


def play(core: EngineCore, submits: Sequence[Submit], *, concurrency: int, seed: int = 0) -> dict[int, Answer]:
    """Each joins at a random moment once fewer than `concurrency` are live; checks everything after each step."""
    rng = random.Random(seed)
    todo = list(submits)
    parts: dict[int, list[object]] = {}
    answers: dict[int, Answer] = {}
    while todo or core.has_work:
        while todo and len(parts) - len(answers) < concurrency and (not core.has_work or rng.random() < 0.3):
            submit = todo.pop(0)
            parts[submit.seq_id] = []
            core.add(submit)
        for output in core.step():
            assert output.error is None, output.error
            assert output.num_accepted_tokens <= min(output.num_draft_tokens, len(output.token_ids))
            parts[output.seq_id].append(output)
            if output.finish_reason is not None:
                outputs = parts[output.seq_id]
                answers[output.seq_id] = (
                    tuple(token_id for part in outputs for token_id in part.token_ids),  # type: ignore[attr-defined]
                    tuple(entry for part in outputs for entry in part.logprobs),  # type: ignore[attr-defined]
                    output.finish_reason,
                )
        core.scheduler.table.check()
        core._sampler.check()
    assert core.status().num_blocks_used == 0
    return answers


@pytest.fixture(scope="module")
def oracle() -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    for submit in load():
        answers |= play(core_of(FakeRunner(), SchedulerMode.SERIAL, 0, chunk=512), [submit], concurrency=1)
    assert {reason for _, _, reason in answers.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    return answers


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("head", HEADS)
def test_answers_are_the_oracles(mode: SchedulerMode, depth: int | None, head: str, oracle: dict[int, Answer]) -> None:
    """B5 B6 B7 B12 B15 B16 B17 B26 B29 B31, at several widths and chunk sizes, with joins at random moments."""
    # One of the loads each, so that every load meets each pair of mode, depth and head.
    concurrency, chunk = LOADS[(MODES.index(mode) + DEPTHS.index(depth) + list(HEADS).index(head)) % len(LOADS)]
    core = core_of(FakeDraftingRunner(HEADS[head]), mode, depth, width=concurrency, chunk=chunk)
    assert play(core, load(), concurrency=concurrency, seed=chunk) == oracle
    counts = core.counters.drafts
    assert (counts.num_drafts > 0) == (depth != 0)
    if mode is COHORT:
        return  # what its texts guess has a luck of its own
    if head == "right" and counts.num_draft_tokens:
        assert counts.num_accepted_tokens == counts.num_draft_tokens
    if head == "wrong":
        assert counts.num_accepted_tokens == 0


@pytest.mark.parametrize("mode", [SchedulerMode.COOPERATIVE, SchedulerMode.MTP_BATCH, COHORT])
@pytest.mark.parametrize("depth", [4, None])
def test_preemption_changes_no_answer_and_drafts_cause_none_of_it(
    mode: SchedulerMode, depth: int | None, oracle: dict[int, Answer]
) -> None:
    runner = FakeDraftingRunner(0.6, num_blocks=20)
    core = core_of(runner, mode, depth, width=6, chunk=8)
    table = core.scheduler.table
    preempt = table.preempt

    def checked(sequence) -> None:  # type: ignore[no-untyped-def]
        assert not table._take_back_surplus(), "blocks of drafts were left while somebody is preempted"
        preempt(sequence)

    table.preempt = checked  # type: ignore[method-assign]
    assert play(core, load(), concurrency=6) == oracle
    assert table.num_preemptions > 0


@pytest.mark.parametrize("mode", MODES)
def test_random_cancels_leave_the_others_answers(mode: SchedulerMode, oracle: dict[int, Answer]) -> None:
    core = core_of(FakeDraftingRunner(0.6, num_blocks=40), mode, 4, width=5, chunk=8)
    rng = random.Random(7)
    outputs: dict[int, list[int]] = {submit.seq_id: [] for submit in load()}
    cancelled = set()
    for submit in load():
        core.add(submit)
    while core.has_work:
        if rng.random() < 0.15:
            seq_id = rng.choice(list(outputs))
            if core.scheduler.table.get(seq_id) is not None:
                cancelled.add(seq_id)
            core.cancel(Cancel(seq_id))
        for output in core.step():
            outputs[output.seq_id] += output.token_ids
        core.scheduler.table.check()
    assert len(cancelled) > 3
    for seq_id, token_ids in outputs.items():
        expected = oracle[seq_id][0]
        assert tuple(token_ids) == (expected[: len(token_ids)] if seq_id in cancelled else expected)
    assert core.status().num_blocks_used == 0


@pytest.mark.parametrize("head", HEADS)
def test_b20_the_heads_cache_is_whole_at_every_chunk_size(head: str, oracle: dict[int, Answer]) -> None:
    """The fake head asserts its cache in every call; the acceptance is the same to the last draft."""
    seen = set()
    for chunk in (1, 7, 16, 64, 512):
        core = core_of(FakeDraftingRunner(HEADS[head]), SchedulerMode.HYPER, 4, chunk=chunk)
        assert play(core, load(), concurrency=1) == oracle
        counts = core.counters.drafts
        seen.add((counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens))
    assert len(seen) == 1


def long_answers(num: int, max_tokens: int = 40) -> list[Submit]:
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    return [
        Submit(seq_id, tuple(range(65, 70 + seq_id)), params, seed=0, choice=0, stops=StopRules(max_tokens))
        for seq_id in range(num)
    ]


def num_steps(core: EngineCore, submits: Sequence[Submit]) -> int:
    """Steps that all of them take when they start together."""
    for submit in submits:
        core.add(submit)
    while core.has_work:
        core.step()
    return core.counters.num_steps


def test_a_right_head_saves_steps_and_a_wrong_one_costs_none() -> None:
    steps = {}
    for head, p_right in HEADS.items():
        steps[head] = num_steps(core_of(FakeDraftingRunner(p_right), SchedulerMode.MTP_BATCH, 4), long_answers(4))
    plain = num_steps(core_of(FakeDraftingRunner(1.0), SchedulerMode.MTP_BATCH, 0), long_answers(4))
    assert steps["right"] <= plain / 3
    assert steps["wrong"] == plain
    assert steps["right"] < steps["often right"] < steps["wrong"]


def test_auto_stops_drafting_with_a_wrong_head_and_builds_nothing_for_it() -> None:
    runner = FakeDraftingRunner(0.0, num_blocks=2048, max_position=3000)
    core = core_of(runner, SchedulerMode.MTP_BATCH, None)
    play(core, long_answers(2, max_tokens=900), concurrency=2)
    histogram = core.counters.drafts.depth_histogram
    assert histogram[0] > 0.9 * sum(histogram.values())
    assert len(runner.draft_calls) < 0.15 * core.counters.num_steps
    assert core.counters.drafts.num_drafts > 0


def test_auto_drafts_deep_with_a_right_head() -> None:
    core = core_of(FakeDraftingRunner(1.0), SchedulerMode.MTP_BATCH, None)
    assert num_steps(core, long_answers(4, max_tokens=60)) < 60 / 3


def test_one_rows_depth_does_not_shift_its_neighbours() -> None:
    """B17: caps of 0, 1, 4 and none in one batch, one just prefilled and one at its last token."""
    submits = [
        replace(submit, params=replace(submit.params, draft_depth=cap), stops=StopRules(max_tokens))
        for submit, cap, max_tokens in zip(long_answers(5), (0, 1, 4, None, None), (30, 30, 30, 30, 2), strict=True)
    ]
    answers = play(core_of(FakeDraftingRunner(0.6), SchedulerMode.SERIAL, 0), submits, concurrency=1)
    runner = FakeDraftingRunner(0.6)
    core = core_of(runner, SchedulerMode.MTP_BATCH, 4, width=5)
    for submit in submits:
        core.add(submit)
    found: dict[int, list[int]] = {submit.seq_id: [] for submit in submits}
    while core.has_work:
        for output in core.step():
            found[output.seq_id] += output.token_ids
    assert {seq_id: tuple(ids) for seq_id, ids in found.items()} == {k: ids for k, (ids, _, _) in answers.items()}
    depths = {
        seq_id: {row.num_drafts for plan in runner.plans for row in plan.rows if row.seq_id == seq_id}
        for seq_id in found
    }
    assert depths[0] == {0}
    assert max(depths[1]) == 1
    assert max(depths[2]) == max(depths[3]) == 4
    assert depths[4] == {0}, "its second token is its last"


class TestEnds:
    """Where an answer ends inside what could be a block of accepted drafts."""

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("depth", [0, 4, 8])
    @pytest.mark.parametrize("p_right", [1.0, 0.0])
    def test_b5_nothing_follows_the_end_token(self, mode: SchedulerMode, depth: int, p_right: float) -> None:
        runner = FakeDraftingRunner(p_right, script=saying("abc", prompt_len=4))
        core = core_of(runner, mode, depth)
        submit = Submit(0, (65,) * 4, SamplingParams(temperature=0.0), 0, 0, StopRules(20, frozenset({EOS})))
        assert play(core, [submit], concurrency=1)[0][::2] == ((97, 98, 99, EOS), FinishReason.STOP)

    @pytest.mark.parametrize("depth", [0, 1, 4, 8])
    def test_b12_exactly_max_tokens(self, depth: int) -> None:
        core = core_of(FakeDraftingRunner(1.0), SchedulerMode.MTP_BATCH, depth)
        answers = play(core, long_answers(3, max_tokens=64), concurrency=3)
        assert [len(ids) for ids, _, _ in answers.values()] == [64] * 3

    @pytest.mark.parametrize("depth", [0, 4])
    def test_b7_min_tokens_counts_tokens(self, depth: int) -> None:
        """The model wants to end at once; the end is banned for ten tokens."""
        runner = FakeDraftingRunner(1.0, script=lambda history: EOS if len(history) >= 14 else None)
        core = core_of(runner, SchedulerMode.MTP_BATCH, depth)
        params = SamplingParams(temperature=1.0, min_tokens=10)
        submit = Submit(0, (65,) * 4, params, 0, 0, StopRules(40, frozenset({EOS})))
        ids, _, reason = play(core, [submit], concurrency=1)[0]
        assert (len(ids), ids[-1], reason) == (11, EOS, FinishReason.STOP)


class TestHeadsThatFail:
    def test_a_call_that_raises_costs_drafts_and_no_answer(self, oracle: dict[int, Answer]) -> None:
        rng = random.Random(3)

        def head_fault(requests: Sequence[DraftRequest]) -> None:
            if rng.random() < 0.3:
                raise RuntimeError("no drafts today")

        core = core_of(FakeDraftingRunner(1.0, head_fault=head_fault), SchedulerMode.MTP_BATCH, 4)
        assert play(core, load(), concurrency=4) == oracle
        status = core.status()
        assert status.drafting is not None
        assert status.drafting.num_failed > 5
        assert status.drafts.num_drafts > 5

    def test_a_head_that_always_raises_is_left_alone(self, oracle: dict[int, Answer]) -> None:
        def head_fault(requests: Sequence[DraftRequest]) -> None:
            raise RuntimeError("never")

        runner = FakeDraftingRunner(1.0, head_fault=head_fault)
        core = core_of(runner, SchedulerMode.MTP_BATCH, 4)
        assert play(core, load(), concurrency=4) == oracle
        assert len(runner.draft_calls) == MAX_FAILED_DRAFTS
        assert core.counters.drafts.num_drafts == 0

    def test_a_step_that_raises_fails_only_the_guilty_also_with_drafts(self, oracle: dict[int, Answer]) -> None:
        def fault(plan: StepPlan) -> None:
            if plan.width > 1 and plan.num_tokens % 3 == 0:
                raise RuntimeError("too much at once")

        core = core_of(FakeDraftingRunner(0.6, fault=fault), SchedulerMode.MTP_BATCH, 4)
        assert play(core, load(), concurrency=4) == oracle
        assert core.counters.num_failed_steps > 5


def test_what_is_counted_is_what_happened() -> None:
    runner = FakeDraftingRunner(0.6)
    core = core_of(runner, SchedulerMode.MTP_BATCH, 3)
    outputs = []
    for submit in long_answers(3):
        core.add(submit)
    while core.has_work:
        outputs += core.step()
    status = core.status()
    drafted = [row for plan in runner.plans for row in plan.rows if row.num_drafts]
    assert status.drafts.num_drafts == len(drafted)
    assert status.drafts.num_draft_tokens == sum(row.num_drafts for row in drafted)
    assert status.drafts.num_accepted_tokens == sum(output.num_accepted_tokens for output in outputs)
    assert 0 < status.drafts.num_accepted_tokens < status.drafts.num_draft_tokens
    assert sum(status.drafts.accepted_by_position.values()) == status.drafts.num_accepted_tokens
    assert status.drafts.drafted_by_position[0] == status.drafts.num_drafts
    decode_rows = [row for plan in runner.plans for row in plan.rows if len(row.token_ids) == row.num_logits]
    assert status.drafts.depth_histogram == Counter(row.num_drafts for row in decode_rows)
    assert status.num_decode_tokens == len(decode_rows)
    assert status.num_prefill_tokens == sum(len(submit.prompt_ids) for submit in long_answers(3))
    assert (
        sum(len(output.token_ids) for output in outputs)
        == 120
        == 3 + len(decode_rows) + sum(output.num_accepted_tokens for output in outputs)
    )


def test_the_status_says_why_there_are_no_drafts() -> None:
    core = core_of(FakeDraftingRunner(0.0, num_blocks=512), SchedulerMode.MTP_BATCH, None)
    core.add(long_answers(1, max_tokens=300)[0])
    reasons = []
    while core.has_work:
        core.step()
        drafting = core.status().drafting
        assert drafting is not None
        assert drafting.costs is not None
        reasons.append(drafting.why_none)
        assert not (drafting.why_none and any(drafting.last_depths))
    assert any(reason and "cost more" in reason for reason in reasons)
