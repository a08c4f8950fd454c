"""Random operations on every mode: the table is checked after each, no block is lost, and no answer ever changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mtplx.batching.scheduler import Scheduler
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import FinishReason
from mtplx.server.ar_batch import ArBatch
from mtplx.server.cooperative import Cooperative
from mtplx.server.hyper import Hyper
from mtplx.server.mtp_batch import MtpBatch
from mtplx.server.serial import Serial
from tests.simulator import (
    Drafter,
    SimRequest,
    Simulator,
    make_cohort_mode,
    make_speculator,
    make_table,
    mixed_drafts,
    right_drafts,
    wrong_drafts,
)

BUILDS: dict[str, Callable[[SequenceTable, int, int], Scheduler]] = {
    "serial": lambda table, width, chunk: Serial(table, prefill_chunk_tokens=chunk, speculator=make_speculator()),
    "ar_batch": lambda table, width, chunk: ArBatch(table, max_running=width, prefill_chunk_tokens=chunk),
    "cooperative": lambda table, width, chunk: Cooperative(
        table, max_running=width, prefill_chunk_tokens=chunk, max_wait_steps=5, speculator=make_speculator()
    ),
    "mtp_batch": lambda table, width, chunk: MtpBatch(
        table, max_running=width, prefill_chunk_tokens=chunk, speculator=make_speculator()
    ),
    "mtp_cohort_experimental": make_cohort_mode,
    "hyper": lambda table, width, chunk: Hyper(table, prefill_chunk_tokens=chunk, speculator=make_speculator()),
}
DRAFTERS: dict[str, Drafter | None] = {
    "none": None,
    "right": right_drafts(4),
    "wrong": wrong_drafts(4),
    "mixed": mixed_drafts(5),
}


def random_request(rng: random.Random, seq_id: int, table: SequenceTable) -> SimRequest:
    """One that fits alone; some end by a stop id, some by max_tokens, and some are scored."""
    capacity = table.blocks.num_total * table.blocks.block_size
    prompt_len = rng.choice([1, rng.randint(1, min(12, capacity)), rng.randint(1, capacity)])
    max_tokens = rng.randint(0, min(40, capacity + 1 - prompt_len))
    stop_ids = frozenset(rng.sample(range(97), rng.choice([0, 0, 3, 20])))
    return SimRequest(
        seq_id=seq_id,
        prompt_len=prompt_len,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        priority=rng.choice([0, 0, 0, 1, -1]),
        tenant=rng.choice([b"a", b"b", b"c"]),
        is_scored=rng.random() < 0.3,
    )


def assert_true_answer(sim: Simulator, request: SimRequest) -> None:
    """The whole answer and every score, once, or the beginning of them if it was cancelled or failed."""
    trace = sim.traces[request.seq_id]
    token_ids, reason = request.answer()
    scored_ids = request.prompt[1:] if request.is_scored else []
    assert trace.scored_ids == scored_ids[: len(trace.scored_ids)]
    assert trace.scored_ids == scored_ids or not trace.token_ids
    if trace.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR, None):
        assert trace.token_ids == token_ids[: len(trace.token_ids)]
    else:
        assert (trace.token_ids, trace.finish_reason, trace.scored_ids) == (token_ids, reason, scored_ids)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("mode", BUILDS)
def test_thousands_of_random_operations(mode: str, drafter: str) -> None:
    """Adds, steps, cancels (also between plan and commit), failing rows; caches from roomy to hardly enough for one.

    In half of the loads a grammar forces tokens, or says so and is wrong.
    """
    rng = random.Random(f"{mode} {drafter}")
    num_preemptions = 0
    for number in range(12):
        table = make_table(rng.randint(4, 40), rng.choice([1, 4, 16]), max_overtaken=rng.randint(0, 4))
        scheduler = BUILDS[mode](table, rng.randint(1, 6), rng.choice([1, 5, 16, 1000]))
        sim = Simulator(scheduler, drafter=DRAFTERS[drafter], forcer=mixed_drafts(6) if number % 2 else None)
        requests: list[SimRequest] = []
        for _ in range(150):
            live = [request.seq_id for request in requests if table.get(request.seq_id) is not None]
            choice = rng.random()
            if choice < 0.15 and len(live) < 12:
                requests.append(random_request(rng, len(requests), table))
                sim.add(requests[-1])
            elif choice < 0.18 and live:
                assert sim.cancel(rng.choice(live))
            elif choice < 0.20 and live:
                sim.step(cancel_between=[rng.choice(live)])
            elif choice < 0.21 and live:
                sim.step(fail=[rng.choice(live)])
            else:
                sim.step()
        sim.run([])
        assert table.blocks.num_used == 0
        for request in requests:
            assert_true_answer(sim, request)
        num_preemptions += table.num_preemptions
    assert (num_preemptions > 0) == (mode not in ("serial", "hyper"))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_change_no_answer_and_right_ones_save_steps(drafter: str) -> None:
    """Every end lies somewhere inside an accepted block."""
    load = [
        SimRequest(seq_id=n, prompt_len=1 + n % 7, max_tokens=20 + n, stop_ids=frozenset(range(n % 4)))
        for n in range(40)
    ]
    sim = Simulator(BUILDS["mtp_batch"](make_table(num_blocks=80), 8, 16), drafter=DRAFTERS[drafter])
    sim.run(load)
    for request in load:
        assert_true_answer(sim, request)
    num_emitted = sum(len(request.answer()[0]) for request in load)
    num_rows = sum(plan.width for plan in sim.plans)
    if drafter == "right":
        assert num_emitted > 3 * num_rows
    elif drafter in ("none", "wrong"):
        assert num_rows >= num_emitted


class ModeMachine(RuleBasedStateMachine):
    """Hypothesis looks for a sequence of operations that breaks an invariant or an answer."""

    @initialize(
        mode=st.sampled_from(sorted(BUILDS)),
        num_blocks=st.integers(3, 12),
        width=st.integers(1, 4),
        chunk=st.sampled_from([1, 4, 100]),
        max_overtaken=st.integers(0, 2),
    )
    def build(self, mode: str, num_blocks: int, width: int, chunk: int, max_overtaken: int) -> None:
        self.table = make_table(num_blocks, 2, max_overtaken=max_overtaken)
        self.sim = Simulator(BUILDS[mode](self.table, width, chunk), drafter=mixed_drafts(3))
        self.requests: list[SimRequest] = []

    @rule(
        prompt_share=st.floats(0, 1),
        max_tokens=st.integers(0, 12),
        num_stops=st.integers(0, 30),
        priority=st.integers(-1, 1),
        is_scored=st.booleans(),
        num_choices=st.integers(1, 3),
    )
    def add(
        self, prompt_share: float, max_tokens: int, num_stops: int, priority: int, is_scored: bool, num_choices: int
    ) -> None:
        capacity = self.table.blocks.num_total * self.table.blocks.block_size
        max_tokens = min(max_tokens, capacity)
        prompt_len = max(1, round(prompt_share * (capacity + 1 - max(1, max_tokens))))
        first_id = len(self.requests)
        for choice in range(num_choices):
            request = SimRequest(
                seq_id=first_id + choice,
                prompt_len=prompt_len,
                max_tokens=max_tokens,
                stop_ids=frozenset(range(num_stops)),
                priority=priority,
                tenant=bytes([first_id % 3]),
                is_scored=is_scored and choice == 0,
                prompt_of=first_id,
                request=first_id if num_choices > 1 else None,
            )
            self.requests.append(request)
            self.sim.add(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        is_live = self.table.get(request.seq_id) is not None
        assert self.sim.cancel(request.seq_id) == is_live

    @rule(num_steps=st.integers(1, 8))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.sim.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), is_failure=st.booleans())
    def step_with_trouble(self, data: st.DataObject, is_failure: bool) -> None:
        seq_id = data.draw(st.sampled_from(self.requests)).seq_id
        self.sim.step(**{"fail" if is_failure else "cancel_between": [seq_id]})

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.run([])
        for request in self.requests:
            assert_true_answer(self.sim, request)


TestModeMachine = ModeMachine.TestCase
TestModeMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
