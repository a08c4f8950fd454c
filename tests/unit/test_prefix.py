"""What a sequence may take over from others: full blocks of the same tokens, model and salt, never its last token."""

from __future__ import annotations

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.prefix import PrefixCache
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import DraftRequest, RowOutcome, Sequence, StepPlan, StopRules
from tests.simulator import make_table

SYSTEM = [7, 8, 9, 10, 11, 12, 13, 14]  # two blocks of four


def put(table: SequenceTable, seq_id: int, prompt: list[int], max_tokens: int = 8, **options: object) -> Sequence:
    sequence = Sequence(seq_id, list(prompt), len(prompt), StopRules(max_tokens), **options)  # type: ignore[arg-type]
    table.add(sequence)
    return sequence


def run(table: SequenceTable, sequence: Sequence, max_tokens: int, *token_ids: int, error: str | None = None) -> None:
    table.secure_next_tokens()
    table.commit(StepPlan((table.row(sequence, max_tokens),)), [RowOutcome(token_ids, error)])
    table.check()


def served(table: SequenceTable, seq_id: int, prompt: list[int], **options: object) -> Sequence:
    """One that has come and gone with one token."""
    sequence = put(table, seq_id, prompt, max_tokens=1, **options)
    assert table.admit(99) == [sequence]
    run(table, sequence, len(prompt), 50)
    return sequence


def admitted(table: SequenceTable, seq_id: int, prompt: list[int], **options: object) -> Sequence:
    sequence = put(table, seq_id, prompt, **options)
    assert table.admit(99) == [sequence]
    table.check()
    return sequence


class TestHits:
    @pytest.mark.parametrize(
        ("prompt", "num_shared"),
        [
            ([*SYSTEM, 1], 8),
            ([*SYSTEM, 1, 2, 3, 4, 5], 8),
            (SYSTEM, 4),  # the last token is computed again: its logits are wanted
            (SYSTEM[:5], 4),
            (SYSTEM[:4], 0),
            ([*SYSTEM[:7], 99, 1], 4),
            ([99, *SYSTEM[1:], 1], 0),
            ([*SYSTEM[4:], *SYSTEM[4:], 1], 0),  # the same tokens at another place are another prefix
        ],
    )
    def test_full_blocks_of_the_same_beginning(self, prompt: list[int], num_shared: int) -> None:
        table = make_table(block_size=4, shares=True)
        served(table, 0, [*SYSTEM, 20, 21])
        sequence = admitted(table, 1, prompt)
        assert (sequence.num_computed, sequence.num_cached) == (num_shared, num_shared)
        assert table.row(sequence, 99).start == num_shared
        assert table.prefix.status().num_saved_tokens == num_shared

    @pytest.mark.parametrize("salt", [b"", b"somebody", b"else"])
    def test_nothing_of_another_salt(self, salt: bytes) -> None:
        table = make_table(block_size=4, shares=True)
        served(table, 0, [*SYSTEM, 1], cache_salt=b"somebody")
        assert admitted(table, 1, [*SYSTEM, 1], cache_salt=salt).num_computed == (8 if salt == b"somebody" else 0)

    def test_nothing_of_another_model(self) -> None:
        keys = []
        for salt in (b"one", b"other"):
            blocks = BlockAllocator(8, 4)
            sequence = served(SequenceTable(blocks, PrefixCache(blocks, salt)), 0, [*SYSTEM, 1])
            keys.append(tuple(sequence.prefix_keys))
        assert len({*keys[0], *keys[1]}) == 4

    def test_off_and_out_of_it(self) -> None:
        table = make_table(block_size=4)
        served(table, 0, [*SYSTEM, 1])
        assert admitted(table, 1, [*SYSTEM, 1]).num_computed == 0
        assert (table.prefix.status().is_on, table.prefix.status().num_blocks) == (False, 0)
        table = make_table(block_size=4, shares=True)
        served(table, 0, [*SYSTEM, 1], num_unscored=8)
        assert admitted(table, 1, [*SYSTEM, 1], num_unscored=8).num_computed == 0
        assert admitted(table, 2, [*SYSTEM, 1]).num_computed == 8, "who doesn't read may write"

    def test_emitted_tokens_are_shared_too(self) -> None:
        """The next turn of a conversation holds the answer of the last one."""
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, SYSTEM[:6], max_tokens=4)
        run(table, first, 6, 60)
        for token_id in (61, 62, 63):
            run(table, first, 1, token_id)
        assert admitted(table, 1, [*SYSTEM[:6], 60, 61, 62, 63, 70]).num_computed == 8

    def test_drafts_are_published_when_they_are_accepted_and_not_before(self) -> None:
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, SYSTEM[:6], max_tokens=9)
        run(table, first, 6, 60)
        first.draft_ids = [61, 62, 63, 64, 65]
        table.reserve(first, 6)
        run(table, first, 6, 61, 99)
        assert first.num_published == 2
        assert table.prefix.find(put(table, 1, [*SYSTEM[:6], 60, 61, 62, 63, 64, 65, 66])) == first.block_ids[:2]

    def test_tokens_past_the_end_of_an_answer_are_not_published(self) -> None:
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, SYSTEM[:6], max_tokens=2)
        run(table, first, 6, 60)
        first.draft_ids = [61, 62, 63, 64, 65]
        table.reserve(first, 6)
        run(table, first, 6, 61, 62, 63, 64, 65, 66)
        assert table.is_empty
        assert table.prefix.status().num_blocks == 2

    def test_a_cancelled_neighbours_blocks_stay_as_far_as_they_are_full(self) -> None:
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, [*SYSTEM, 1, 2, 3])
        run(table, first, 6)
        table.cancel(0)
        table.check()
        assert table.blocks.num_used == 0
        assert admitted(table, 1, [*SYSTEM, 1, 2, 3]).num_computed == 4

    def test_blocks_of_a_sequence_that_failed_are_forgotten(self) -> None:
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, [*SYSTEM, 1])
        run(table, first, 8)
        beside = admitted(table, 1, [*SYSTEM, 2])
        run(table, first, 1, error="NaN in the logits")
        assert table.prefix.status().num_blocks == 0
        run(table, beside, 1, 50)
        table.cancel(1)
        table.check()
        assert table.blocks.num_free == table.blocks.num_total


