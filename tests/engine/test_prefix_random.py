"""Random loads that share prefixes, in caches hardly big enough: no leak, no poisoned block, no other answer."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from mtplx.batching.state import StepPlan
from tests.engine.test_modes_random import BUILDS, ModeMachine, assert_true_answer
from tests.simulator import SimRequest, Simulator, make_table, mixed_drafts

NUM_SOAK_OPERATIONS = dict.fromkeys(BUILDS, 2_000) | {"mtp_batch": 10_000}


def random_request(rng: random.Random, seq_id: int, capacity: int) -> SimRequest:
    """One of two families and two salts; it has from nothing to all of its prompt in common with its family."""
    prompt_len = rng.randint(1, rng.choice([capacity // 4, capacity // 2, capacity]))
    return SimRequest(
        seq_id=seq_id,
        prompt_len=prompt_len,
        max_tokens=rng.randint(1, min(20, capacity + 1 - prompt_len)),
        stop_ids=frozenset(rng.sample(range(97), rng.choice([0, 0, 10]))),
        common_len=min(prompt_len, rng.choice([0, 3, 8, 17, 200])),
        family=rng.randrange(2),
        cache_salt=rng.choice([b"one", b"one", b"other"]),
        is_scored=rng.random() < 0.1,
    )


def assert_shared_blocks_are_only_read(sim: Simulator, plan: StepPlan) -> None:
    """To be asked before the plan is committed: nobody writes where somebody else reads."""
    size = sim.table.blocks.block_size
    for row in plan.rows:
        written = row.block_ids[row.start // size : -(-row.end // size)]
        assert all(sim.table.blocks.num_holds(block_id) == 1 for block_id in written)


class SoakSimulator(Simulator):
    """Looks at every plan before it runs."""

    def step(self, **trouble: object) -> StepPlan:
        plan_of = self.scheduler.plan

        def checked(head: object = None) -> StepPlan:
            plan = plan_of(head)  # type: ignore[arg-type]
            assert_shared_blocks_are_only_read(self, plan)
            return plan

        self.scheduler.plan = checked  # type: ignore[method-assign]
        try:
            return super().step(**trouble)  # type: ignore[arg-type]
        finally:
            self.scheduler.plan = plan_of  # type: ignore[method-assign]


@pytest.mark.parametrize("mode", BUILDS)
def test_soak(mode: str) -> None:
    """Thousands of operations, each followed by a check; then every answer is replayed."""
    rng = random.Random(mode)
    num_blocks, block_size = rng.randint(9, 14), rng.choice([2, 4])
    table = make_table(num_blocks, block_size, max_overtaken=2, shares=True)
    sim = SoakSimulator(BUILDS[mode](table, 5, 6), drafter=mixed_drafts(5))
    requests: list[SimRequest] = []
    for _ in range(NUM_SOAK_OPERATIONS[mode]):
        live = [request.seq_id for request in requests[-20:] if table.get(request.seq_id) is not None]
        choice = rng.random()
        if choice < 0.25 and len(live) < 8:
            requests.append(random_request(rng, len(requests), num_blocks * block_size))
            sim.add(requests[-1])
        elif choice < 0.29 and live:
            sim.cancel(rng.choice(live))
        elif choice < 0.32 and live:
            sim.step(cancel_between=[rng.choice(live)])
        elif choice < 0.34 and live:
            sim.step(fail=[rng.choice(live)])
        else:
            sim.step()
    sim.run([])
    for request in requests:
        assert_true_answer(sim, request)
    status = table.prefix.status()
    assert min(status.num_hits, status.num_evictions) > 0.01 * NUM_SOAK_OPERATIONS[mode]
    replay(sim, requests)
    assert table.blocks.num_free == num_blocks


def replay(sim: Simulator, requests: list[SimRequest]) -> None:
    """Each request once more, out of what the load has left in the cache."""
    first_id = len(requests)
    again = [
        SimRequest(
            seq_id=first_id + index,
            prompt_len=request.prompt_len,
            max_tokens=request.max_tokens,
            stop_ids=request.stop_ids,
            prompt_of=request.seq_id,
            common_len=request.common_len,
            family=request.family,
            cache_salt=request.cache_salt,
        )
        for index, request in enumerate(requests)
    ]
    for request in again:
        sim.run([request])
        assert_true_answer(sim, request)


@pytest.mark.parametrize("mode", BUILDS)
def test_a_prefix_is_computed_once_however_many_run_on_it(mode: str) -> None:
    """Eight requests at once, 64 tokens in common and six of their own: the steps compute the common part one time."""
    table = make_table(num_blocks=300, block_size=4, shares=True)
    sim = Simulator(BUILDS[mode](table, 8, 16), drafter=None)
    load = [SimRequest(seq_id=n, prompt_len=70, max_tokens=3, common_len=64) for n in range(8)]
    sim.run(load)
    for request in load:
        assert_true_answer(sim, request)
    num_prompt_tokens = sum(plan.num_tokens for plan in sim.plans) - 8 * 2
    assert num_prompt_tokens <= 64 + 8 * 6 + 16, "at most one chunk is computed twice"
    assert table.prefix.status().num_saved_tokens == 8 * 70 - num_prompt_tokens


class PrefixMachine(ModeMachine):
    """The same operations on prompts that begin alike: Hypothesis looks for some that poison a block."""

    @initialize(
        mode=st.sampled_from(sorted(BUILDS)),
        num_blocks=st.integers(3, 10),
        width=st.integers(1, 4),
        chunk=st.sampled_from([1, 3, 4, 100]),
    )
    def build(self, mode: str, num_blocks: int, width: int, chunk: int) -> None:
        self.table = make_table(num_blocks, 2, max_overtaken=1, shares=True)
        self.sim = SoakSimulator(BUILDS[mode](self.table, width, chunk), drafter=mixed_drafts(3))
        self.requests: list[SimRequest] = []

    @rule(
        prompt_share=st.floats(0, 1),
        common_share=st.floats(0, 1),
        max_tokens=st.integers(1, 8),
        is_scored=st.booleans(),
    )
    def add(self, prompt_share: float, common_share: float, max_tokens: int, is_scored: bool) -> None:
        capacity = self.table.blocks.num_total * self.table.blocks.block_size
        max_tokens = min(max_tokens, capacity)
        prompt_len = max(1, round(prompt_share * (capacity + 1 - max_tokens)))
        request = SimRequest(
            seq_id=len(self.requests),
            prompt_len=prompt_len,
            max_tokens=max_tokens,
            common_len=round(common_share * prompt_len),
            is_scored=is_scored,
        )
        self.requests.append(request)
        self.sim.add(request)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "sim"):
            replay(self.sim, self.requests)


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
