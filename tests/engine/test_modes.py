"""What each of the modes promises, on a simulated model and clock: who runs when, and who waits how long."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.scheduler import Scheduler
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import FinishReason, SchedulerMode
from mtplx.server.ar_batch import ArBatch
from mtplx.server.cooperative import Cooperative
from mtplx.server.hyper import Hyper
from mtplx.server.modes import make_scheduler
from mtplx.server.mtp_batch import MtpBatch
from mtplx.server.serial import Serial
from tests.simulator import (
    VOCAB_SIZE,
    SimRequest,
    Simulator,
    StepCost,
    make_cohort_mode,
    make_speculator,
    make_table,
    mixed_drafts,
)

CHUNK = 16
WIDTH = 4

Build = Callable[[SequenceTable], Scheduler]

BUILDS: dict[SchedulerMode, Build] = {
    SchedulerMode.SERIAL: lambda table: Serial(table, prefill_chunk_tokens=CHUNK),
    SchedulerMode.COOPERATIVE: lambda table: Cooperative(table, max_running=WIDTH, prefill_chunk_tokens=CHUNK),
    SchedulerMode.AR_BATCH: lambda table: ArBatch(table, max_running=WIDTH, prefill_chunk_tokens=CHUNK),
    SchedulerMode.MTP_BATCH: lambda table: MtpBatch(table, max_running=WIDTH, prefill_chunk_tokens=CHUNK),
    SchedulerMode.MTP_COHORT_EXPERIMENTAL: lambda table: make_cohort_mode(table, WIDTH, CHUNK, depth=0),
    SchedulerMode.HYPER: lambda table: Hyper(table, prefill_chunk_tokens=CHUNK),
}
ALONE = (SchedulerMode.SERIAL, SchedulerMode.HYPER)
SHARING = [mode for mode in BUILDS if mode not in ALONE]

MIXED_LOAD = [
    SimRequest(
        seq_id=seq_id,
        prompt_len=prompt_len,
        max_tokens=max_tokens,
        stop_ids=frozenset(range(5)) if seq_id % 3 == 0 else frozenset(),
        arrives_at=arrives_at,
    )
    for seq_id, (prompt_len, max_tokens, arrives_at) in enumerate(
        [(1, 20, 0), (40, 7, 0), (3, 1, 0), (17, 30, 2), (16, 16, 2), (33, 2, 9), (5, 40, 11), (64, 1, 12), (2, 12, 40)]
    )
]


def simulator(mode: SchedulerMode, table: SequenceTable | None = None) -> Simulator:
    return Simulator(BUILDS[mode](table or make_table()))


def emitted(simulator: Simulator, requests: Seq[SimRequest]) -> dict[int, tuple[list[int], FinishReason | None]]:
    traces = simulator.run(requests)
    return {seq_id: (trace.token_ids, trace.finish_reason) for seq_id, trace in traces.items()}


def answers(requests: Seq[SimRequest]) -> dict[int, tuple[list[int], FinishReason]]:
    return {request.seq_id: request.answer() for request in requests}


class TestEveryMode:
    @pytest.mark.parametrize("mode", BUILDS)
    def test_says_what_it_is(self, mode: SchedulerMode) -> None:
        scheduler = BUILDS[mode](make_table())
        assert scheduler.mode is mode
        assert scheduler.max_running == (1 if mode in ALONE else WIDTH)

    @pytest.mark.parametrize("mode", BUILDS)
    def test_an_empty_table_gives_an_empty_plan(self, mode: SchedulerMode) -> None:
        assert BUILDS[mode](make_table()).plan().rows == ()

    @pytest.mark.parametrize("mode", BUILDS)
    def test_answers_are_those_of_each_request_alone(self, mode: SchedulerMode) -> None:
        assert emitted(simulator(mode), MIXED_LOAD) == answers(MIXED_LOAD)

    @pytest.mark.parametrize("mode", BUILDS)
    def test_the_same_load_gives_the_same_plans(self, mode: SchedulerMode) -> None:
        first, second = simulator(mode), simulator(mode)
        first.run(MIXED_LOAD)
        second.run(MIXED_LOAD)
        assert first.plans == second.plans

    @pytest.mark.parametrize("mode", BUILDS)
    def test_preemption_changes_no_answer(self, mode: SchedulerMode) -> None:
        table = make_table(num_blocks=21, block_size=4)
        load = [SimRequest(seq_id=seq_id, prompt_len=9 + seq_id, max_tokens=60) for seq_id in range(6)]
        assert emitted(simulator(mode, table), load) == answers(load)
        assert (table.num_preemptions > 0) == (mode not in ALONE)

    @pytest.mark.parametrize("mode", BUILDS)
    def test_no_step_is_wider_or_longer_than_allowed(self, mode: SchedulerMode) -> None:
        sim = simulator(mode)
        sim.run(MIXED_LOAD)
        for plan in sim.plans:
            assert plan.width <= sim.scheduler.max_running
            assert sum(len(row.token_ids) for row in plan.rows if len(row.token_ids) > 1) <= CHUNK

    @pytest.mark.parametrize("mode", BUILDS)
    @pytest.mark.parametrize("chunk", [1, 3, 64])
    def test_the_chunk_size_changes_no_answer(self, mode: SchedulerMode, chunk: int) -> None:
        scheduler = make_scheduler(mode, BlockAllocator(64, 4), decode_batch_max=WIDTH, prefill_chunk_tokens=chunk)
        assert emitted(Simulator(scheduler), MIXED_LOAD) == answers(MIXED_LOAD)

    @pytest.mark.parametrize("mode", BUILDS)
    def test_a_failed_row_ends_alone_and_the_others_go_on(self, mode: SchedulerMode) -> None:
        sim = simulator(mode)
        load = [SimRequest(seq_id=seq_id, prompt_len=4, max_tokens=9) for seq_id in range(3)]
        for request in load:
            sim.add(request)
        while not sim.traces[1].finish_reason:
            sim.step(fail=[1])
        sim.run([])
        assert sim.traces[1].finish_reason is FinishReason.ERROR
        assert [sim.traces[seq_id].token_ids for seq_id in (0, 2)] == [load[0].answer()[0], load[2].answer()[0]]


class TestCancel:
    @pytest.mark.parametrize("mode", BUILDS)
    @pytest.mark.parametrize("cancel_at", range(0, 14, 2))
    def test_at_any_step_frees_the_blocks_and_leaves_the_others_answers(
        self, mode: SchedulerMode, cancel_at: int
    ) -> None:
        gone = SimRequest(seq_id=0, prompt_len=60, max_tokens=20, cancel_at=cancel_at)
        stays = SimRequest(seq_id=1, prompt_len=5, max_tokens=9)
        late = SimRequest(seq_id=2, prompt_len=70, max_tokens=9, arrives_at=1)
        traces = simulator(mode).run([gone, stays, late])
        assert traces[0].finish_reason is FinishReason.CANCELLED
        assert traces[0].token_ids == gone.answer()[0][: len(traces[0].token_ids)]
        assert [traces[seq_id].token_ids for seq_id in (1, 2)] == [stays.answer()[0], late.answer()[0]]

    @pytest.mark.parametrize("mode", BUILDS)
    def test_between_plan_and_commit_nothing_more_is_emitted(self, mode: SchedulerMode) -> None:
        sim = simulator(mode)
        sim.add(SimRequest(seq_id=0, prompt_len=4, max_tokens=9))
        sim.step()
        sim.step(cancel_between=[0])
        assert len(sim.traces[0].token_ids) == 1
        assert sim.table.is_empty
        assert sim.table.blocks.num_used == 0


class TestSerial:
    def test_runs_one_at_a_time_in_order_of_arrival(self) -> None:
        sim = simulator(SchedulerMode.SERIAL)
        sim.run(MIXED_LOAD)
        order = [row.seq_id for plan in sim.plans for row in plan.rows]
        assert order == sorted(order)
        assert {plan.width for plan in sim.plans} == {1}


class TestSharing:
    """What the modes that share the model have in common."""

    @pytest.mark.parametrize("mode", SHARING)
    def test_four_together_really_run_four_wide(self, mode: SchedulerMode) -> None:
        sim = simulator(mode)
        sim.run([SimRequest(seq_id=seq_id, prompt_len=4, max_tokens=20) for seq_id in range(4)])
        assert [plan.width for plan in sim.plans].count(4) >= 19

    @pytest.mark.parametrize("mode", SHARING)
    def test_a_short_request_joins_a_long_answer_within_a_few_steps(self, mode: SchedulerMode) -> None:
        long = SimRequest(seq_id=0, prompt_len=4, max_tokens=150)
        short = SimRequest(seq_id=1, prompt_len=4, max_tokens=2, arrives_at=50)
        traces = simulator(mode).run([long, short])
        assert traces[1].first_wait_steps <= 2
        assert traces[1].token_steps[-1] < traces[0].token_steps[-1] - 80

    @pytest.mark.parametrize("mode", SHARING)
    def test_a_row_that_finishes_early_is_delivered_then_and_its_place_is_taken(self, mode: SchedulerMode) -> None:
        load = [SimRequest(seq_id=seq_id, prompt_len=2, max_tokens=40) for seq_id in range(WIDTH - 1)]
        load += [SimRequest(seq_id=seq_id, prompt_len=2, max_tokens=3) for seq_id in range(WIDTH - 1, WIDTH + 1)]
        traces = simulator(mode).run(load)
        assert traces[WIDTH - 1].token_steps == [1, 2, 3]
        assert traces[WIDTH].token_steps[0] == 4

    @pytest.mark.parametrize("mode", SHARING)
    def test_a_long_prompt_delays_a_running_stream_by_one_chunk_at_most(self, mode: SchedulerMode) -> None:
        """B44: the gap doesn't grow with the prompt."""
        sim = simulator(mode, make_table(num_blocks=512, block_size=4))
        sim.run(
            [
                SimRequest(seq_id=0, prompt_len=4, max_tokens=100),
                SimRequest(seq_id=1, prompt_len=1024, max_tokens=2, arrives_at=10),
            ]
        )
        cost = StepCost()
        decode_s, chunk_s = cost.per_step_s + 2 * cost.per_token_s, cost.per_step_s + CHUNK * cost.per_token_s
        assert sim.traces[0].max_gap_s <= decode_s + chunk_s + 1e-9
        assert sim.traces[0].max_gap_steps <= 2

    @pytest.mark.parametrize("mode", SHARING)
    def test_neither_the_huge_one_nor_the_small_ones_behind_it_starve(self, mode: SchedulerMode) -> None:
        """B45: small ones come in every step; each passes the huge one or waits for it, in bounded time."""
        table = make_table(num_blocks=24, block_size=4)
        first = SimRequest(seq_id=0, prompt_len=8, max_tokens=20)
        huge = SimRequest(seq_id=1, prompt_len=80, max_tokens=8, arrives_at=1)
        small = [SimRequest(seq_id=2 + index, prompt_len=4, max_tokens=2, arrives_at=2 + index) for index in range(150)]
        traces = simulator(mode, table).run([first, huge, *small])
        assert traces[1].first_wait_steps <= 50
        assert max(traces[request.seq_id].first_wait_steps for request in small) <= 150

    @pytest.mark.parametrize("mode", SHARING)
    def test_a_cache_for_hardly_two_of_twelve_does_not_double_the_work(self, mode: SchedulerMode) -> None:
        table = make_table(num_blocks=40, block_size=4)
        load = [SimRequest(seq_id=seq_id, prompt_len=12, max_tokens=100) for seq_id in range(12)]
        sim = simulator(mode, table)
        sim.run(load)
        num_useful = sum(request.prompt_len + request.max_tokens - 1 for request in load)
        num_computed = sum(plan.num_tokens for plan in sim.plans)
        assert num_computed <= 2 * num_useful