class TestSideBySide:
    """Sequences that run at the same time."""

    def test_equal_prompts_are_computed_once(self) -> None:
        """n choices of one prompt: whoever comes next goes on where anybody has got to."""
        table = make_table(block_size=4, shares=True)
        first, second = (put(table, seq_id, [*SYSTEM, 1, 2, 3]) for seq_id in (0, 1))
        table.admit(99)
        num_before = table.blocks.num_used
        run(table, first, 4)
        run(table, second, 4)
        assert (second.num_computed, second.num_cached) == (8, 4)
        table.secure_next_tokens()
        assert (first.num_computed, first.num_cached) == (8, 0), "what it shares behind what it computed isn't cached"
        assert first.block_ids[:2] == second.block_ids[:2]
        assert table.blocks.num_used == num_before - 2
        assert table.prefix.status().num_saved_tokens == 8
        table.check()

    def test_a_block_that_was_begun_is_given_back_for_a_full_one(self) -> None:
        table = make_table(block_size=4, shares=True)
        first, second = (put(table, seq_id, [*SYSTEM, 1]) for seq_id in (0, 1))
        table.admit(99)
        run(table, first, 6)
        first.num_primed = 7
        run(table, second, 4)
        assert (second.num_computed, second.num_primed) == (8, 0)
        table.secure_next_tokens()
        assert (first.num_computed, first.num_primed) == (8, 4), "the new block's head slots aren't built"
        assert table.prefix.status().num_saved_tokens == 4 + 2

    def test_equal_blocks_made_side_by_side_are_published_once(self) -> None:
        table = make_table(block_size=4, shares=True)
        both = [put(table, seq_id, [*SYSTEM, 1]) for seq_id in (0, 1)]
        table.admit(99)
        plan = StepPlan(tuple(table.row(sequence, 8) for sequence in both))
        table.commit(plan, [RowOutcome(), RowOutcome()])
        table.check()
        assert table.prefix.status().num_blocks == 2
        for seq_id in (0, 1):
            table.cancel(seq_id)
            table.check()

    def test_a_preempted_sequence_comes_back_through_its_own_blocks(self) -> None:
        table = make_table(block_size=4, shares=True)
        sequence = admitted(table, 0, [*SYSTEM, 1])
        run(table, sequence, 9, 50)
        table.preempt(sequence)
        table.check()
        assert table.admit(99) == [sequence]
        assert (sequence.num_computed, sequence.num_cached) == (8, 0), "it has paid for them before"

    def test_who_comes_to_decode_by_sharing_joins_that_line_as_a_newcomer(self) -> None:
        """Two preempted sequences have emitted the same; one computes it again, beside one that was served long."""
        table = make_table(block_size=4, shares=True)
        sequences = [admitted(table, seq_id, SYSTEM) for seq_id in (0, 1)]
        veteran = admitted(table, 2, [1, 2])
        for sequence in (*sequences, veteran):
            run(table, sequence, 9, 50)
        for sequence in sequences:
            table.prefix.forget(sequence.block_ids)
            table.preempt(sequence)
        for token_id in range(60, 66):
            run(table, veteran, 1, token_id)
        assert table.admit(99) == sequences
        run(table, sequences[0], 8)
        assert not sequences[1].is_decoding
        table.secure_next_tokens()
        assert sequences[1].is_decoding
        assert sequences[1].num_served == 1 + min(veteran.num_served, sequences[0].num_served)


