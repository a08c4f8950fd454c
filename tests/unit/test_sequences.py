"""The table's primitives: cutting, committing, admission with bounded overtaking, preemption, rows with drafts."""

from __future__ import annotations

import pytest

from mtplx.batching.budget import Split, share_out, share_out_short_first, split_mixed
from mtplx.batching.ending import cut
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import (
    FinishReason,
    Row,
    RowOutcome,
    Sequence,
    SequenceEvent,
    SequenceStatus,
    StepPlan,
    StopRules,
)
from tests.simulator import make_table

STOP_2 = frozenset({2})


def put(
    table: SequenceTable, seq_id: int, prompt_len: int, max_tokens: int = 8, stop_ids: frozenset[int] = frozenset()
) -> Sequence:
    sequence = Sequence(seq_id, list(range(10, 10 + prompt_len)), prompt_len, StopRules(max_tokens, stop_ids))
    table.add(sequence)
    return sequence


def step(table: SequenceTable, sequence: Sequence, max_tokens: int, *token_ids: int) -> SequenceEvent | None:
    """One row of one sequence, with the outcome given; its event if it made one."""
    plan = StepPlan((table.row(sequence, max_tokens),))
    events = table.commit(plan, [RowOutcome(token_ids)])
    table.check()
    return events[0] if events else None


def decoding(table: SequenceTable, seq_id: int, prompt_len: int, max_tokens: int = 8, first: int = 50) -> Sequence:
    """A sequence that has just emitted its first token."""
    sequence = put(table, seq_id, prompt_len, max_tokens)
    assert table.admit(99) == [sequence]
    step(table, sequence, prompt_len, first)
    return sequence


class TestCut:
    """The earliest boundary in token order wins (B5, B7, B12)."""

    @pytest.mark.parametrize(
        ("token_ids", "num_emitted", "max_tokens", "kept", "reason"),
        [
            ((5, 6, 7), 0, 9, (5, 6, 7), None),
            ((5, 2, 7), 0, 9, (5, 2), FinishReason.STOP),
            ((2, 2, 7), 0, 9, (2,), FinishReason.STOP),
            ((5, 6, 7), 62, 64, (5, 6), FinishReason.LENGTH),
            ((5, 6, 7), 61, 64, (5, 6, 7), FinishReason.LENGTH),
            ((5, 2, 7), 62, 64, (5, 2), FinishReason.STOP),  # the stop id is also the last token allowed
            ((5, 6, 2), 62, 64, (5, 6), FinishReason.LENGTH),  # the stop id comes after the end
            ((2,), 0, 1, (2,), FinishReason.STOP),
        ],
    )
    def test_boundaries(
        self,
        token_ids: tuple[int, ...],
        num_emitted: int,
        max_tokens: int,
        kept: tuple[int, ...],
        reason: FinishReason | None,
    ) -> None:
        assert cut(token_ids, num_emitted, StopRules(max_tokens, STOP_2)) == (kept, reason)


