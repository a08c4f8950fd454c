"""What a head is asked: every slot once the model allows it, no draft past the answer, no block that others need."""

from __future__ import annotations

import pytest

from mtplx.batching.depth import FixedDepth
from mtplx.batching.drafting import Speculator, num_unprimed
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import DraftRequest, RowOutcome, Sequence, StepPlan, StopRules
from tests.simulator import make_table


class Head:
    """Answers every request in full and keeps it."""

    def __init__(self) -> None:
        self.requests: list[DraftRequest] = []

    def __call__(self, requests: list[DraftRequest]) -> list[tuple[int, ...]]:
        self.requests = list(requests)
        return [tuple(range(90, 90 + request.depth)) for request in requests]


def speculator(depth: int) -> Speculator:
    return Speculator(FixedDepth(depth), prefill_chunk_tokens=64)


def put(table: SequenceTable, seq_id: int, prompt_len: int, max_tokens: int, cap: int | None = None) -> Sequence:
    prompt = list(range(10, 10 + prompt_len))
    sequence = Sequence(seq_id, prompt, prompt_len, StopRules(max_tokens), max_draft_depth=cap)
    table.add(sequence)
    assert table.admit(99) == [sequence]
    return sequence


def run(table: SequenceTable, sequence: Sequence, max_tokens: int, *token_ids: int) -> None:
    table.secure_next_tokens()
    table.commit(StepPlan((table.row(sequence, max_tokens),)), [RowOutcome(token_ids)])
    table.check()


def test_the_protocols_own_example() -> None:
    """Prompt of four, two drafts, the first accepted: the slots that are asked for are those of the drawing."""
    table, head, spec = make_table(), Head(), speculator(2)
    sequence = put(table, 0, prompt_len=4, max_tokens=20)
    run(table, sequence, 4, 50)
    spec.draft(table, head, [sequence])
    (first,) = head.requests
    assert (first.start, first.token_ids, first.depth, first.end) == (1, (11, 12, 13, 50), 2, 5)
    run(table, sequence, 3, 90, 60)
    spec.draft(table, head, [sequence])
    (second,) = head.requests
    assert (second.start, second.token_ids, second.depth) == (5, (90, 60), 2)


@pytest.mark.parametrize("chunk", [1, 3, 5, 12])
def test_slots_are_built_along_the_chunks_and_the_edges_take_the_next_chunks_first_token(chunk: int) -> None:
    table, head, spec = make_table(), Head(), speculator(2)
    sequence = put(table, 0, prompt_len=12, max_tokens=9)
    built: list[int] = []
    while not sequence.is_decoding:
        spec.draft(table, head, [], [sequence])
        for request in head.requests:
            assert request.depth == 0
            assert request.end == sequence.num_computed + 1
            built += range(request.start, request.end)
        head.requests = []
        run(table, sequence, chunk, *((50,) if sequence.num_pending <= chunk else ()))
    spec.draft(table, head, [sequence])
    built += range(head.requests[0].start, head.requests[0].end)
    assert built == list(range(1, 13)), "each slot once, up to that of the first emitted token"


def test_without_hope_for_drafts_nothing_is_built_and_all_of_it_later() -> None:
    table, head = make_table(), Head()
    sequence = put(table, 0, prompt_len=12, max_tokens=30)
    run(table, sequence, 12, 50)
    for token_id in range(51, 57):
        speculator(0).draft(table, head, [sequence])
        run(table, sequence, 1, token_id)
    assert head.requests == []
    assert num_unprimed(sequence) == 18
    speculator(1).draft(table, head, [sequence])
    assert head.requests[0].token_ids == tuple(sequence.token_ids[1:])


def test_who_is_far_behind_catches_up_before_it_drafts() -> None:
    table, head, spec = make_table(num_blocks=200, block_size=4), Head(), speculator(2)
    sequence = put(table, 0, prompt_len=600, max_tokens=30)
    run(table, sequence, 600, 50)
    seen = []
    for token_id in range(51, 54):
        spec.draft(table, head, [sequence])
        seen.append((head.requests[0].start, len(head.requests[0].token_ids), head.requests[0].depth))
        run(table, sequence, 1, token_id)
    assert seen == [(1, 256, 0), (257, 256, 0), (513, 90, 2)]


def test_slots_that_are_built_are_built_again_only_where_guesses_start() -> None:
    table, head, spec = make_table(), Head(), speculator(2)
    sequence = put(table, 0, prompt_len=4, max_tokens=20)
    run(table, sequence, 4, 50)
    spec.draft(table, head, [sequence])
    spec.draft(table, head, [sequence])
    assert (head.requests[0].start, head.requests[0].token_ids) == (4, (50,))


