"""Who stands before whom in the line, and that nobody stands there for ever."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.batching.line import MAX_PASSED, WaitingLine
from mtplx.batching.state import FinishReason, RowOutcome, Sequence, StepPlan, StopRules
from tests.engine.test_modes_random import BUILDS
from tests.simulator import SimRequest, Simulator, make_table


def waiting(seq_id: int, priority: int = 0, tenant: str = "") -> Sequence:
    return Sequence(seq_id, [1, 2], 2, StopRules(4), priority=priority, tenant=tenant.encode())


def line_of(*priorities: int) -> WaitingLine:
    """Sequences 0, 1, ... in order of arrival."""
    line = WaitingLine()
    for seq_id, priority in enumerate(priorities):
        line.join(waiting(seq_id, priority))
        line.check()
    return line


def ids(line: WaitingLine) -> list[int]:
    return [sequence.seq_id for sequence in line]


def test_higher_priorities_stand_in_front_and_equals_as_they_came() -> None:
    assert ids(line_of(0, 5, 0, -1, 5, 7)) == [5, 1, 4, 0, 2, 3]


def test_who_comes_back_stands_before_those_who_came_later() -> None:
    line = line_of(0, 0, 0, 1)
    middle = line.take(2)
    assert middle.seq_id == 1
    line.rejoin(middle)
    assert ids(line) == [3, 0, 1, 2]
    line.remove(middle)
    line.join(middle)
    assert ids(line) == [3, 0, 2, 1]


def test_who_has_been_passed_by_enough_more_urgent_ones_rises_to_their_priority() -> None:
    line = line_of(0)
    line.join(waiting(1))
    for later in range(2, 2 + MAX_PASSED):
        line.join(waiting(later, priority=3))
        assert ids(line) == [later, 0, 1]
        line.take(0)
    line.join(waiting(1000, priority=3))
    assert ids(line) == [0, 1, 1000]
    assert [sequence.num_passed for sequence in line] == [0, 0, 0]


def test_only_later_and_more_urgent_ones_pass() -> None:
    line = line_of(5, 0, 0)
    line.take(0)  # came first
    line.take(1)  # as urgent as the one before it
    assert [sequence.num_passed for sequence in line] == [0]


def test_tenants_take_turns_and_ones_own_stand_as_they_came() -> None:
    line = WaitingLine()
    for seq_id, tenant in enumerate("aaaa"):
        line.join(waiting(seq_id, tenant=tenant))
    line.take(0)
    line.take(0)
    for seq_id, tenant in enumerate("bbbc", 4):
        line.join(waiting(seq_id, tenant=tenant))
        line.check()
    assert [sequence.tenant + bytes([48 + sequence.seq_id]) for sequence in line] == [
        b"b4",
        b"c7",
        b"a2",
        b"b5",
        b"a3",
        b"b6",
    ]


def test_priorities_come_before_turns() -> None:
    line = WaitingLine()
    for seq_id, (tenant, priority) in enumerate([("a", 1), ("a", 1), ("b", 0), ("b", 1)]):
        line.join(waiting(seq_id, priority, tenant))
    assert ids(line) == [0, 3, 1, 2]


@settings(max_examples=50)
@given(arrivals=st.lists(st.sampled_from("aaaaabbc"), max_size=60), num_taken=st.integers(0, 20))
def test_whoever_has_some_waiting_is_never_more_than_one_start_behind(arrivals: list[str], num_taken: int) -> None:
    """Between two starts of one tenant every other that waits all the while has a start."""
    line = WaitingLine()
    for seq_id, tenant in enumerate(arrivals):
        line.join(waiting(seq_id, tenant=tenant))
        if seq_id % 3 == 0 and num_taken:
            line.take(0)
            num_taken -= 1
        line.check()
    starts: Counter[bytes] = Counter()
    while len(line):
        starts[line.take(0).tenant] += 1
        counts = [starts[sequence.tenant] for sequence in line]
        assert max(starts.values()) - min(counts, default=max(starts.values())) <= 2
        line.check()


@pytest.mark.parametrize("mode", BUILDS)
def test_in_every_mode_a_tenant_with_one_request_doesnt_wait_for_all_of_another_ones(mode: str) -> None:
    """One place; twenty of one tenant wait when the first of the other comes."""
    sim = Simulator(BUILDS[mode](make_table(num_blocks=64), 1, 16))
    for seq_id in range(20):
        sim.add(SimRequest(seq_id=seq_id, prompt_len=4, max_tokens=2, tenant=b"a"))
    sim.step()
    sim.add(SimRequest(seq_id=20, prompt_len=4, max_tokens=2, tenant=b"b"))
    while sim.traces[20].finish_reason is None:
        sim.step()
    assert sum(trace.finish_reason is FinishReason.LENGTH for trace in sim.traces.values()) <= 2


def test_of_the_running_the_urgent_one_keeps_its_blocks() -> None:
    table = make_table(num_blocks=4, block_size=2)
    sequences = [Sequence(n, [1], 1, StopRules(6), priority=n) for n in range(2)]
    for sequence in sequences:
        table.add(sequence)
    assert table.admit(2) == sequences[::-1]
    preempted = []
    while not table.is_empty:
        table.secure_next_tokens()
        table.admit(2)
        preempted += [sequence.seq_id for sequence in table.waiting]
        rows = tuple(table.row(sequence, 9) for sequence in table.running)
        table.commit(StepPlan(rows), [RowOutcome((7,)) for _ in rows])
        table.check()
    assert set(preempted) == {0}


@pytest.mark.parametrize("mode", BUILDS)
def test_in_every_mode_the_urgent_start_first_and_the_rest_starts_in_bounded_time(mode: str) -> None:
    """One place; an endless row of urgent requests, two of them always waiting."""
    sim = Simulator(BUILDS[mode](make_table(num_blocks=64), 1, 16))
    sim.add(SimRequest(seq_id=0, prompt_len=4, max_tokens=2))
    sim.step()
    for seq_id, priority in ((1, 0), (2, 9), (3, 9)):
        sim.add(SimRequest(seq_id=seq_id, prompt_len=4, max_tokens=2, priority=priority))
    next_id = 4
    while sim.traces[1].finish_reason is None:
        sim.step()
        while sim.table.num_waiting < 3:
            sim.add(SimRequest(seq_id=next_id, prompt_len=4, max_tokens=2, priority=9))
            next_id += 1
        assert next_id < 300
    num_urgent = sum(trace.finish_reason is FinishReason.LENGTH for trace in sim.traces.values()) - 2
    assert num_urgent == MAX_PASSED


@pytest.mark.parametrize("mode", BUILDS)
def test_random_priorities_lose_nothing(mode: str) -> None:
    """Small cache, many priorities: preemption by the urgent, and every answer as it must be."""
    rng = random.Random(mode)
    sim = Simulator(BUILDS[mode](make_table(num_blocks=9, max_overtaken=2), 4, 8))
    load = [
        SimRequest(
            seq_id=n,
            prompt_len=rng.randint(1, 12),
            max_tokens=rng.randint(1, 20),
            priority=rng.randint(-2, 2),
            arrives_at=rng.randint(0, 60),
        )
        for n in range(40)
    ]
    sim.run(load)
    for request in load:
        assert (sim.traces[request.seq_id].token_ids, sim.traces[request.seq_id].finish_reason) == request.answer()
