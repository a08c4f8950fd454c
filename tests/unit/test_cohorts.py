"""Who is in a cohort with whom, what a cohort's texts propose, what is learned of them, and what is let go of."""

from __future__ import annotations

import random

import pytest

from mtplx.batching.cohorts import COMMON_TOKENS, MAX_IDLE, Cohorts
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import Likely, RowOutcome, Sequence, StepPlan, StopRules
from mtplx.batching.suffix_index import Run
from tests.simulator import make_table

TEMPLATE = [1, 2, 3]
COMMON = list(range(100, 100 + COMMON_TOKENS))


def put(table: SequenceTable, seq_id: int, prompt: list[int], **options: object) -> Sequence:
    stops = StopRules(40, frozenset({99}))
    sequence = Sequence(seq_id, list(prompt), len(prompt), stops, **options)  # type: ignore[arg-type]
    table.add(sequence)
    table.admit(99)
    return sequence


def say(table: SequenceTable, sequence: Sequence, *token_ids: int) -> None:
    """Its next tokens, each of a step of its own."""
    for token_id in token_ids:
        table.secure_next_tokens()
        table.commit(StepPlan((table.row(sequence, sequence.num_pending),)), [RowOutcome((token_id,))])


class Room:
    """A table and its cohorts."""

    def __init__(self) -> None:
        self.table = make_table(num_blocks=2000, block_size=4)
        self.cohorts = Cohorts(TEMPLATE)

    def join(self, seq_id: int, prompt: list[int], **options: object) -> Sequence:
        sequence = put(self.table, seq_id, prompt, **options)
        self.sync()
        return sequence

    def sync(self) -> None:
        self.cohorts.sync(self.table)
        self.cohorts.check()

    @property
    def sizes(self) -> tuple[int, int]:
        status = self.cohorts.status()
        return status.num_cohorts, status.num_members


class TestMembership:
    @pytest.mark.parametrize(
        ("one", "other", "is_shared"),
        [
            ([*TEMPLATE, *COMMON, 5], [*TEMPLATE, *COMMON, 6], True),
            ([*COMMON, 5], [*COMMON, 6], True),  # without the template's beginning
            ([*TEMPLATE[:2], *COMMON, 5], [*TEMPLATE[:2], *COMMON, 6], True),  # a system prompt of its own
            ([*TEMPLATE, *COMMON[:-1], 5], [*TEMPLATE, *COMMON[:-1], 6], False),  # one token too few
            ([*TEMPLATE[:2], *COMMON[:-1], 5], [*TEMPLATE[:2], *COMMON[:-1], 6], False),
            ([*TEMPLATE, *COMMON], [*COMMON, *COMMON], False),
            ([*TEMPLATE, 5], [*TEMPLATE, 5], False),  # equal but short
        ],
    )
    def test_by_what_they_have_in_common_beyond_the_template(
        self, one: list[int], other: list[int], is_shared: bool
    ) -> None:
        room = Room()
        room.join(0, one)
        assert room.sizes == (0, 0), "one alone is no cohort"
        room.join(1, other)
        assert room.sizes == ((1, 2) if is_shared else (0, 0))

    def test_by_their_own_word_whatever_they_begin_with(self) -> None:
        room = Room()
        room.join(0, [5, 6], cohort=b"a")
        room.join(1, [7], cohort=b"a")
        room.join(2, [7], cohort=b"b")
        assert room.sizes == (1, 2)
        room.join(3, [*COMMON, 5], cohort=b"b")
        room.join(4, [*COMMON, 5])
        assert room.sizes == (2, 4)

    def test_never_across_salts(self) -> None:
        room = Room()
        for seq_id, salt in enumerate([b"", b"one", b"other"]):
            room.join(seq_id, [*COMMON, 5], cache_salt=salt)
            room.join(10 + seq_id, [8, 9], cache_salt=salt, cohort=b"same")
        assert room.sizes == (0, 0)
        room.join(20, [*COMMON, 6], cache_salt=b"one")
        assert room.sizes == (1, 2)

    def test_joined_and_left_at_any_step(self) -> None:
        room = Room()
        first = room.join(0, [*COMMON, 5])
        say(room.table, first, 20, 21)
        second = room.join(1, [*COMMON, 6])
        assert room.sizes == (1, 2)
        room.table.cancel(first.seq_id)
        room.sync()
        assert room.sizes == (1, 1), "who is left has known another"
        say(room.table, second, 22, 99)
        room.sync()
        assert room.sizes == (0, 0)
        room.join(2, [*COMMON, 7])
        assert room.sizes == (1, 1), "past members count"

    def test_a_number_that_is_used_again_is_another_member(self) -> None:
        room = Room()
        room.join(0, [*COMMON, 5])
        room.table.cancel(0)
        again = room.join(0, [7, 8, 9])
        assert room.cohorts.find(again, (), 4) is None
        room.cohorts.check()

    def test_who_is_preempted_stays(self) -> None:
        room = Room()
        room.join(0, [*COMMON, 5])
        second = room.join(1, [*COMMON, 6])
        room.table.preempt(second)
        room.sync()
        assert room.sizes == (1, 2)