def test_a_head_that_failed_is_asked_for_the_same_slots_again() -> None:
    table, head, spec = make_table(), Head(), speculator(2)
    sequence = put(table, 0, prompt_len=4, max_tokens=20)
    run(table, sequence, 4, 50)
    spec.draft(table, lambda requests: None, [sequence])
    assert sequence.draft_ids == []
    spec.draft(table, head, [sequence])
    assert head.requests[0].start == 1
    assert sequence.draft_ids == [90, 91]


@pytest.mark.parametrize("is_decoding", [True, False])
def test_slots_of_shared_blocks_are_built_by_one_and_taken_over_by_the_others(is_decoding: bool) -> None:
    """Three sequences on one prefix of twelve tokens, whose slots nobody has built yet."""
    table, head, spec = make_table(block_size=4, shares=True), Head(), speculator(2)
    sequences = []
    for seq_id in range(3):
        sequences.append(put(table, seq_id, prompt_len=14, max_tokens=20))
        num_tokens = (14 if is_decoding else 13) - sequences[-1].num_computed
        run(table, sequences[-1], num_tokens, *((50,) if is_decoding else ()))
    lines = (sequences, []) if is_decoding else ([], sequences)
    spec.draft(table, head, *lines)
    assert [(request.seq_id, request.start) for request in head.requests] == [(0, 1)]
    table.secure_next_tokens()
    spec.draft(table, head, *lines)
    expected = [(0, 14), (1, 12), (2, 12)] if is_decoding else [(1, 12), (2, 12)]
    assert [(request.seq_id, request.start) for request in head.requests] == expected


@pytest.mark.parametrize(
    ("max_tokens", "cap", "depth"), [(20, None, 8), (20, 3, 3), (20, 0, 0), (5, None, 3), (2, None, 0)]
)
def test_depth_ends_at_the_requests_cap_and_one_before_its_last_token(
    max_tokens: int, cap: int | None, depth: int
) -> None:
    """One token is emitted; of the rest one comes without a draft."""
    table, head = make_table(), Head()
    sequence = put(table, 0, prompt_len=4, max_tokens=max_tokens, cap=cap)
    run(table, sequence, 4, 50)
    speculator(8).draft(table, head, [sequence])
    assert len(sequence.draft_ids) == depth
    assert bool(head.requests) == (depth > 0)


def test_a_budget_of_drafts_goes_to_the_first_rows() -> None:
    table, head = make_table(), Head()
    sequences = [put(table, seq_id, prompt_len=4, max_tokens=20) for seq_id in range(3)]
    for sequence in sequences:
        run(table, sequence, 4, 50)
    speculator(3).draft(table, head, sequences, max_drafts=4)
    assert [len(sequence.draft_ids) for sequence in sequences] == [3, 1, 0]