class TestCommit:
    def test_a_chunk_inside_the_prompt_moves_the_counter_and_says_nothing(self) -> None:
        table = make_table()
        sequence = put(table, 1, prompt_len=10)
        table.admit(1)
        row = table.row(sequence, 4)
        assert (row.start, row.token_ids, row.num_logits) == (0, (10, 11, 12, 13), 0)
        assert table.commit(StepPlan((row,)), [RowOutcome()]) == []
        assert (sequence.num_computed, sequence.num_served, sequence.num_emitted) == (4, 1, 0)

    def test_the_last_chunk_emits_the_first_token(self) -> None:
        table = make_table()
        sequence = put(table, 1, prompt_len=6)
        table.admit(1)
        step(table, sequence, 4)
        assert step(table, sequence, 4, 50) == SequenceEvent(1, (50,))
        assert sequence.is_decoding
        assert sequence.num_computed == 6

    @pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
    def test_accepted_drafts_count_as_computed_and_rejected_ones_do_not(self, num_accepted: int) -> None:
        table = make_table()
        sequence = decoding(table, 1, prompt_len=4)
        sequence.draft_ids = [61, 62, 63]
        table.reserve(sequence, 4)
        row = table.row(sequence, 4)
        assert (row.token_ids, row.num_logits, row.num_drafts) == ((50, 61, 62, 63), 4, 3)
        emitted = (*(61, 62, 63)[:num_accepted], 77)
        assert table.commit(StepPlan((row,)), [RowOutcome(emitted)]) == [SequenceEvent(1, emitted)]
        assert sequence.num_computed == 5 + num_accepted == len(sequence.token_ids) - 1
        assert sequence.draft_ids == []

    def test_a_stop_inside_an_accepted_block_drops_what_follows(self) -> None:
        table = make_table()
        sequence = put(table, 1, prompt_len=4, stop_ids=STOP_2)
        table.admit(1)
        step(table, sequence, 4, 50)
        sequence.draft_ids = [61, 2, 63]
        table.reserve(sequence, 4)
        assert step(table, sequence, 4, 61, 2, 63, 64) == SequenceEvent(1, (61, 2), FinishReason.STOP)
        assert table.is_empty
        assert table.blocks.num_used == 0

    def test_max_tokens_inside_an_accepted_block_drops_what_follows(self) -> None:
        table = make_table()
        sequence = decoding(table, 1, prompt_len=4, max_tokens=3)
        sequence.draft_ids = [61, 62, 63]
        table.reserve(sequence, 4)
        assert step(table, sequence, 4, 61, 62, 63, 64) == SequenceEvent(1, (61, 62), FinishReason.LENGTH)
        assert sequence.num_emitted == 3

    def test_an_error_ends_that_row_alone(self) -> None:
        table = make_table()
        broken, healthy = decoding(table, 1, 4), decoding(table, 2, 4)
        plan = StepPlan((table.row(broken, 1), table.row(healthy, 1)))
        events = table.commit(plan, [RowOutcome(error="NaN in the logits"), RowOutcome((60,))])
        assert events == [
            SequenceEvent(1, (), FinishReason.ERROR, "NaN in the logits"),
            SequenceEvent(2, (60,)),
        ]
        assert broken.status is SequenceStatus.FINISHED
        table.check()

    def test_one_cancelled_since_the_plan_is_skipped(self) -> None:
        table = make_table()
        gone, stays = decoding(table, 1, 4), decoding(table, 2, 4)
        plan = StepPlan((table.row(gone, 1), table.row(stays, 1)))
        assert table.cancel(1)
        assert table.commit(plan, [RowOutcome((60,)), RowOutcome((61,))]) == [SequenceEvent(2, (61,))]
        assert gone.token_ids[-1] == 50

    def test_a_stale_plan_is_refused(self) -> None:
        table = make_table()
        plan = StepPlan((table.row(decoding(table, 1, 4), 1),))
        table.commit(plan, [RowOutcome((60,))])
        with pytest.raises(AssertionError, match="before the next is made"):
            table.commit(plan, [RowOutcome((60,))])

    @pytest.mark.parametrize("token_ids", [(), (60, 61), (62, 60)])
    def test_an_outcome_that_is_not_the_rows_own_is_refused(self, token_ids: tuple[int, ...]) -> None:
        table = make_table()
        plan = StepPlan((table.row(decoding(table, 1, 4), 1),))
        with pytest.raises(AssertionError):
            table.commit(plan, [RowOutcome(token_ids)])


class TestRow:
    def test_drafts_wait_for_the_end_of_the_tokens(self) -> None:
        table = make_table()
        sequence = put(table, 1, prompt_len=6)
        table.admit(1)
        sequence.draft_ids = [60, 61]
        assert table.row(sequence, 5) == Row(1, 0, (10, 11, 12, 13, 14), tuple(sequence.block_ids), 0)
        assert table.row(sequence, 7).draft_ids == (60,)

    def test_drafts_never_cost_a_block(self) -> None:
        table = make_table(block_size=4)
        sequence = decoding(table, 1, prompt_len=5)  # holds two blocks: positions 0 to 7, the pending token is at 5
        sequence.draft_ids = [60, 61, 62, 63]
        assert table.row(sequence, 5).draft_ids == (60, 61)
        assert table.reserve(sequence, 5)
        assert table.row(sequence, 5).draft_ids == (60, 61, 62, 63)

    def test_reserve_takes_all_or_nothing(self) -> None:
        table = make_table(num_blocks=3, block_size=4)
        sequence = decoding(table, 1, prompt_len=3)
        assert not table.reserve(sequence, 20)
        assert len(sequence.block_ids) == 1
        assert table.reserve(sequence, 9)
        assert len(sequence.block_ids) == 3


