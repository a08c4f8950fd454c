"""mtp_cohort_experimental: drafts of two sources that change no answer, prefixes computed once, walls between salts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import DraftRequest, SchedulerMode, StopRules
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Cancel, EngineCore, Submit
from mtplx.server.head_calls import MAX_FAILED_DRAFTS
from mtplx.server.modes import make_scheduler, make_speculator
from mtplx.telemetry.counters import EngineStatus
from tests.engine.test_drafts import Answer, play
from tests.engine.test_prefix_identity import SALT, core_of, shared_load
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner, flat_costs
from tests.simulator import SimRequest, Simulator, make_cohort_mode, make_table

COHORT, MTP_BATCH = SchedulerMode.MTP_COHORT_EXPERIMENTAL, SchedulerMode.MTP_BATCH
PROMPT = tuple(range(40, 100))
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def headless_core(depth: int | None, *, width: int = 4, chunk: int = 16, num_blocks: int = 256) -> EngineCore:
    runner = FakeRunner(num_blocks=num_blocks)
    speculator = make_speculator(depth, flat_costs(), prefill_chunk_tokens=chunk, max_draft_depth=0)
    scheduler = make_scheduler(
        COHORT,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=width,
        prefill_chunk_tokens=chunk,
        speculator=speculator,
        prefix_salt=SALT,
    )
    return EngineCore(runner, scheduler, clock=lambda: 0.0)


def submit(seq_id: int, prompt: Sequence[int] = PROMPT, *, max_tokens: int = 30, **fields: object) -> Submit:
    return Submit(seq_id, tuple(prompt), GREEDY, 0, 0, StopRules(max_tokens), **fields)  # type: ignore[arg-type]


def named_load() -> list[Submit]:
    """The prefix cache's load, all of it one cohort."""
    return [replace(one, cohort=b"all") for one in shared_load()]


def finish(core: EngineCore) -> EngineStatus:
    while core.has_work:
        core.step()
        core.scheduler.cohorts.check()  # type: ignore[attr-defined]
    return core.status()


def num_rows(before: EngineStatus, after: EngineStatus) -> int:
    return after.num_decode_tokens - before.num_decode_tokens


@pytest.fixture(scope="module")
def oracle() -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    for one in shared_load():
        answers |= play(core_of(FakeRunner(), SchedulerMode.SERIAL, chunk=512, shares=False), [one], concurrency=1)
    return answers


class TestAnswers:
    @pytest.mark.parametrize("depth", [1, 4, 8, None])
    @pytest.mark.parametrize("p_right", [0.0, 1.0])
    def test_are_the_oracles_with_heads_that_are_right_and_wrong(
        self, depth: int | None, p_right: float, oracle: dict[int, Answer]
    ) -> None:
        """The load twice in one engine: the second time the index knows the answers, as a right head does."""
        core = core_of(FakeDraftingRunner(p_right), COHORT, depth, width=5)
        for turn in range(2):
            assert play(core, named_load(), concurrency=5, seed=turn) == oracle
        status = core.status()
        assert status.cohorts is not None
        accepted = status.cohorts.index if p_right == 0 else status.cohorts.head
        assert accepted.num_accepted_tokens > 20

    @pytest.mark.parametrize("depth", [2, 8, None])
    def test_are_the_oracles_without_a_head(self, depth: int | None, oracle: dict[int, Answer]) -> None:
        core = headless_core(depth)
        for turn in range(2):
            assert play(core, named_load(), concurrency=4, seed=turn) == oracle
        status = core.status()
        assert status.cohorts is not None
        assert status.cohorts.index.num_accepted_tokens > 0 == status.cohorts.head.num_draft_tokens

    def test_are_the_oracles_through_preemption(self, oracle: dict[int, Answer]) -> None:
        core = headless_core(8, width=6, chunk=8, num_blocks=23)
        for turn in range(2):
            assert play(core, shared_load(), concurrency=8, seed=turn) == oracle
        assert core.status().num_preemptions > 0

    def test_are_the_oracles_where_texts_lie(self, oracle: dict[int, Answer]) -> None:
        """A named cohort whose texts are the same prompts with other seeds: what it proposes is often wrong."""
        core = core_of(FakeDraftingRunner(0.6), COHORT, 4, width=5)
        play(core, [replace(one, seed=one.seed + 1000) for one in named_load()], concurrency=5)
        assert play(core, named_load(), concurrency=5) == oracle
        status = core.status()
        assert status.cohorts is not None
        assert 0 < status.cohorts.index.num_accepted_tokens < status.cohorts.index.num_draft_tokens