class TestForced:
    """Drafts that a grammar makes: no head is asked for them, and none has to be there."""

    def put(self, table: SequenceTable, seq_id: int, *forced_ids: int, cap: int | None = None) -> Sequence:
        sequence = put(table, seq_id, prompt_len=4, max_tokens=20, cap=cap)
        plan = StepPlan((table.row(sequence, 4),))
        table.commit(plan, [RowOutcome((50,), forced_ids=forced_ids)])
        return sequence

    def step(self, table: SequenceTable, spec: Speculator, sequence: Sequence, *token_ids: int) -> None:
        plan, outcomes = StepPlan((table.row(sequence, 1 + len(sequence.draft_ids)),)), [RowOutcome(token_ids)]
        spec.commit(plan, outcomes, table)
        table.commit(plan, outcomes)
        table.check()

    def test_what_is_forced_is_proposed_and_the_others_are_asked_of_the_head(self) -> None:
        table, head, spec = make_table(), Head(), speculator(3)
        forced, free = self.put(table, 0, 60, 61, 62, 63), self.put(table, 1)
        spec.draft(table, head, [forced, free])
        assert forced.draft_ids == [60, 61, 62], "no deeper than others"
        assert [request.seq_id for request in head.requests if request.depth] == [1]
        assert free.draft_ids == [90, 91, 92]

    def test_they_need_no_head(self) -> None:
        table, spec = make_table(), speculator(3)
        forced, free = self.put(table, 0, 60), self.put(table, 1)
        spec.draft(table, None, [forced, free])
        assert (forced.draft_ids, free.draft_ids) == ([60], [])

    def test_the_requests_cap_and_the_steps_budget_hold(self) -> None:
        table, spec = make_table(), speculator(4)
        first, second = self.put(table, 0, 60, 61, 62, cap=2), self.put(table, 1, 60, 61, 62)
        spec.draft(table, None, [first, second], max_drafts=3)
        assert (first.draft_ids, second.draft_ids) == ([60, 61], [60])

    @pytest.mark.parametrize("head", [None, Head()])
    def test_that_the_budget_leaves_no_place_for_them_is_said(self, head: Head | None) -> None:
        table, spec = make_table(), speculator(3)
        sequence = self.put(table, 0, 60, 61)
        spec.draft(table, head, [sequence], max_drafts=0)
        self.step(table, spec, sequence, 70)
        assert "no blocks or budget" in (spec.why_none or "")

    def test_a_head_of_which_more_is_expected_goes_first(self) -> None:
        table, head, spec = make_table(), Head(), speculator(4)
        sequence = self.put(table, 0, 60)
        spec.draft(table, head, [sequence])
        assert sequence.draft_ids == [90, 91, 92, 93]

    def test_what_came_of_them_is_not_the_heads_doing(self) -> None:
        table, spec = make_table(num_blocks=100), speculator(2)
        sequence = self.put(table, 0, 60, 61)
        before = spec.policy.survivals(0, 2)
        spec.draft(table, None, [sequence])
        self.step(table, spec, sequence, 60, 61, 70)
        assert spec.policy.survivals(0, 2) == before
        assert spec.last_depths == {0: 2}

    def test_those_that_are_never_right_give_way_and_are_tried_again(self) -> None:
        """The head has been right half of the time."""
        table, head, spec = make_table(num_blocks=600), Head(), speculator(2)
        for _ in range(60):
            spec.policy.verified(0, 2, 1)
        sequence = put(table, 0, prompt_len=4, max_tokens=2000)
        run(table, sequence, 4, 50)
        from_grammar = []
        for _ in range(800):
            sequence.forced_ids = (60, 61)
            table.secure_next_tokens()
            spec.draft(table, head, [sequence])
            from_grammar.append(sequence.draft_ids == [60, 61])
            is_right = sequence.draft_ids != [60, 61]
            self.step(table, spec, sequence, *((90, 70) if is_right else (70,)))
        assert from_grammar[0]
        assert sum(from_grammar) < 10
        assert any(from_grammar[100:])

    def test_slots_that_were_left_out_meanwhile_are_built_later(self) -> None:
        table, head, spec = make_table(), Head(), speculator(2)
        sequence = self.put(table, 0, 60, 61)
        spec.draft(table, head, [sequence])
        assert not head.requests
        self.step(table, spec, sequence, 60, 61, 70)
        spec.draft(table, head, [sequence])
        assert (head.requests[0].start, head.requests[0].token_ids) == (1, (11, 12, 13, 50, 60, 61, 70))


class TestBlocks:
    def test_drafts_take_only_what_no_neighbour_needs_next(self) -> None:
        """Seven blocks of two: each holds two and may need one more, so one draft block is all there is."""
        table, head = make_table(num_blocks=7, block_size=2), Head()
        sequences = [put(table, seq_id, prompt_len=3, max_tokens=9) for seq_id in range(2)]
        for sequence in sequences:
            run(table, sequence, 3, 50)
        speculator(8).draft(table, head, sequences)
        assert [len(sequence.draft_ids) for sequence in sequences] == [2, 0]
        assert table.blocks.num_free == 2
        table.check()

    def test_blocks_of_drafts_come_back_before_anybody_is_preempted(self) -> None:
        table, head = make_table(num_blocks=8, block_size=2), Head()
        first = put(table, 0, prompt_len=3, max_tokens=11)
        second = put(table, 1, prompt_len=3, max_tokens=11)
        for sequence in (first, second):
            run(table, sequence, 3, 50)
        speculator(4).draft(table, head, [second])
        assert len(second.block_ids) > 2
        for token_id in range(51, 57):  # the first grows alone until no block is free
            run(table, first, 1, token_id)
        assert table.num_preemptions == 0
        assert table.row(second, 5).num_drafts < 4, "its drafts got shorter"
        table.check()

    def test_blocks_of_drafts_come_back_for_a_newcomer(self) -> None:
        table, head = make_table(num_blocks=8, block_size=2), Head()
        first = put(table, 0, prompt_len=3, max_tokens=9)
        run(table, first, 3, 50)
        speculator(6).draft(table, head, [first])
        held = len(first.block_ids)
        newcomer = Sequence(1, list(range(8)), 8, StopRules(2))
        table.add(newcomer)
        assert table.admit(9) == [newcomer]
        assert len(first.block_ids) < held
        table.check()

    def test_a_preempted_sequence_builds_everything_anew(self) -> None:
        table, head = make_table(), Head()
        sequence = put(table, 0, prompt_len=4, max_tokens=20)
        run(table, sequence, 4, 50)
        speculator(2).draft(table, head, [sequence])
        table.preempt(sequence)
        table.check()
        assert sequence.draft_ids == []
        table.admit(9)
        run(table, sequence, 9, 60)
        speculator(2).draft(table, head, [sequence])
        assert head.requests[0].start == 1
