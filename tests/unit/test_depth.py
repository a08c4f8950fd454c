"""The adaptive policy on a simulated machine: it drafts where it pays, stops where it doesn't, and looks again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mtplx.batching.depth import PROBE_SHARE, AdaptiveDepth, DraftRow, FixedDepth
from mtplx.batching.speculation import Costs, CostTable, DraftCost

CHEAP = Costs(CostTable(tuple(1.0 + 0.08 * n for n in range(80))), DraftCost(0.05, 0.01))
COOLING = replace(CHEAP, after_draft=CostTable(tuple(1.25 + 0.08 * n for n in range(80))))
DEAR = Costs(CostTable(tuple(1.0 + 1.0 * n for n in range(80))), DraftCost(0.05, 0.01))


class Machine:
    """Plays steps in which every draft is accepted with the row's probability.

    The policy sees luck; what is counted are the tokens to be expected, and the seconds that the costs say.
    """

    def __init__(self, policy: AdaptiveDepth | FixedDepth, costs: Costs, seed: int = 0) -> None:
        self.policy, self.costs = policy, costs
        self.rng = random.Random(seed)
        self.is_cool = False  # the model has been pushed out of the caches by the step before
        self.seconds = 0.0
        self.num_expected = 0.0
        self.depths: list[list[int]] = []

    def run(self, acceptances: list[float], num_steps: int, limit: int = 8) -> None:
        for _ in range(num_steps):
            rows = [DraftRow(seq_id, limit, 1) for seq_id in range(len(acceptances))]
            depths = self.policy.choose(rows, 0)
            self.depths.append(depths)
            num_drafts = sum(depths)
            if any(depths):
                draft_s = self.costs.draft.of(max(depths), num_drafts)
                self.policy.drafted(max(depths), num_drafts, draft_s)
                self.seconds += draft_s
            step_s = self.costs.step_s(len(rows), num_drafts, is_after_draft=self.is_cool or any(depths))
            self.is_cool = any(depths)
            self.seconds += step_s
            for seq_id, (depth, acceptance) in enumerate(zip(depths, acceptances, strict=True)):
                num_accepted = 0
                while num_accepted < depth and self.rng.random() < acceptance:
                    num_accepted += 1
                self.num_expected += sum(acceptance**position for position in range(1 + depth))
                if depth:
                    self.policy.verified(seq_id, depth, num_accepted)
            self.policy.stepped(len(rows) + num_drafts, step_s)

    @property
    def rate(self) -> float:
        return self.num_expected / self.seconds


@pytest.mark.parametrize("width", [1, 2, 4, 16])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("costs", [CHEAP, COOLING, DEAR], ids=["cheap", "cooling", "dear"])
def test_it_keeps_up_with_the_best_fixed_depth(width: int, acceptance: float, costs: Costs) -> None:
    adaptive = Machine(AdaptiveDepth(costs), costs)
    adaptive.run([acceptance] * width, 800)
    fixed = []
    for depth in range(9):
        machine = Machine(FixedDepth(depth), costs)
        machine.run([acceptance] * width, 3)
        fixed.append(machine.rate)
    assert adaptive.rate >= 0.97 * max(fixed)


def test_each_row_gets_the_depth_it_is_worth() -> None:
    machine = Machine(AdaptiveDepth(CHEAP), CHEAP)
    machine.run([0.95, 0.0, 0.95, 0.0], 300)
    late = machine.depths[100:]
    means = [sum(depths[row] for depths in late) / len(late) for row in range(4)]
    assert min(means[0], means[2]) > 2
    assert max(means[1], means[3]) < 0.3


def test_probes_are_bounded_and_never_end() -> None:
    """With a head that is always wrong, what drafts cost beyond plain steps stays near the share that is allowed."""
    machine = Machine(AdaptiveDepth(CHEAP), CHEAP)
    machine.run([0.0] * 4, 300)
    machine.depths.clear()
    before_s, policy = machine.seconds, machine.policy
    assert isinstance(policy, AdaptiveDepth)
    num_probes = policy.num_probes
    machine.run([0.0] * 4, 3000)
    plain_s = 3000 * CHEAP.step.of(4)
    assert machine.seconds - before_s <= plain_s * (1 + 2 * PROBE_SHARE)
    assert policy.num_probes > num_probes + 5
    assert all(depths in ([0] * 4, [1] * 4) for depths in machine.depths), "one draft for each row"


def test_a_head_that_gets_better_is_found_out() -> None:
    machine = Machine(AdaptiveDepth(CHEAP), CHEAP)
    machine.run([0.0] * 2, 400)
    assert sum(machine.depths[-1]) <= 1
    machine.run([0.95] * 2, 1000)
    assert min(machine.depths[-1]) >= 2


def test_a_machine_that_is_cheaper_than_believed_is_found_out() -> None:
    machine = Machine(AdaptiveDepth(DEAR), CHEAP)
    machine.run([0.95], 4000)
    assert machine.depths[-1][0] >= 2


def test_a_machine_whose_plain_steps_are_cheaper_than_believed_is_found_out() -> None:
    """Steps with drafts alone would never show it: they take what the table says."""
    true = Costs(CostTable((0.7, *CHEAP.step.seconds[1:])), CHEAP.draft)
    machine = Machine(AdaptiveDepth(CHEAP), true)
    machine.run([0.35], 4000)
    assert sum(map(sum, machine.depths[:20])) > 15, "it began with drafts"
    assert sum(map(sum, machine.depths[3000:])) < 200, "and ends without, but for probes"


@pytest.mark.parametrize("believed", [CHEAP, COOLING], ids=["nothing", "too much"])
@pytest.mark.parametrize("acceptance", [0.2, 0.3])
def test_what_a_draft_costs_the_step_behind_it_is_found_out(believed: Costs, acceptance: float) -> None:
    """Drafts at 0.2 would pay if nothing were cooled, and at 0.3 do so unless much is."""
    true = COOLING if believed is CHEAP else CHEAP
    machine = Machine(AdaptiveDepth(believed), true)
    machine.run([acceptance], 4000)
    best = max(_rate_at(depth, acceptance, true) for depth in (0, 1, 2))
    before_s, before = machine.seconds, machine.num_expected
    machine.run([acceptance], 1000)
    assert (machine.num_expected - before) / (machine.seconds - before_s) >= 0.97 * best


def _rate_at(depth: int, acceptance: float, costs: Costs) -> float:
    machine = Machine(FixedDepth(depth), costs)
    machine.run([acceptance], 50)
    return machine.rate


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_a_table_that_is_wholly_wrong_does_not_keep_a_wrong_head_busy(factor: float) -> None:
    believed = Costs(CostTable(tuple(factor * entry for entry in CHEAP.step.seconds)), CHEAP.draft)
    machine = Machine(AdaptiveDepth(believed), CHEAP)
    machine.run([0.0] * 2, 1000)
    assert sum(map(any, machine.depths[500:])) < 60, "probes alone"


def test_a_backlog_makes_a_probe_wait_longer() -> None:
    def steps_to_probe(num_unprimed: int) -> int:
        policy = AdaptiveDepth(DEAR)
        for step in range(100_000):
            if any(policy.choose([DraftRow(0, 8, num_unprimed)], 0)):
                return step
        raise AssertionError("no probe")

    assert steps_to_probe(1) < steps_to_probe(2000)


def test_it_rests_while_depths_stay_right_and_heeds_at_once_who_joins_and_what_is_made() -> None:
    policy, row = AdaptiveDepth(CHEAP), DraftRow(0, 8, 1)
    for _ in range(300):
        policy.verified(0, 8, 0)
        policy.verified(1, 8, 8)
    assert [policy.choose([row], 0) for _ in range(20)] == [[0]] * 20
    assert policy.choose([row, DraftRow(1, 8, 1)], 0)[1] > 0
    assert policy.choose([DraftRow(0, 8, 1, made=(0.9, 0.8))], 0) == [2]

    assert [policy.choose([row], 0) for _ in range(20)] == [[0]] * 20
    for _ in range(300):
        policy.verified(0, 8, 8)
    num_rested = 0
    while policy.choose([row], 0) == [0]:
        num_rested += 1
    assert 0 < num_rested < 20, "it thinks it over now and then, and not in every step"


@pytest.mark.parametrize("num_made", [1, 3, 20])
def test_a_row_whose_drafts_were_made_is_thought_over_as_soon_as_they_end(num_made: int) -> None:
    """Of the head nothing was chosen meanwhile, and nothing of that is kept."""
    policy = AdaptiveDepth(CHEAP)
    for _ in range(300):
        policy.verified(0, 8, 8)
    rows = [DraftRow(0, 8, 1), DraftRow(1, 8, 1)]
    for _ in range(num_made):
        assert policy.kept([0, 1]) is None
        policy.choose([DraftRow(0, 8, 1, made=(0.9, 0.8)), rows[1]], 0)
    assert policy.kept([0, 1]) is None
    assert min(policy.choose(rows, 0)) > 0


def test_steps_are_learned_from_in_time_if_nobody_asks_for_depths() -> None:
    """As when the head has failed too often."""
    policy = AdaptiveDepth(CHEAP)
    for _ in range(400):
        policy.stepped(1, 0.5)
    assert policy.costs.step.of(1) < 0.9 * CHEAP.step.of(1)


def test_limits_are_kept_and_a_row_that_left_is_forgotten() -> None:
    policy = AdaptiveDepth(CHEAP)
    for _ in range(50):
        policy.verified(1, 4, 4)
    assert policy.choose([DraftRow(1, 2, 1), DraftRow(2, 0, 1)], 0) == [2, 0]
    known = policy.choose([DraftRow(1, 8, 1)], 0)
    for _ in range(400):
        policy.verified(2, 4, 0)
    assert policy.choose([DraftRow(1, 8, 1)], 0)[0] >= known[0] - 1, "its own acceptance counts"
    policy.forget(1)
    assert policy.choose([DraftRow(1, 8, 1)], 0)[0] <= 1, "now it has the server's"
    assert FixedDepth(3).choose([DraftRow(1, 2, 1), DraftRow(2, 8, 1)], 0) == [2, 3]


def test_a_prompt_in_the_step_is_no_reason_to_draft_where_drafts_do_not_pay() -> None:
    policy, row = AdaptiveDepth(DEAR), DraftRow(0, 8, 1)
    for _ in range(300):
        policy.verified(0, 8, 8)
    assert policy.choose([row], 0) == [0]
    assert not policy.expects_drafts(1)
    assert policy.choose([row], 1) == [0], "one draft more would cost little there, its head's cache would not"
    assert AdaptiveDepth(CHEAP).choose([DraftRow(0, 8, 1, made=(1.0, 1.0))], 1) == [2]


def test_who_decodes_beside_prompts_drafts_if_there_will_be_drafts_when_all_decode() -> None:
    """A machine on which one row's drafts pay and those of sixteen don't."""
    costs = Costs(
        CostTable((*(1.0 + 0.05 * n for n in range(4)), *(1.0 + 1.0 * n for n in range(60)))), DraftCost(0.05)
    )
    policy, row = AdaptiveDepth(costs), DraftRow(0, 8, 1)
    for _ in range(300):
        policy.verified(0, 8, 6)
    assert policy.choose([row], 0)[0] > 0
    assert (policy.expects_drafts(1), policy.expects_drafts(16)) == (True, False)
    assert policy.choose([row], 1)[0] > 0
    assert policy.choose([row], 15) == [0]
    assert policy.choose([DraftRow(0, 8, 1, made=(0.9, 0.8))], 15) == [2], "what is made is no work of the head's"


def test_a_long_prompt_that_the_head_has_not_seen_must_be_earned() -> None:
    policy = AdaptiveDepth(CHEAP)
    for _ in range(300):
        policy.verified(0, 8, 0)
    assert policy.choose([DraftRow(0, 8, 1)], 0) == [0]
    for _ in range(300):
        policy.verified(0, 8, 8)
    for _ in range(20):
        assert policy.choose([DraftRow(0, 8, 100_000)], 0) == [0], "1,000 seconds to build, eight saved in each step"
    assert any(policy.choose([DraftRow(0, 8, 200)], 0)[0] for _ in range(20))


def test_a_step_that_goes_without_drafts_for_the_sake_of_its_cost_says_so() -> None:
    policy, row = AdaptiveDepth(CHEAP), DraftRow(0, 8, 1)
    reasons = set()
    for _ in range(2000):
        policy.verified(0, 8, 8)
        if policy.choose([row], 0) == [0]:
            reasons.add(policy.why_none())
    assert reasons == {"drafts pay; this is one of the few steps that go without, to see what one costs"}


def test_a_prompt_in_the_step_repeats_no_depths_that_were_chosen_beside_drafts_that_are_made() -> None:
    policy = AdaptiveDepth(DEAR)
    policy.choose([DraftRow(0, 8, 1), DraftRow(1, 8, 1)], 0)
    assert not policy.expects_drafts(1)
    policy.choose([DraftRow(0, 8, 1, made=(1.0, 1.0)), DraftRow(1, 8, 1)], 1)
    assert policy.choose([DraftRow(0, 8, 1), DraftRow(1, 8, 1)], 1) == [0, 0]
