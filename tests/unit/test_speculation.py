"""The choice of depths is the best there is, gains by every acceptance, and its estimates follow what is observed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.batching.speculation import (
    MAX_DEPTH,
    Acceptance,
    Costs,
    CostTable,
    DraftCost,
    choose_depths,
    priors,
    rate_of,
    survivals,
)

Survivals = list[list[float]]


def as_survivals(acceptances: list[float]) -> list[float]:
    return list(itertools.accumulate(acceptances, lambda one, other: one * other))


def rows(max_rows: int = 3, max_depth: int = 3) -> st.SearchStrategy[Survivals]:
    acceptance = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
    return st.lists(st.lists(acceptance, max_size=max_depth).map(as_survivals), min_size=1, max_size=max_rows)


def tables() -> st.SearchStrategy[Costs]:
    """Step costs that never fall, stairs and flat stretches among them; drafting from free to dear."""
    rises = st.lists(st.one_of(st.just(0.0), st.floats(0, 2)), min_size=1, max_size=14)
    seconds = rises.map(lambda found: tuple(itertools.accumulate(found, initial=1.0)))
    cost = st.one_of(st.just(0.0), st.floats(0, 0.5))
    return st.builds(
        lambda entries, level, token: Costs(CostTable(entries), DraftCost(level, token)), seconds, cost, cost
    )


@settings(max_examples=300, deadline=None)
@given(rows(), tables())
def test_no_other_depths_promise_more(row_survivals: Survivals, costs: Costs) -> None:
    """Exhaustive search over every vector of depths, with the cost of each level and each draft."""
    chosen = choose_depths(row_survivals, costs)
    vectors = itertools.product(*(range(len(survival) + 1) for survival in row_survivals))
    best = max(rate_of(vector, row_survivals, costs) for vector in vectors)
    assert rate_of(chosen, row_survivals, costs) == pytest.approx(best, rel=1e-9)
    assert all(depth <= len(survival) for depth, survival in zip(chosen, row_survivals, strict=True))


@settings(max_examples=200, deadline=None)
@given(rows(), tables(), st.data())
def test_drafts_that_are_made_cost_their_place_alone(
    row_survivals: Survivals, costs: Costs, data: st.DataObject
) -> None:
    """Exhaustive again: the levels that are paid are those of the rows whose drafts the head would make."""
    costs = replace(costs, draft=replace(costs.draft, per_token_s=0.0))
    are_made = data.draw(st.lists(st.booleans(), min_size=len(row_survivals), max_size=len(row_survivals)))

    def rate(depths: Sequence[int]) -> float:
        pairs = zip(depths, row_survivals, strict=True)
        emitted = len(depths) + sum(sum(survival[:depth]) for depth, survival in pairs)
        levels = max((depth for depth, is_made in zip(depths, are_made, strict=True) if not is_made), default=0)
        return emitted / (costs.step.of(len(depths) + sum(depths)) + costs.draft.of(levels, 0))

    chosen = choose_depths(row_survivals, costs, are_made)
    vectors = itertools.product(*(range(len(survival) + 1) for survival in row_survivals))
    assert rate(chosen) == pytest.approx(max(map(rate, vectors)), rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.data(), tables())
def test_the_rate_never_falls_when_an_acceptance_rises(data: st.DataObject, costs: Costs) -> None:
    acceptances = data.draw(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4))
    row = data.draw(st.integers(0, len(acceptances) - 1))
    position = data.draw(st.integers(0, len(acceptances[row]) - 1))
    before = [as_survivals(found) for found in acceptances]
    acceptances[row][position] = data.draw(st.floats(acceptances[row][position], 1))
    after = [as_survivals(found) for found in acceptances]
    rate_before = rate_of(choose_depths(before, costs), before, costs)
    assert rate_of(choose_depths(after, costs), after, costs) >= rate_before * (1 - 1e-12)


def test_nothing_is_drafted_where_drafts_can_not_pay() -> None:
    dear = Costs(CostTable((1.0, 2.0, 3.0, 4.0)), DraftCost())
    assert choose_depths([[1.0, 1.0], [1.0]], dear) == [0, 0], "a tie goes to fewer"
    assert choose_depths([[0.9], [0.0]], Costs(CostTable((1.0, 1.0, 1.0)), DraftCost())) == [1, 0]
    assert choose_depths([[], []], dear) == [0, 0]
    assert choose_depths([], dear) == []


def test_a_whole_stair_is_climbed_when_its_top_pays() -> None:
    """The first draft alone costs more than it brings; the seven together are worth the step up."""
    stairs = Costs(CostTable((1.0, *(2.0,) * 7)), DraftCost())
    assert choose_depths([[0.9**n for n in range(1, 8)]], stairs) == [7]
    assert choose_depths([[0.9]], stairs) == [0]


def test_a_costly_level_is_shared_by_rows_rather_than_gone_down_by_one() -> None:
    """By survival alone the first row's second draft would come before the other rows' first."""
    costs = Costs(CostTable(tuple(1.0 + 0.3 * n for n in range(9))), DraftCost(per_level_s=0.2))
    assert choose_depths([[0.9, 0.75], [0.7], [0.7]], costs) == [1, 1, 1]
    assert choose_depths([[0.9, 0.75], [0.7], [0.7]], Costs(costs.step, DraftCost())) == [2, 1, 1]


def test_acceptance_counts_only_positions_that_were_tried() -> None:
    """Three drafts, one accepted: the second was refused and the third says nothing."""
    seen = Acceptance().after(3, 1, keep=1.0)
    assert seen.tried[:4] == (1.0, 1.0, 0.0, 0.0)
    assert seen.accepted[:4] == (1.0, 0.0, 0.0, 0.0)
    assert Acceptance().after(2, 2, keep=1.0).tried[:3] == (1.0, 1.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, MAX_DEPTH), st.integers(0, MAX_DEPTH)), max_size=30), st.integers(0, 8))
def test_survivals_are_probabilities_that_never_rise(steps: list[tuple[int, int]], limit: int) -> None:
    row = Acceptance()
    for num_drafts, num_accepted in steps:
        row = row.after(num_drafts, min(num_drafts, num_accepted), keep=0.9)
    found = survivals(row, priors(Acceptance().after(4, 2, keep=0.9)), limit)
    assert len(found) <= limit
    assert found == sorted(found, reverse=True)
    assert all(0 <= survival <= 1 for survival in found)


@pytest.mark.parametrize(("num_accepted", "low", "high"), [(3, 0.6, 1.0), (0, 0.0, 0.4)])
def test_a_row_is_believed_more_than_the_server(num_accepted: int, low: float, high: float) -> None:
    server = Acceptance()
    for _ in range(200):
        server = server.after(3, 3 - num_accepted, keep=0.99)
    row = Acceptance()
    for _ in range(40):
        row = row.after(3, num_accepted, keep=0.98)
    assert low <= survivals(row, priors(server), 1)[0] <= high
    assert not low <= survivals(Acceptance(), priors(server), 1)[0] <= high, "a new row takes the server's"


def test_drafts_that_hardly_survive_are_no_candidates() -> None:
    assert survivals(Acceptance(), [0.5, 0.1, 0.1, 0.9], 4) == pytest.approx([0.5, 0.05])
    assert survivals(Acceptance(), [0.01] * 8, 8) == []


class TestCostTable:
    def test_goes_on_with_the_mean_slope(self) -> None:
        assert CostTable((1.0, 1.0, 3.0)).of(5) == pytest.approx(5.0)
        assert CostTable((2.0,)).of(3) == pytest.approx(6.0)

    def test_settles_near_the_median_and_shrugs_outliers_off(self) -> None:
        table = CostTable((1.0, 1.0, 9.0))
        for step in range(600):
            table = table.corrected(2, 500.0 if step % 10 == 0 else 2.0)
        assert table.of(2) == pytest.approx(2.0, rel=0.1)
        assert table.of(1) == pytest.approx(2.0**0.5, rel=0.1), "half of it holds for every size"
        assert table.of(3) == pytest.approx(9.0 * 2.0**0.5, rel=0.1)

    def test_more_tokens_never_cost_less(self) -> None:
        """A table that was measured on a busy machine, and steps of one size only since: the others follow."""
        table = CostTable((100.0, 110.0, 120.0, 130.0))
        for _ in range(400):
            table = table.corrected(3, 1.0)
        assert table.of(1) == table.of(2) == table.of(3) == pytest.approx(1.0, rel=0.1)
        assert table.of(4) > table.of(3)
        for _ in range(200):
            table = table.corrected(2, 50.0)
        assert table.of(3) >= table.of(2) == pytest.approx(50.0, rel=0.1)

    def test_a_step_beyond_the_table_corrects_all_of_it(self) -> None:
        assert CostTable((1.0, 2.0)).corrected(9, 100.0).of(1) > 1.0

    def test_impossible_times_are_ignored(self) -> None:
        table = CostTable((1.0, 2.0))
        assert table.corrected(1, 0.0) == table
        assert DraftCost().corrected(1, 1, 5.0) == DraftCost()

    def test_drafting_follows_what_is_observed(self) -> None:
        cost = DraftCost(1.0, 0.5)
        for _ in range(100):
            cost = cost.corrected(2, 4, 8.0)
        assert cost.of(2, 4) == pytest.approx(8.0, rel=0.05)
        assert replace(cost, per_token_s=0.0).of(1, 9) == cost.per_level_s


def test_a_machine_that_got_slower_is_slower_with_drafts_too_and_dear_drafts_say_nothing_of_plain_steps() -> None:
    table = CostTable((1.0, 1.1, 1.2))
    costs = Costs(table, DraftCost(0.2, 0.01), table)
    slower, dearer = costs, costs
    for _ in range(40):
        slower = slower.corrected(1, 1.5, is_after_draft=False)
        dearer = dearer.corrected(2, 1.65, is_after_draft=True)
    assert slower.after_draft is not None
    assert slower.after_draft.of(2) > 1.15 * table.of(2)
    assert slower.draft.of(1, 1) > 1.15 * costs.draft.of(1, 1)
    assert slower.draft.of(1, 1) / costs.draft.of(1, 1) == pytest.approx(slower.after_draft.of(2) / table.of(2))
    assert (dearer.step, dearer.draft) == (costs.step, costs.draft)