class TestInAndOut:
    def test_cancel_in_every_state_frees_at_once(self) -> None:
        table = make_table()
        decodes, prefills = decoding(table, 1, 4), put(table, 2, 9)
        table.admit(2)
        waits = put(table, 3, 9)
        step(table, prefills, 4)
        assert (prefills.num_computed, waits.status) == (4, SequenceStatus.WAITING)
        for num_left, sequence in ((2, waits), (1, prefills), (0, decodes)):
            assert table.cancel(sequence.seq_id)
            assert sequence.status is SequenceStatus.FINISHED
            assert table.num_waiting + table.num_running == num_left
            table.check()
        assert table.is_empty
        assert table.blocks.num_used == 0
        assert not table.cancel(1)

    def test_fail_reports_the_known_ones(self) -> None:
        table = make_table()
        decoding(table, 1, 4)
        put(table, 2, 4)
        assert table.fail([2, 7, 1], "the device is gone") == [
            SequenceEvent(2, (), FinishReason.ERROR, "the device is gone"),
            SequenceEvent(1, (), FinishReason.ERROR, "the device is gone"),
        ]
        assert table.is_empty
        table.check()

    def test_what_could_never_fit_is_told_before_and_refused_after(self) -> None:
        table = make_table(num_blocks=3, block_size=4)
        assert table.could_hold(prompt_len=8, max_tokens=5)  # the fifth token is never fed back: 12 entries
        assert not table.could_hold(prompt_len=8, max_tokens=6)
        with pytest.raises(AssertionError, match="could_hold"):
            put(table, 1, prompt_len=8, max_tokens=6)

    def test_check_sees_a_leaked_block(self) -> None:
        table = make_table()
        decoding(table, 1, 4).block_ids.pop()
        with pytest.raises(AssertionError):
            table.check()


class TestAdmission:
    def test_small_ones_pass_a_huge_one_a_bounded_number_of_times(self) -> None:
        table = make_table(num_blocks=10, block_size=4, max_overtaken=2)
        long = decoding(table, 0, prompt_len=12, max_tokens=8)
        huge = put(table, 1, prompt_len=32)
        small = [put(table, seq_id, prompt_len=6, max_tokens=1) for seq_id in (2, 3, 4, 5)]
        assert table.admit(99) == small[:2]
        for sequence in small[:2]:
            step(table, sequence, 6, 60)
        assert table.admit(99) == []  # small ones would fit, but the huge one's patience has run out
        assert huge.num_overtaken == 2
        table.cancel(long.seq_id)
        assert table.admit(99) == [huge]

    def test_a_start_takes_the_blocks_of_the_whole_prompt_and_one_token(self) -> None:
        table = make_table(num_blocks=3, block_size=4)
        sequence = put(table, 1, prompt_len=8, max_tokens=4)
        table.admit(1)
        assert len(sequence.block_ids) == 3

    def test_a_newcomer_leaves_a_block_for_each_that_can_grow(self) -> None:
        table = make_table(num_blocks=4, block_size=4)
        decoding(table, 1, prompt_len=7, max_tokens=8)  # holds two blocks and may come to need four
        second = put(table, 2, prompt_len=5, max_tokens=3)
        assert table.admit(99) == []
        table.cancel(1)
        third = put(table, 3, prompt_len=5, max_tokens=3)
        assert table.admit(99) == [second, third]  # two blocks each, and neither can grow

    def test_width_is_kept(self) -> None:
        table = make_table()
        for seq_id in range(5):
            put(table, seq_id, 4)
        assert [sequence.seq_id for sequence in table.admit(3)] == [0, 1, 2]
        assert table.admit(3) == []
        assert (table.num_running, table.num_waiting) == (3, 2)