class TestSources:
    def test_a_second_request_for_the_same_answer_takes_a_fraction_of_the_steps(self) -> None:
        core = headless_core(8)
        for seq_id in range(2):
            before = core.status()
            core.add(submit(seq_id, max_tokens=40))
            rows = num_rows(before, finish(core))
        assert rows <= 40 / 4

    def test_samples_that_run_together_feed_each_other(self) -> None:
        """Greedy ones of one prompt: whoever is behind follows the others' texts."""
        core = headless_core(8)
        core.add(submit(0, max_tokens=40))
        for _ in range(20):
            core.step()
        for seq_id in range(1, 4):
            core.add(submit(seq_id, max_tokens=40))
        status = finish(core)
        assert status.cohorts is not None
        assert status.cohorts.index.num_accepted_tokens > 3 * 10

    def test_where_the_texts_know_more_the_head_is_hardly_asked(self) -> None:
        runner = FakeDraftingRunner(0.3)
        core = core_of(runner, COHORT, 4)
        for seq_id in range(8):
            core.add(submit(seq_id, max_tokens=40))
            before = core.status().cohorts
            after = finish(core).cohorts
        assert before is not None
        assert after is not None
        num_head = after.head.num_draft_tokens - before.head.num_draft_tokens
        num_index = after.index.num_draft_tokens - before.index.num_draft_tokens
        assert num_index > 4 * num_head

    def test_texts_that_are_always_wrong_leave_the_head_to_itself(self) -> None:
        """Prompts that repeat three tokens, each time with others behind: every match is a trap."""
        rng = random.Random(1)
        runner = FakeDraftingRunner(1.0, script=lambda history: (*b"abc", 100 + len(history) % 20)[len(history) % 4])
        core = core_of(runner, COHORT, 4)
        prompt = [token for _ in range(12) for token in (*b"abc", rng.randrange(32, 90))]
        for seq_id in range(6):
            core.add(submit(seq_id, [*prompt, *b"ab"][: 47 + seq_id % 2], max_tokens=60))
            before = core.counters.drafts.copy()
            finish(core)
        counts = core.counters.drafts
        assert counts.num_accepted_tokens - before.num_accepted_tokens > 0.7 * 60 * 4 / 5

    def test_every_draft_has_one_source(self) -> None:
        core = core_of(FakeDraftingRunner(0.6), COHORT, None, width=5)
        for _ in range(2):
            play(core, named_load(), concurrency=5)
        status = core.status()
        assert status.cohorts is not None
        head, index, drafts = status.cohorts.head, status.cohorts.index, status.drafts
        assert head.num_draft_tokens + index.num_draft_tokens == drafts.num_draft_tokens
        assert head.num_accepted_tokens + index.num_accepted_tokens == drafts.num_accepted_tokens
        assert min(head.num_draft_tokens, index.num_draft_tokens) > 0


class TestRequestsWishes:
    @pytest.mark.parametrize("cap", [0, 2])
    def test_a_requests_cap_holds_for_texts_too(self, cap: int) -> None:
        core = headless_core(8)
        core.add(submit(0))
        finish(core)
        before = core.counters.drafts.copy()
        core.add(replace(submit(1), params=replace(GREEDY, draft_depth=cap)))
        finish(core)
        seen = core.counters.drafts.depth_histogram - before.depth_histogram
        assert max(seen) == cap

    def test_depth_0_shares_prefixes_and_drafts_nothing(self) -> None:
        core = core_of(FakeDraftingRunner(1.0), COHORT, 0)
        for seq_id in range(2):
            core.add(submit(seq_id))
            finish(core)
        status = core.status()
        assert status.cohorts is not None
        assert status.drafts.num_drafts == 0 < status.cohorts.num_saved_tokens


class TestReports:
    def test_cohorts_members_and_saved_tokens(self) -> None:
        core = headless_core(4)
        core.add(submit(0, (*PROMPT, 1)))
        finish(core)
        for seq_id in (1, 2):
            core.add(submit(seq_id, (*PROMPT, seq_id)))
        core.add(submit(3, range(100, 40, -1)))
        core.step()
        core.step()
        now = core.status().cohorts
        assert now is not None
        assert (now.num_cohorts, now.num_members) == (1, 2)
        done = finish(core)
        assert done.cohorts is not None
        assert done.cohorts.num_cohorts == 0
        assert done.cohorts.num_saved_tokens == done.prefix.num_saved_tokens == 2 * 60

    def test_without_cohorts_there_is_no_such_status(self) -> None:
        assert core_of(FakeDraftingRunner(), MTP_BATCH).status().cohorts is None

    def test_why_there_are_no_drafts(self) -> None:
        core = headless_core(4)
        core.add(submit(0, (65, 66, 67, 68), max_tokens=5))
        core.step()
        core.step()
        why = "no text of a cohort goes on from here, and there is no draft head"
        assert core.status().drafting.why_none == why

    def test_a_head_that_failed_too_often_leaves_the_texts(self) -> None:
        def fail(requests: Sequence[DraftRequest]) -> None:
            raise RuntimeError("no head today")

        core = core_of(FakeDraftingRunner(head_fault=fail), COHORT, 4)
        for seq_id in range(2):
            core.add(submit(seq_id, max_tokens=40))
            status = finish(core)
        assert status.drafting.num_failed == MAX_FAILED_DRAFTS
        assert status.cohorts is not None
        assert status.cohorts.index.num_accepted_tokens > 20