class TestRoom:
    def test_who_shares_needs_less_to_start(self) -> None:
        table = make_table(num_blocks=5, block_size=4, shares=True)
        first = admitted(table, 0, [*SYSTEM, 1], max_tokens=4)
        run(table, first, 9, 50)
        stranger, friend = put(table, 1, [*range(20, 30)], max_tokens=1), put(table, 2, [*SYSTEM, 2, 3], max_tokens=1)
        assert table.admit(99) == [friend]
        assert table.blocks.num_used == 4
        assert stranger.num_overtaken == 1
        table.check()

    def test_kept_blocks_are_free_and_go_when_they_are_needed_the_ends_first(self) -> None:
        table = make_table(num_blocks=5, block_size=4, shares=True)
        served(table, 0, [*SYSTEM, 1, 2, 3, 4, 5])
        assert (table.blocks.num_free, table.prefix.status().num_blocks) == (5, 3)
        admitted(table, 1, [*range(20, 32)], max_tokens=1)
        assert table.prefix.status().num_evictions == 1
        assert len(table.prefix.find(put(table, 2, [*SYSTEM, 1, 2, 3, 4, 5]))) == 2

    def test_what_was_used_last_stays_longest(self) -> None:
        table = make_table(num_blocks=4, block_size=4, shares=True)
        old, new = [*SYSTEM[:4], 1], [*range(20, 24), 1]
        served(table, 0, old)
        served(table, 1, new)
        served(table, 2, old)
        admitted(table, 3, [*range(40, 52)], max_tokens=1)
        assert [len(table.prefix.find(put(table, 4 + i, prompt))) for i, prompt in enumerate((old, new))] == [1, 0]

    def test_make_way_counts_a_shared_block_only_when_its_last_holder_goes(self) -> None:
        """Ten blocks; three sequences hold two together and one or two alone."""
        table = make_table(num_blocks=10, block_size=4, shares=True)
        running = [admitted(table, 0, [*SYSTEM, 1, 2], max_tokens=2)]
        run(table, running[0], 10, 50)
        running += [admitted(table, seq_id, [*SYSTEM, seq_id, 2], max_tokens=2) for seq_id in (1, 2)]
        put(table, 3, [*range(30, 58)], max_tokens=1)
        assert table.blocks.num_used == 5
        assert table.make_way(99, running[:1]) == []
        assert table.make_way(99, running) == running[:2]
        assert [sequence.seq_id for sequence in table.admit(99)] == [3]
        table.check()

    def test_make_way_does_not_count_on_what_it_takes_away(self) -> None:
        """The head would share its victim's blocks; once nobody holds them they are free ones that it takes."""
        table = make_table(num_blocks=7, block_size=4, shares=True)
        victim = admitted(table, 0, [*SYSTEM, 1, 2], max_tokens=4)
        run(table, victim, 10, 50)
        stays = admitted(table, 1, [*range(20, 30)], max_tokens=2)
        run(table, stays, 10, 50)
        head = put(table, 2, [*SYSTEM, *range(40, 55)], max_tokens=1)  # six blocks, and three stay with the other
        assert table.make_way(99, [victim]) == []
        assert table.make_way(99, [victim, stays]) == [victim, stays]
        assert table.admit(1) == [head]


class TestHeadSlots:
    """How far the draft head's slots in a block are built travels with the block."""

    def build(self, table: SequenceTable, sequence: Sequence, end: int) -> None:
        start = max(1, sequence.num_primed)
        token_ids = tuple(sequence.token_ids[start:end])
        table.set_drafts(DraftRequest(sequence.seq_id, start, token_ids, tuple(sequence.block_ids), 0), [])

    @pytest.mark.parametrize(("end", "num_primed"), [(3, 0), (4, 4), (7, 4), (8, 8), (9, 8)])
    def test_whole_blocks_count(self, end: int, num_primed: int) -> None:
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, [*SYSTEM, 1, 2])
        run(table, first, 9)
        self.build(table, first, end)
        assert admitted(table, 1, [*SYSTEM, 3]).num_primed == num_primed

    def test_slots_built_before_the_block_was_full_count_too(self) -> None:
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, [*SYSTEM, 1, 2])
        run(table, first, 7)
        self.build(table, first, 8)
        run(table, first, 2)
        assert admitted(table, 1, [*SYSTEM, 3]).num_primed == 8

    def test_what_a_neighbour_builds_later_is_taken_over(self) -> None:
        table = make_table(block_size=4, shares=True)
        first = admitted(table, 0, [*SYSTEM, 1, 2])
        run(table, first, 9)
        second = admitted(table, 1, [*SYSTEM, 3])
        self.build(table, first, 9)
        assert second.num_primed == 0
        table.secure_next_tokens()
        assert second.num_primed == 8
        table.check()

    def test_a_gap_is_not_jumped(self) -> None:
        """The second block's slots stay when the first block goes and is made again without them."""
        table = make_table(num_blocks=8, block_size=4, shares=True)
        first = admitted(table, 0, [*SYSTEM, 1, 2], max_tokens=1)
        run(table, first, 9)
        self.build(table, first, 9)
        table.prefix.forget(first.block_ids[:1])
        table.cancel(0)
        served(table, 1, SYSTEM[:5])
        assert admitted(table, 2, [*SYSTEM, 3]).num_computed == 8
        assert table.get(2).num_primed == 0  # type: ignore[union-attr]