class TestTexts:
    def test_a_member_is_proposed_what_another_said_before_and_so_is_who_comes_later(self) -> None:
        room = Room()
        first = room.join(0, [*COMMON, 5])
        second = room.join(1, [*COMMON, 6])
        say(room.table, first, 20, 21, 22, 23, 24)
        say(room.table, second, 20, 21, 22)
        room.sync()
        assert room.cohorts.find(second, (), 8) == Run((23, 24), 3)
        room.table.cancel(0)
        room.sync()
        third = room.join(2, [*COMMON, 7])
        say(room.table, third, 19, 20, 21, 22)
        room.sync()
        assert room.cohorts.find(third, (), 1) == Run((23,), 3)

    def test_behind_guesses_it_goes_on_as_if_they_were_said(self) -> None:
        room = Room()
        first, second = room.join(0, [*COMMON, 5]), room.join(1, [*COMMON, 6])
        say(room.table, first, 20, 21, 22, 23, 24)
        say(room.table, second, 20)
        room.sync()
        assert room.cohorts.find(second, (), 8) is None
        assert room.cohorts.find(second, (21, 22), 8) == Run((23, 24), 3)

    def test_a_run_ends_before_the_answer_does(self) -> None:
        room = Room()
        first, second = room.join(0, [*COMMON, 5]), room.join(1, [*COMMON, 6])
        say(room.table, first, 20, 21, 22, 23, 99)
        say(room.table, second, 20, 21, 22)
        room.sync()
        assert room.cohorts.find(second, (), 8) == Run((23,), 3)
        say(room.table, second, 23)
        room.sync()
        assert room.cohorts.find(second, (), 8) is None, "the end is the next"

    def test_ones_own_prompt_is_a_text_too(self) -> None:
        room = Room()
        alone = room.join(0, [31, 32, 33, 34, 35])
        say(room.table, alone, 31, 32, 33)
        room.sync()
        assert room.cohorts.find(alone, (), 8) == Run((34, 35, 31, 32, 33), 3)
        assert room.sizes == (0, 0)

    def test_strangers_propose_nothing(self) -> None:
        room = Room()
        first = room.join(0, [*COMMON, 5], cache_salt=b"one")
        other = room.join(1, [*COMMON, 6], cache_salt=b"other")
        say(room.table, first, 20, 21, 22, 23)
        say(room.table, other, 20, 21, 22)
        room.sync()
        assert room.cohorts.find(other, (), 8) is None

    def test_a_common_beginning_is_kept_once(self) -> None:
        room = Room()
        sizes = []
        for seq_id in range(4):
            room.join(seq_id, [*COMMON, *range(500, 700), seq_id])
            sizes.append(room.cohorts.status().index_bytes)
        per_token = (sizes[3] - sizes[2]) / 1
        assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == per_token < 100, "one token more for each"


class TestLuck:
    """A text also remembers what else might have come; who follows it goes where its own noise would lead."""

    @staticmethod
    def heard(room: Room, sequence: Sequence, token_id: int, likely: Likely) -> None:
        position = len(sequence.token_ids)
        say(room.table, sequence, token_id)
        room.cohorts.heard(sequence.seq_id, position, [likely])

    def test_a_run_goes_where_luck_leads_it(self) -> None:
        room = Room()
        first = room.join(0, [*COMMON, 5])
        for token_id in (10, 11, 12):
            self.heard(room, first, token_id, ((token_id, *range(20, 27)), (0.0,) * 8))
        second = room.join(1, [*COMMON, 5])
        assert room.cohorts.find(second, (), 8) == Run((10, 11, 12), 16)
        asked = []

        def luck(seq_id: int, position: int, likely: Likely) -> int:
            asked.append((seq_id, position))
            return likely[0][0 if likely[0][0] == 10 else 1]

        room.cohorts.use_luck(luck)
        assert room.cohorts.find(second, (), 8) == Run((10, 20), 16), "and nothing is known of what follows 20"
        assert asked == [(1, len(COMMON) + 1), (1, len(COMMON) + 2)]
        assert room.cohorts.find(second, (), 8, num_lucky=1) == Run((10, 11, 12), 16)
        assert room.cohorts.find(second, (10,), 8) == Run((20,), 16)

    def test_what_is_heard_of_tokens_that_were_cut_is_never_used(self) -> None:
        room = Room()
        first = room.join(0, [*COMMON, 5])
        room.cohorts.heard(0, len(COMMON) + 3, [((7, *range(20, 27)), (0.0,) * 8)])
        say(room.table, first, 10, 11)
        second = room.join(1, [*COMMON, 5])
        room.cohorts.use_luck(lambda *_: 7)
        assert room.cohorts.find(second, (), 8) == Run((10, 11), 16)