class TestPreemption:
    def test_the_newest_goes_first_and_keeps_its_tokens(self) -> None:
        table = make_table(num_blocks=4, block_size=4)
        first, second = decoding(table, 1, prompt_len=7), decoding(table, 2, prompt_len=3)
        step(table, second, 1, 51)
        assert table.reserve(second, 1)
        for token_id in (51, 52):
            table.secure_next_tokens()
            step(table, first, 1, token_id)
        assert table.num_preemptions == 1
        assert (second.status, second.num_preempted, second.block_ids) == (SequenceStatus.WAITING, 1, [])
        assert (second.num_computed, second.token_ids) == (0, [10, 11, 12, 50, 51])
        assert first.status is SequenceStatus.RUNNING

    def test_it_waits_in_front_of_later_arrivals(self) -> None:
        table = make_table()
        for seq_id in (1, 2, 3, 4):
            put(table, seq_id, 4)
        first, second, third = table.admit(3)
        table.preempt(second)
        table.preempt(third)
        table.preempt(first)
        assert [sequence.seq_id for sequence in table.waiting] == [1, 2, 3, 4]
        assert first.block_ids == []
        assert (first.num_computed, first.status) == (0, SequenceStatus.WAITING)
        assert table.num_preemptions == 3
        table.check()

    def test_only_those_that_fit_beside_everybody_pass_it(self) -> None:
        table = make_table(num_blocks=8, block_size=4)
        first, second = decoding(table, 1, prompt_len=12, max_tokens=8), decoding(table, 2, prompt_len=11)
        put(table, 3, prompt_len=2, max_tokens=14)  # may come to need four blocks, and the first five of the eight
        put(table, 4, prompt_len=2, max_tokens=4)  # two, at most
        table.preempt(second)
        assert table.reserve(first, 7)
        assert table.blocks.num_free == 3
        assert [sequence.seq_id for sequence in table.admit(99)] == [4]
        table.cancel(2)
        assert [sequence.seq_id for sequence in table.admit(99)] == [3]

    def test_make_way_takes_as_many_as_needed_and_sends_them_to_the_end(self) -> None:
        table = make_table(num_blocks=9, block_size=4)
        running = [decoding(table, seq_id, prompt_len=7, max_tokens=6) for seq_id in (1, 2, 3)]
        head = put(table, 4, prompt_len=14, max_tokens=2)
        put(table, 5, prompt_len=3)
        assert table.make_way(99, []) == []
        assert table.make_way(99, running[:1]) == []
        assert table.num_preemptions == 0
        assert table.make_way(99, reversed(running)) == [running[2], running[1]]
        assert [sequence.seq_id for sequence in table.waiting] == [4, 5, 3, 2]
        assert table.admit(2) == [head]
        table.check()

    def test_make_way_gives_a_place_where_places_are_short(self) -> None:
        table = make_table()
        running = [decoding(table, seq_id, prompt_len=4) for seq_id in (1, 2)]
        put(table, 3, prompt_len=4)
        assert table.make_way(2, running) == running[:1]


class TestBudget:
    def test_share_out_goes_in_order_until_it_is_spent(self) -> None:
        line = [Sequence(seq_id, [1] * n, n, StopRules(1)) for seq_id, n in ((1, 10), (2, 50), (3, 20), (4, 5))]
        shares = share_out(line, 64)
        assert [(share.sequence.seq_id, share.num_tokens) for share in shares] == [(1, 10), (2, 50), (3, 4)]
        assert share_out(line, 0) == []

    def test_short_prompts_pass_a_long_one_which_goes_on_all_the_same(self) -> None:
        def shared(budget: int, *pending: int) -> dict[int, int]:
            line = [Sequence(seq_id, [1] * n, n, StopRules(1)) for seq_id, n in enumerate(pending, start=1)]
            return {share.sequence.seq_id: share.num_tokens for share in share_out_short_first(line, budget)}

        assert shared(64, 6000, 90, 20) == {1: 32, 3: 20, 2: 12}
        assert shared(64, 6000, 5) == {1: 59, 2: 5}
        assert shared(64, 10, 6000, 700) == {1: 10, 2: 54}
        assert shared(1, 6000, 5) == {1: 1}, "the first goes on"
        assert shared(64, 100, 100, 100) == {1: 64}
        assert shared(64, 36, 100, 100) == {1: 36, 2: 28}, "of one length one after the other"
        assert shared(64) == {}

    @pytest.mark.parametrize(
        ("budget", "num_decoding", "num_pending", "split"),
        [
            (64, 10, 1000, Split(10, 54)),
            (64, 64, 1000, Split(48, 16)),
            (64, 64, 3, Split(61, 3)),
            (64, 64, 0, Split(64, 0)),
            (64, 0, 1000, Split(0, 64)),
            (1, 5, 5, Split(1, 1)),
            (2, 5, 5, Split(1, 1)),
        ],
    )
    def test_split_mixed(self, budget: int, num_decoding: int, num_pending: int, split: Split) -> None:
        assert split_mixed(budget, num_decoding, num_pending) == split