class TestArBatch:
    def test_a_step_decodes_all_or_prefills_and_the_two_alternate(self) -> None:
        sim = simulator(SchedulerMode.AR_BATCH)
        streams = [SimRequest(seq_id=seq_id, prompt_len=2, max_tokens=30) for seq_id in range(2)]
        sim.run([*streams, SimRequest(seq_id=2, prompt_len=5 * CHUNK, max_tokens=3, arrives_at=4)])
        while_both = [[row.seq_id for row in plan.rows] for plan in sim.plans[3:13]]
        assert while_both == [[0, 1], [2], [0, 1], [2], [0, 1], [2], [0, 1], [2], [0, 1], [2]]
        assert [row.seq_id for row in sim.plans[13].rows] == [0, 1, 2]

    def test_prompts_share_a_chunk_oldest_and_shortest_first(self) -> None:
        sim = simulator(SchedulerMode.AR_BATCH)
        for seq_id, prompt_len in enumerate((20, 30, 3)):
            sim.add(SimRequest(seq_id=seq_id, prompt_len=prompt_len, max_tokens=9))
        first = sim.step()
        assert [(row.seq_id, len(row.token_ids)) for row in first.rows] == [(0, 13), (2, 3)]
        assert [row.seq_id for row in sim.step().rows] == [2]
        assert [(row.seq_id, len(row.token_ids)) for row in sim.step().rows] == [(0, 7), (1, 9)]

    @pytest.mark.parametrize("mode", [SchedulerMode.AR_BATCH, SchedulerMode.MTP_BATCH, SchedulerMode.COOPERATIVE])
    def test_a_short_prompt_does_not_wait_for_a_long_one(self, mode: SchedulerMode) -> None:
        sim = simulator(mode)
        sim.run(
            [
                SimRequest(seq_id=0, prompt_len=12 * CHUNK, max_tokens=2),
                SimRequest(seq_id=1, prompt_len=CHUNK // 2, max_tokens=2, arrives_at=3),
            ]
        )
        answered = next(
            step for step, plan in enumerate(sim.plans) if any(row.seq_id == 1 and row.num_logits for row in plan.rows)
        )
        assert answered <= 6

    def test_every_decoding_sequence_gets_exactly_one_token(self) -> None:
        sim = simulator(SchedulerMode.AR_BATCH)
        sim.run(MIXED_LOAD)
        for plan in sim.plans:
            decodes = [row for row in plan.rows if row.num_logits and row.start >= MIXED_LOAD[row.seq_id].prompt_len]
            assert decodes == [] or all(len(row.token_ids) == 1 for row in plan.rows)


class TestMtpBatch:
    def test_chunks_of_prompts_ride_along_with_every_decode_row(self) -> None:
        sim = simulator(SchedulerMode.MTP_BATCH)
        streams = [SimRequest(seq_id=seq_id, prompt_len=2, max_tokens=30) for seq_id in range(2)]
        sim.run([*streams, SimRequest(seq_id=2, prompt_len=5 * CHUNK, max_tokens=3, arrives_at=4)])
        assert [[len(row.token_ids) for row in plan.rows] for plan in sim.plans[4:9]] == [[1, 1, CHUNK]] * 5
        assert [row.seq_id for row in sim.plans[9].rows] == [0, 1, 2]

    def test_a_long_answer_runs_and_eight_that_arrive_wait_five_steps_at_most(self) -> None:
        """B42, with drafts; each of the eight fits into a chunk, and all of them into the width."""
        table = make_table(num_blocks=256)
        scheduler = MtpBatch(table, max_running=9, prefill_chunk_tokens=CHUNK, speculator=make_speculator())
        sim = Simulator(scheduler, drafter=mixed_drafts(4))
        short = [SimRequest(seq_id=1 + n, prompt_len=9, max_tokens=6, arrives_at=20) for n in range(8)]
        traces = sim.run([SimRequest(seq_id=0, prompt_len=30, max_tokens=300), *short])
        assert max(traces[request.seq_id].first_wait_steps for request in short) <= 5
        assert traces[0].token_steps[-1] > max(traces[request.seq_id].token_steps[-1] for request in short)

    def test_hyper_makes_the_plans_of_mtp_batch_at_width_one(self) -> None:
        plans = []
        for scheduler in (
            MtpBatch(make_table(), max_running=1, prefill_chunk_tokens=CHUNK, speculator=make_speculator(3)),
            Hyper(make_table(), prefill_chunk_tokens=CHUNK, speculator=make_speculator(3)),
        ):
            sim = Simulator(scheduler, drafter=mixed_drafts(3))
            sim.run(MIXED_LOAD)
            plans.append(sim.plans)
        assert plans[0] == plans[1]
        assert max(plan.width for plan in plans[0]) == 1


class TestCooperative:
    def test_decode_rows_and_chunks_share_one_budget(self) -> None:
        sim = simulator(SchedulerMode.COOPERATIVE)
        sim.run(
            [
                SimRequest(seq_id=0, prompt_len=2, max_tokens=30),
                SimRequest(seq_id=1, prompt_len=100, max_tokens=3, arrives_at=4),
            ]
        )
        assert [len(row.token_ids) for row in sim.plans[4].rows] == [1, CHUNK - 1]
        assert max(plan.num_tokens for plan in sim.plans) == CHUNK

    def test_the_width_defaults_to_the_budget(self) -> None:
        assert Cooperative(make_table(), prefill_chunk_tokens=24).max_running == 24

    def test_a_short_prompt_does_not_wait_for_long_ones_to_be_prefilled(self) -> None:
        long = [SimRequest(seq_id=seq_id, prompt_len=320, max_tokens=4) for seq_id in range(3)]
        short = SimRequest(seq_id=3, prompt_len=6, max_tokens=4, arrives_at=10)
        sim = simulator(SchedulerMode.COOPERATIVE, make_table(num_blocks=512, block_size=4))
        traces = sim.run([*long, short])
        assert traces[3].first_wait_steps <= 4
        assert max(trace.token_steps[0] for trace in traces.values()) > 60

    def test_more_streams_than_budget_take_turns(self) -> None:
        """Neither the one that came with a long prompt nor any other is passed over for longer than a round."""
        budget, num_streams = 4, 12
        table = make_table(num_blocks=512, block_size=4)
        sim = Simulator(Cooperative(table, max_running=num_streams + 1, prefill_chunk_tokens=budget))
        streams = [SimRequest(seq_id=seq_id, prompt_len=2, max_tokens=60) for seq_id in range(num_streams)]
        sim.run([*streams, SimRequest(seq_id=num_streams, prompt_len=100, max_tokens=20, arrives_at=5)])
        assert max(trace.max_gap_steps for trace in sim.traces.values()) <= num_streams

    def test_newcomers_do_not_stop_an_old_stream(self) -> None:
        """Prompts arrive faster than they can be computed; the old stream still gets a token in every step."""
        sim = simulator(SchedulerMode.COOPERATIVE, make_table(num_blocks=512, block_size=4))
        old = SimRequest(seq_id=0, prompt_len=100, max_tokens=100)
        flood = [SimRequest(seq_id=1 + n, prompt_len=50, max_tokens=1, arrives_at=10 + n) for n in range(60)]
        assert sim.run([old, *flood])[0].max_gap_steps == 1

    def test_a_huge_prompt_is_not_starved_by_newcomers(self) -> None:
        sim = simulator(SchedulerMode.COOPERATIVE, make_table(num_blocks=512, block_size=4))
        huge = SimRequest(seq_id=0, prompt_len=320, max_tokens=1)
        flood = [SimRequest(seq_id=1 + n, prompt_len=32, max_tokens=1, arrives_at=n) for n in range(200)]
        traces = sim.run([huge, *flood])
        assert traces[0].first_wait_steps <= 4 * 320 // CHUNK

    @pytest.mark.parametrize("scarce", ["blocks", "places"])
    def test_long_answers_give_way_to_a_short_request_in_bounded_time(self, scarce: str) -> None:
        width, num_blocks = (WIDTH, 80) if scarce == "blocks" else (2, 512)
        long = [SimRequest(seq_id=seq_id, prompt_len=100, max_tokens=200) for seq_id in range(2)]
        short = SimRequest(seq_id=2, prompt_len=40, max_tokens=4, arrives_at=30)
        table = make_table(num_blocks, block_size=4)
        sim = Simulator(Cooperative(table, max_running=width, prefill_chunk_tokens=CHUNK, max_wait_steps=20))
        traces = sim.run([*long, short])
        assert traces[2].first_wait_steps <= 40
        assert traces[2].finish_reason is FinishReason.LENGTH
        assert [traces[seq_id].token_ids for seq_id in (0, 1)] == [request.answer()[0] for request in long]

    def test_giving_way_costs_at_most_a_third_of_the_work(self) -> None:
        """Two sequences that can't run together take turns, and still most steps are useful."""
        table = make_table(num_blocks=60, block_size=4)
        load = [SimRequest(seq_id=seq_id, prompt_len=120, max_tokens=100) for seq_id in range(2)]
        sim = Simulator(Cooperative(table, max_running=WIDTH, prefill_chunk_tokens=CHUNK, max_wait_steps=1))
        assert emitted(sim, load) == answers(load)
        assert table.num_preemptions >= 2
        num_useful = sum(-(-request.prompt_len // CHUNK) + request.max_tokens for request in load)
        assert sim.num_steps <= 1.5 * num_useful


def test_every_token_of_the_vocabulary_can_come() -> None:
    """The fake model is no constant: the comparisons above can fail."""
    request = SimRequest(seq_id=0, prompt_len=1, max_tokens=2000)
    assert len(set(request.answer()[0])) == VOCAB_SIZE
