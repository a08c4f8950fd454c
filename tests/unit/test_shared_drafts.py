"""Which source a row's drafts come from, how far each goes, and what each learns: with a scripted head."""

from __future__ import annotations

from mtplx.batching.cohorts import Cohorts
from mtplx.batching.depth import AdaptiveDepth, FixedDepth
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.shared_drafts import SharedSpeculator
from mtplx.batching.speculation import Costs, CostTable, DraftCost
from mtplx.batching.state import DraftRequest, RowOutcome, Sequence, StepPlan, StopRules
from tests.simulator import make_table

PROMPT = list(range(100, 140))
FREE = Costs(CostTable((1.0,) * 128), DraftCost())


class Desk:
    """A cohort whose first two members have said two different things after the same three tokens."""

    def __init__(self, policy: AdaptiveDepth | FixedDepth, *, max_depth: int = 8) -> None:
        self.table: SequenceTable = make_table(num_blocks=400, block_size=4)
        self.cohorts = Cohorts()
        self.speculator = SharedSpeculator(policy, self.cohorts, prefill_chunk_tokens=64, max_depth=max_depth)
        self.guesses: list[int] = []
        self.asked: list[DraftRequest] = []
        for seq_id, text in enumerate(([20, 21, 22, 30, 31, 32, 33, 34, 35], [20, 21, 22, 40, 41, 42, 43, 44, 45])):
            self.say(self.join(seq_id), *text)
        self.third = self.join(2)
        self.say(self.third, 20, 21, 22)

    def join(self, seq_id: int) -> Sequence:
        sequence = Sequence(seq_id, [*PROMPT, seq_id], len(PROMPT) + 1, StopRules(60))
        self.table.add(sequence)
        self.table.admit(99)
        self.cohorts.sync(self.table)
        return sequence

    def say(self, sequence: Sequence, *token_ids: int) -> None:
        for token_id in token_ids:
            self.table.secure_next_tokens()
            row = self.table.row(sequence, sequence.num_pending)
            self.table.commit(StepPlan((row,)), [RowOutcome((token_id,))])
        self.cohorts.sync(self.table)

    def draft(self, *sequences: Sequence, has_head: bool = True) -> list[list[int]]:
        """The drafts of one step; the head guesses what it was told, as far as it is asked."""
        self.asked = []
        self.speculator.draft(self.table, self.head if has_head else None, sequences)
        return [sequence.draft_ids for sequence in sequences]

    def head(self, requests: list[DraftRequest]) -> list[list[int]]:
        self.asked = list(requests)
        return [self.guesses[: request.depth] for request in requests]

    def verify(self, sequence: Sequence, *token_ids: int) -> None:
        plan = StepPlan((self.table.row(sequence, 1 + len(sequence.draft_ids)),))
        outcomes = [RowOutcome(token_ids)]
        self.speculator.commit(plan, outcomes, self.table)
        self.table.commit(plan, outcomes)
        self.cohorts.sync(self.table)

    def believe(self, match_len: int, *, is_right: bool) -> None:
        for _ in range(40):
            self.cohorts.verified(self.third, match_len, 8, 8 if is_right else 0)

    def believe_head(self, *, num_right: int) -> None:
        for _ in range(40):
            self.speculator.policy.verified(self.third.seq_id, 8, num_right)


def test_a_text_that_is_expected_to_last_longer_wins_and_the_head_is_not_asked() -> None:
    desk = Desk(FixedDepth(4))
    desk.believe(3, is_right=True)
    desk.believe_head(num_right=1)
    assert desk.draft(desk.third) == [[40, 41, 42, 43]]
    assert desk.asked == []


def test_a_head_that_is_expected_to_last_longer_wins() -> None:
    desk = Desk(FixedDepth(4))
    desk.believe(3, is_right=False)
    desk.believe_head(num_right=8)
    desk.guesses = [50, 51, 52, 53]
    assert desk.draft(desk.third) == [[50, 51, 52, 53]]
    assert [request.depth for request in desk.asked] == [4]


def test_the_text_goes_on_where_the_heads_first_guess_leads_into_it() -> None:
    """The newest text has 40 there, the head says 30: the older text is known to go on from that."""
    desk = Desk(FixedDepth(5))
    desk.believe(3, is_right=False)
    desk.believe(4, is_right=True)
    desk.believe_head(num_right=1)
    desk.guesses = [30, 90, 91, 92, 93]
    assert desk.draft(desk.third) == [[30, 31, 32, 33, 34]]


def test_by_cost_it_goes_on_further_than_the_head_was_asked_for() -> None:
    desk = Desk(AdaptiveDepth(Costs(CostTable((1.0,) * 128), DraftCost(per_level_s=0.5))), max_depth=1)
    desk.believe(3, is_right=False)
    desk.believe(4, is_right=True)
    desk.believe_head(num_right=1)
    desk.guesses = [30]
    assert desk.draft(desk.third) == [[30, 31, 32, 33, 34, 35]]
    assert [request.depth for request in desk.asked] == [1]


