"""The start-up measurement, on a runner whose steps take simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mtplx.batching.speculation import DraftCost
from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.model.costs import measure_costs, still_hold
from mtplx.model.runner import Choose, Logits
from tests.fakes import FakeDraftingRunner


class Timed(FakeDraftingRunner):
    """A step of n tokens takes a stair of 8, half of a unit more after a draft; the first step takes 100.

    A level of drafts takes 0.2 and 0.05 a row.
    """

    def __init__(self, unit_s: float = 0.001) -> None:
        super().__init__(num_blocks=40)
        self.now_s = 0.0
        self.unit_s = unit_s
        self.has_drafted = False

    def run(self, plan: StepPlan) -> Logits:
        self.now_s += self.unit_s * (100 if self.now_s == 0 else 1 + -(-plan.num_tokens // 8) + 0.5 * self.has_drafted)
        self.has_drafted = False
        return super().run(plan)

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        levels = max(request.depth for request in requests)
        self.now_s += self.unit_s * levels * (0.2 + 0.05 * len(requests))
        self.has_drafted = True
        return super().draft(requests, choose)


def test_it_finds_the_stairs_and_what_drafting_costs() -> None:
    runner = Timed()
    costs = measure_costs(runner, max_tokens=32, clock=lambda: runner.now_s)
    assert len(costs.step.seconds) == 32
    assert [costs.step.of(n) for n in (1, 8, 9, 16, 17, 32)] == pytest.approx(
        [0.002, 0.002, 0.003, 0.003, 0.004, 0.005]
    )
    assert [costs.step_s(1, n - 1, is_after_draft=True) for n in (1, 8, 9, 32)] == pytest.approx(
        [0.0025, 0.0025, 0.0035, 0.0055]
    )
    assert costs.draft.per_level_s == pytest.approx(0.0002)
    assert costs.draft.per_token_s == pytest.approx(0.00005)
    assert list(costs.step.seconds) == sorted(costs.step.seconds)


def test_a_slow_machine_measures_less_and_keeps_to_its_time() -> None:
    runner = Timed(unit_s=0.02)
    costs = measure_costs(runner, max_tokens=32, budget_s=1.5, clock=lambda: runner.now_s)
    assert runner.now_s < 100 * 0.02 + 1.5 + 0.5
    assert 1 <= len(costs.step.seconds) < 32
    assert costs.step.of(64) >= costs.step.of(1)


def test_what_it_leaves_in_the_cache_harms_nobody() -> None:
    """The fake reads its history back from its cache: a real sequence in the same blocks gets its own logits."""
    used, fresh = Timed(), FakeDraftingRunner(num_blocks=40)
    measure_costs(used, max_tokens=32, clock=lambda: used.now_s)
    plan = StepPlan((Row(0, 0, (65, 66, 67), (0,), num_logits=1),))
    assert np.array_equal(used.run(plan), fresh.run(plan))


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.4, True), (1 / 1.4, True), (1.6, False), (0.5, False)])
def test_costs_hold_while_a_step_takes_about_as_long(factor: float, holds: bool) -> None:
    measured, now = Timed(), Timed(unit_s=0.001 * factor)
    costs = measure_costs(measured, max_tokens=32, clock=lambda: measured.now_s)
    assert still_hold(now, costs, clock=lambda: now.now_s) is holds


@pytest.mark.parametrize(("factor", "holds"), [(1.4, True), (1.6, False), (0.5, False)])
def test_costs_hold_while_a_draft_takes_about_as_long(factor: float, holds: bool) -> None:
    runner = Timed()
    costs = measure_costs(runner, max_tokens=32, clock=lambda: runner.now_s)
    draft = DraftCost(costs.draft.per_level_s * factor, costs.draft.per_token_s * factor)
    assert still_hold(runner, replace(costs, draft=draft), clock=lambda: runner.now_s) is holds