class TestBounds:
    def test_idle_cohorts_are_forgotten_the_one_joined_longest_ago_first(self) -> None:
        room = Room()
        for seq_id in range(MAX_IDLE + 3):
            room.join(seq_id, [7], cohort=b"%d" % seq_id)
            room.table.cancel(seq_id)
        room.sync()
        assert room.cohorts.status().num_indexes == MAX_IDLE
        room.join(1000, [7], cohort=b"0")
        room.join(1001, [7], cohort=b"%d" % (MAX_IDLE + 2))
        assert room.sizes == (1, 1), "the first was forgotten, the last wasn't"

    def test_who_can_share_with_nobody_leaves_nothing(self) -> None:
        room = Room()
        for seq_id in range(20):
            room.join(seq_id, [5, seq_id])
        assert room.cohorts.status().num_indexes == 20
        for seq_id in range(20):
            room.table.cancel(seq_id)
        room.sync()
        assert room.cohorts.status().index_bytes == 0

    def test_thousands_of_joins_and_leaves(self) -> None:
        """Their tokens come as they would, and each joins, leaves or ends between any two steps."""
        rng, room = random.Random(3), Room()
        live: list[Sequence] = []
        for seq_id in range(1500):
            if len(live) > 12:
                gone = live.pop(rng.randrange(len(live)))
                room.table.cancel(gone.seq_id)
            for sequence in live:
                if rng.random() < 0.2:
                    say(room.table, sequence, rng.randrange(100, 120))
            live = [sequence for sequence in live if room.table.get(sequence.seq_id) is sequence]
            common = rng.choice([[], COMMON, COMMON[::-1]])
            cohort = rng.choice([b"", b"", b"%d" % rng.randrange(100)])
            live.append(room.join(seq_id, [*common, rng.randrange(50)], cohort=cohort))
        assert room.cohorts.status().num_indexes <= MAX_IDLE + len(live)


class TestWhatIsBelieved:
    def test_long_matches_are_judged_by_themselves(self) -> None:
        room = Room()
        sequence = room.join(0, [*COMMON, 5])
        short, long = Run((1,) * 8, 3), Run((1,) * 8, 16)
        for _ in range(30):
            room.cohorts.verified(sequence, 3, 8, 0)
            room.cohorts.verified(sequence, 16, 8, 8)
        assert sum(room.cohorts.survivals(sequence, short)) < 0.6
        assert sum(room.cohorts.survivals(sequence, long)) > 6

    def test_a_cohorts_own_luck_counts_more_than_that_of_all(self) -> None:
        room = Room()
        good, bad = room.join(0, [5], cohort=b"good"), room.join(1, [5], cohort=b"bad")
        run = Run((1,) * 8, 8)
        for _ in range(40):
            room.cohorts.verified(good, 8, 8, 8)
            room.cohorts.verified(bad, 8, 8, 0)
        assert room.cohorts.survivals(good, run)[0] > 0.8
        assert room.cohorts.survivals(bad, run)[0] < 0.3

    def test_what_is_passed_over_is_tried_again_in_time(self) -> None:
        room = Room()
        sequence = room.join(0, [*COMMON, 5])
        run = Run((1,) * 8, 3)
        for _ in range(100):
            room.cohorts.verified(sequence, 3, 8, 0)
        believed = sum(room.cohorts.survivals(sequence, run))
        for _ in range(5000):
            room.cohorts.passed_over(sequence, 3, 0)
        assert believed < 0.1
        assert room.cohorts.survivals(sequence, run)[0] > 0.5