def test_each_row_has_its_own_source_in_one_step() -> None:
    desk = Desk(FixedDepth(3))
    desk.believe(3, is_right=True)
    fourth = desk.join(3)
    desk.say(fourth, 77)
    desk.guesses = [60, 61, 62]
    assert desk.draft(desk.third, fourth) == [[40, 41, 42], [60, 61, 62]]
    assert [request.seq_id for request in desk.asked] == [fourth.seq_id]


def test_one_budget_goes_where_survival_is_likeliest() -> None:
    """A step of three tokens costs as one of two, more costs too much: one draft in all, and the texts' is surer."""
    desk = Desk(AdaptiveDepth(Costs(CostTable((1.0, 1.0, 1.0, 9.0)), DraftCost())))
    desk.believe(3, is_right=True)
    desk.believe_head(num_right=0)
    fourth = desk.join(3)
    desk.say(fourth, 77)
    desk.guesses = [60, 61, 62]
    assert desk.draft(desk.third, fourth) == [[40], []]


def test_each_source_learns_from_its_own_drafts() -> None:
    desk = Desk(FixedDepth(5))
    desk.believe(3, is_right=False)
    desk.believe(4, is_right=True)
    desk.believe_head(num_right=1)
    desk.guesses = [30, 90, 91, 92, 93]
    desk.draft(desk.third)
    desk.verify(desk.third, 30, 31, 32, 7)
    head, index = desk.cohorts.head_counts, desk.cohorts.index_counts
    assert (head.num_draft_tokens, head.num_accepted_tokens) == (1, 1)
    assert (index.num_draft_tokens, index.num_accepted_tokens) == (4, 2)


def test_a_text_learns_nothing_where_the_head_was_wrong_before_it() -> None:
    desk = Desk(FixedDepth(5))
    desk.believe(3, is_right=False)
    desk.believe(4, is_right=True)
    desk.believe_head(num_right=1)
    desk.guesses = [30, 90]
    (token_ids,) = desk.draft(desk.third)
    run = desk.cohorts.find(desk.third, (30,), 4)
    assert run is not None
    believed = desk.cohorts.survivals(desk.third, run)
    desk.verify(desk.third, 7)
    assert len(token_ids) == 5
    assert desk.cohorts.survivals(desk.third, run) == believed
    assert desk.cohorts.index_counts.num_accepted_tokens == 0


def test_without_a_head_texts_draft_alone_and_without_texts_there_is_a_reason() -> None:
    desk = Desk(AdaptiveDepth(FREE))
    assert desk.draft(desk.third, has_head=False) == [[40, 41, 42, 43, 44, 45]]
    desk.verify(desk.third, 7)
    assert desk.draft(desk.third, has_head=False) == [[]]
    desk.verify(desk.third, 8)
    assert desk.speculator.why_none == "no text of a cohort goes on from here, and there is no draft head"


def test_a_limit_for_all_drafts_of_a_step_holds_for_texts() -> None:
    desk = Desk(FixedDepth(4))
    desk.believe(3, is_right=True)
    desk.speculator.draft(desk.table, desk.head, [desk.third], max_drafts=2)
    assert desk.third.draft_ids == [40, 41]


def test_what_a_grammar_forces_goes_before_the_cohorts_texts_and_teaches_nobody() -> None:
    desk = Desk(FixedDepth(4))
    desk.believe(3, is_right=True)
    desk.third.forced_ids = (60, 61)
    assert desk.draft(desk.third, has_head=False) == [[60, 61]]
    before = desk.cohorts.status()
    desk.verify(desk.third, 60, 61, 40)
    after = desk.cohorts.status()
    assert (after.index, after.head) == (before.index, before.head)
    assert desk.third.forced_ids == ()


def test_texts_are_left_alone_for_some_steps_where_what_they_say_is_often_not_worth_its_place() -> None:
    """A dear machine: the run is known and never used, so in time it isn't looked for in every step."""
    desk = Desk(AdaptiveDepth(Costs(CostTable(tuple(1.0 + n for n in range(128))), DraftCost())))
    desk.believe(3, is_right=True)
    looked_up, find = [], desk.cohorts.find

    def counted(*arguments: object, **options: object) -> object:
        looked_up.append(1)
        return find(*arguments, **options)  # type: ignore[arg-type]

    desk.cohorts.find = counted  # type: ignore[method-assign, assignment]
    for _ in range(60):
        assert desk.draft(desk.third) == [[]]
    assert 15 < len(looked_up) < 40

    desk.speculator.policy = FixedDepth(4)
    assert [40, 41, 42, 43] in [desk.draft(desk.third)[0] for _ in range(6)], "and it is looked for again"


def test_without_a_head_a_request_that_wants_no_drafts_is_not_a_text_that_is_missing() -> None:
    desk = Desk(AdaptiveDepth(FREE))
    desk.third.max_draft_depth = 0
    assert desk.draft(desk.third, has_head=False) == [[]]
    desk.verify(desk.third, 30)
    assert desk.speculator.why_none == "no request had room or leave for a draft"