class TestIsolation:
    def test_equal_prompts_of_two_salts_share_nothing(self) -> None:
        """A tenant's key or a request's own salt: the second asks just what the first has been told."""
        core = headless_core(8)
        core.add(submit(0, cache_salt=b"one"))
        first = finish(core)
        core.add(submit(1, cache_salt=b"other"))
        other = finish(core)
        core.add(submit(2, cache_salt=b"one"))
        again = finish(core)
        assert first.cohorts is not None
        assert other.cohorts is not None
        assert again.cohorts is not None
        assert other.cohorts.num_saved_tokens == first.cohorts.num_saved_tokens == 0
        assert other.cohorts.index == first.cohorts.index, "no draft came from a stranger's text"
        assert other.cohorts.num_indexes == 2
        assert num_rows(first, other) == num_rows(EMPTY, first), "nor was it any faster"
        assert num_rows(other, again) < num_rows(first, other) / 2
        assert again.cohorts.num_saved_tokens > 0

    def test_a_name_is_one_salts_own(self) -> None:
        core = headless_core(8)
        for seq_id, salt in enumerate([b"one", b"other"]):
            core.add(submit(seq_id, cache_salt=salt, cohort=b"team"))
            status = finish(core)
        assert status.cohorts is not None
        assert status.cohorts.index.num_accepted_tokens == status.cohorts.num_cohorts == 0
        assert status.cohorts.num_indexes == 2


EMPTY = headless_core(8).status()


class TestWaitingForAPrefix:
    """Requests that begin alike and come together, in a cache with the same blocks for all."""

    @pytest.mark.parametrize("chunk", [4, 10, 16, 64, 1000])
    def test_no_block_is_computed_twice(self, chunk: int) -> None:
        table = make_table(num_blocks=300, block_size=4, shares=True)
        sim = Simulator(make_cohort_mode(table, 8, chunk))
        load = [SimRequest(seq_id=n, prompt_len=70, max_tokens=3, common_len=64) for n in range(8)]
        sim.run(load)
        num_prompt_tokens = sum(
            len(row.token_ids) for plan in sim.plans for row in plan.rows if row.start + len(row.token_ids) <= 70
        )
        assert num_prompt_tokens == 64 + 8 * 6
        assert table.prefix.status().num_saved_tokens == 7 * 64

    def test_who_waits_goes_on_at_once_when_the_first_is_cancelled(self) -> None:
        table = make_table(num_blocks=300, block_size=4, shares=True)
        sim = Simulator(make_cohort_mode(table, 4, 8))
        for seq_id in range(2):
            sim.add(SimRequest(seq_id=seq_id, prompt_len=70, max_tokens=3, common_len=64))
        assert [row.seq_id for row in sim.step().rows] == [0]
        sim.cancel(0)
        (row,) = sim.step().rows
        assert (row.seq_id, row.start) == (1, 8)
        sim.run([])

    def test_what_one_leaves_of_a_chunk_goes_to_who_shares_nothing(self) -> None:
        table = make_table(num_blocks=300, block_size=4, shares=True)
        sim = Simulator(make_cohort_mode(table, 4, 100))
        for seq_id, family in enumerate((0, 0, 1)):
            sim.add(SimRequest(seq_id=seq_id, prompt_len=70, max_tokens=3, common_len=64, family=family))
        assert [(row.seq_id, len(row.token_ids)) for row in sim.step().rows] == [(0, 70), (2, 30)]

    def test_without_a_prefix_cache_nobody_waits(self) -> None:
        sim = Simulator(make_cohort_mode(make_table(num_blocks=300), 4, 200))
        for seq_id in range(2):
            sim.add(SimRequest(seq_id=seq_id, prompt_len=70, max_tokens=3, common_len=64))
        assert [row.seq_id for row in sim.step().rows] == [0, 1]


def test_cancels_at_any_moment_leave_no_member_behind() -> None:
    core, rng = headless_core(8, num_blocks=60), random.Random(2)
    for one in shared_load():
        core.add(one)
    while core.has_work:
        if rng.random() < 0.3:
            core.cancel(Cancel(rng.randrange(30)))
        core.step()
        core.scheduler.cohorts.check()  # type: ignore[attr-defined]
    core.add(submit(99, (EOS - 200, 70), max_tokens=1))
    status = finish(core).cohorts
    assert status is not None
    assert status.num_members == 0
