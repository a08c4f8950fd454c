"""The recorder of stages, its profile and its trace, on steps whose times are made up."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx.batching.state import Row, StepPlan
from mtplx.telemetry.profile import profile_of
from mtplx.telemetry.stages import NullRecorder, Recording, Stage, StageRecorder, StepRecorder
from mtplx.telemetry.trace import chrome_trace

WORKER_STAGES = (Stage.PLAN, Stage.DRAFT, Stage.PLAN, Stage.FORWARD, Stage.SAMPLE, Stage.COMMIT)


@dataclass(slots=True)
class Clock:
    """Shows the time that it was set to."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Output:
    token_ids: tuple[int, ...]
    num_accepted_tokens: int = 0


def plan_of(num_tokens: int, *, num_drafts: int = 0) -> StepPlan:
    return StepPlan((Row(0, 0, tuple(range(num_tokens)), (0,), num_logits=1 + num_drafts, num_drafts=num_drafts),))


class Machine:
    """Runs made-up steps through a recorder: each lap of `laps` takes its milliseconds."""

    def __init__(self, max_steps: int = 100) -> None:
        self.clock = Clock()
        self.recorder = StepRecorder(max_steps, clock=self.clock)

    def step(
        self, laps: list[tuple[Stage, float]], plan: StepPlan, *outputs: Output, is_decode: bool = True
    ) -> Callable[..., Any]:
        """Returns what the worker would post to the event loop."""
        self.recorder.start()
        for stage, milliseconds in laps:
            self.clock.now_s += milliseconds / 1000
            self.recorder.lap(stage)
        self.recorder.end(plan, outputs, is_decode=is_decode)
        return self.recorder.delivery(self.dispatch)

    def dispatch(self, milliseconds: float) -> None:
        self.clock.now_s += milliseconds / 1000

    def wait(self, milliseconds: float) -> None:
        self.clock.now_s += milliseconds / 1000


def verify_step(machine: Machine, *, num_drafts: int = 3, num_accepted: int = 2) -> Callable[..., Any]:
    """10 ms: plan 1, draft 2, plan 1, forward 4, sample 1.5, commit 0.5."""
    laps = list(zip(WORKER_STAGES, (1, 2, 1, 4, 1.5, 0.5), strict=True))
    plan = plan_of(1 + num_drafts, num_drafts=num_drafts)
    return machine.step(laps, plan, Output(tuple(range(num_accepted + 1)), num_accepted))


def prefill_step(machine: Machine, num_tokens: int = 16) -> Callable[..., Any]:
    laps = [(Stage.PLAN, 1.0), (Stage.FORWARD, 8.0), (Stage.SAMPLE, 0.5), (Stage.COMMIT, 0.5)]
    return machine.step(laps, plan_of(num_tokens), is_decode=False)


class TestRecorder:
    def test_a_steps_spans_have_no_gaps(self) -> None:
        machine = Machine()
        verify_step(machine)
        (step,) = machine.recorder.recording().steps
        assert [span.stage for span in step.spans] == list(WORKER_STAGES)
        assert [span.start_s for span in step.spans[1:]] == [span.end_s for span in step.spans[:-1]]
        assert step.spans[0].start_s == 100.0
        assert step.spans[-1].end_s == pytest.approx(100.010)
        assert (step.number, step.num_tokens, step.num_drafts, step.num_accepted, step.num_emitted) == (1, 4, 3, 2, 3)
        assert step.is_decode

    def test_a_delivery_is_from_the_steps_end_to_the_last_token_dispatched(self) -> None:
        machine = Machine()
        deliver = verify_step(machine)
        prefill_step(machine)  # the worker doesn't wait for the loop
        deliver(3.0)
        (delivery,) = machine.recorder.recording().deliveries
        hand_over, detokenise = delivery.spans
        assert delivery.number == 1
        assert (hand_over.stage, detokenise.stage) == (Stage.HAND_OVER, Stage.DETOKENISE)
        assert hand_over.end_s - hand_over.start_s == pytest.approx(0.010)
        assert detokenise.end_s - detokenise.start_s == pytest.approx(0.003)

    def test_outputs_of_no_step_are_dispatched_and_not_recorded(self) -> None:
        machine = Machine()
        verify_step(machine)(0.0)
        machine.wait(5000)
        after_all = machine.recorder.delivery(machine.dispatch)
        assert after_all == machine.dispatch
        prefill_step(machine)(0.0)
        assert len(machine.recorder.recording().deliveries) == 1, "a step without outputs has nothing to deliver"

    def test_only_the_last_steps_are_kept_and_the_rest_is_counted(self) -> None:
        machine = Machine(max_steps=4)
        for _ in range(10):
            verify_step(machine)(0.5)
        recording = machine.recorder.recording(after_step=3)
        assert [step.number for step in recording.steps] == [7, 8, 9, 10]
        assert [delivery.number for delivery in recording.deliveries] == [7, 8, 9, 10]
        assert recording.num_dropped == 3

    @pytest.mark.parametrize(("after_step", "numbers"), [(0, [1, 2, 3]), (2, [3]), (3, []), (50, [])])
    def test_what_came_before_a_step_can_be_left_out(self, after_step: int, numbers: list[int]) -> None:
        machine = Machine()
        for _ in range(3):
            verify_step(machine)(0.5)
        recording = machine.recorder.recording(after_step)
        assert [step.number for step in recording.steps] == numbers
        assert [delivery.number for delivery in recording.deliveries] == numbers
        assert (recording.last_step, recording.num_dropped) == (3, 0)

    def test_a_step_that_was_given_up_leaves_no_trace(self) -> None:
        machine = Machine()
        machine.recorder.start()
        machine.recorder.lap(Stage.PLAN)
        verify_step(machine)
        (step,) = machine.recorder.recording().steps
        assert len(step.spans) == len(WORKER_STAGES)

    def test_nothing_is_recorded_where_nothing_should_be(self) -> None:
        recorder: StageRecorder = NullRecorder()
        recorder.start()
        recorder.lap(Stage.PLAN)
        recorder.end(plan_of(1), [Output((1,))], is_decode=True)
        machine = Machine()
        assert recorder.delivery(machine.dispatch) == machine.dispatch
        assert recorder.recording() is None


class TestProfile:
    def test_stages_add_up(self) -> None:
        machine = Machine()
        prefill_step(machine)
        for num_drafts, num_accepted in ((3, 2), (3, 0), (1, 1)):
            deliver = verify_step(machine, num_drafts=num_drafts, num_accepted=num_accepted)
            machine.wait(1.0)
            deliver(0.25)
        profile = profile_of(machine.recorder.recording())
        assert (profile.num_steps, profile.last_step, profile.num_dropped) == (4, 4, 0)
        assert (profile.num_draft_tokens, profile.num_accepted_tokens) == (7, 3)
        assert profile.tokens_per_step == 6 / 3, "the prefill step is none of decoding"
        assert profile.steps_s == pytest.approx(0.040)
        rows = {row.stage: row for row in profile.stages}
        assert list(rows) == list(Stage)
        assert [rows[stage].num_calls for stage in Stage] == [4, 3, 4, 4, 4, 3, 3]
        assert rows[Stage.PLAN].total_s == pytest.approx(0.007)
        assert rows[Stage.PLAN].median_s == pytest.approx(0.002), "before and after drafting is one call"
        assert rows[Stage.DRAFT].share == pytest.approx(6 / 40)
        assert rows[Stage.HAND_OVER].median_s == pytest.approx(0.001)
        assert rows[Stage.DETOKENISE].total_s == pytest.approx(0.00075)
        sizes = [(row.num_tokens, row.num_calls, row.median_s) for row in profile.forward_by_tokens]
        assert sizes == [(2, 1, pytest.approx(0.004)), (4, 2, pytest.approx(0.004)), (16, 1, pytest.approx(0.008))]

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.floats(0, 50)), min_size=1, max_size=20))
    def test_the_workers_shares_are_one_and_the_forwards_its_share(self, steps: list[tuple[bool, int, float]]) -> None:
        machine = Machine()
        for is_prefill, num_drafts, busy_ms in steps:
            deliver = prefill_step(machine) if is_prefill else verify_step(machine, num_drafts=num_drafts)
            deliver(busy_ms)
        profile = profile_of(machine.recorder.recording())
        shares = {row.stage: row.share for row in profile.stages}
        beside = {Stage.HAND_OVER, Stage.DETOKENISE}
        assert sum(share for stage, share in shares.items() if stage not in beside) == pytest.approx(1.0)
        assert sum(row.share for row in profile.forward_by_tokens) == pytest.approx(shares[Stage.FORWARD])
        assert sum(row.num_calls for row in profile.forward_by_tokens) == len(steps)

    def test_before_the_first_step_there_is_nothing(self) -> None:
        profile = profile_of(Machine().recorder.recording())
        assert (profile.num_steps, profile.tokens_per_step, profile.stages, profile.forward_by_tokens) == (
            0,
            None,
            (),
            (),
        )


NUMBER = (int, float)
COMPLETE = {"name": str, "cat": str, "ph": str, "ts": NUMBER, "dur": NUMBER, "pid": int, "tid": int}
ASYNCHRONOUS = {"name": str, "cat": str, "ph": str, "id2": dict, "ts": NUMBER, "pid": int, "tid": int}
METADATA = {"name": str, "ph": str, "pid": int, "tid": int, "args": dict}


def checked_events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a trace after a round trip through JSON, each of exactly the shape that its phase asks for."""
    trace = json.loads(json.dumps(trace, allow_nan=False))
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        shape = {"X": COMPLETE, "b": ASYNCHRONOUS, "e": ASYNCHRONOUS, "M": METADATA}[event["ph"]]
        assert set(event) - {"args"} == set(shape) - {"args"}
        assert all(isinstance(event[key], kind) and not isinstance(event[key], bool) for key, kind in shape.items())
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def overlaps_without_nesting(events: list[dict[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Pairs of complete events of one thread that a viewer couldn't draw in one another."""
    by_thread: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_thread[event["tid"]].append(event)
    for own in by_thread.values():
        for index, first in enumerate(own):
            for second in own[index + 1 :]:
                (a, b), (c, d) = nanoseconds(first), nanoseconds(second)
                is_apart = b <= c or d <= a
                is_nested = (a <= c and d <= b) or (c <= a and b <= d)
                if not (is_apart or is_nested):
                    yield first, second


class TestTrace:
    @given(
        st.lists(
            st.tuples(st.lists(st.floats(0, 20), min_size=6, max_size=6), st.integers(0, 2), st.floats(0, 30)),
            max_size=8,
        )
    )
    def test_events_have_their_shape_and_nest(self, steps: list[tuple[list[float], int, float]]) -> None:
        """Deliveries come late by up to two steps, as those of a busy event loop do."""
        machine = Machine()
        waiting: list[tuple[Callable[..., Any], float]] = []
        for milliseconds, num_late, busy_ms in steps:
            laps = list(zip(WORKER_STAGES, milliseconds, strict=True))
            waiting.append((machine.step(laps, plan_of(2, num_drafts=1), Output((5, 6), 1)), busy_ms))
            while len(waiting) > num_late:
                deliver, busy_ms = waiting.pop(0)
                deliver(busy_ms)
        events = checked_events(chrome_trace(machine.recorder.recording()))
        assert list(overlaps_without_nesting(events)) == []
        num_whole = sum(event.get("cat") == "step" for event in events)
        assert num_whole == len(steps)
        begun = sorted((event["id2"]["local"], event["ts"]) for event in events if event["ph"] == "b")
        ended = sorted((event["id2"]["local"], event["ts"]) for event in events if event["ph"] == "e")
        assert [step for step, _ in begun] == [step for step, _ in ended]
        assert all(start <= end for (_, start), (_, end) in zip(begun, ended, strict=True))

    def test_it_says_what_the_step_did_from_zero_on_in_microseconds(self) -> None:
        machine = Machine()
        deliver = verify_step(machine)
        machine.wait(2.0)
        deliver(1.0)
        events = checked_events(chrome_trace(machine.recorder.recording()))
        names = {(e["name"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
        assert names == {("process_name", 1): "mtplx", ("thread_name", 1): "event loop", ("thread_name", 2): "worker"}
        spans = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
        assert spans == [
            ("step of 4", 2, 0.0, 10000.0),
            ("plan", 2, 0.0, 1000.0),
            ("draft", 2, 1000.0, 2000.0),
            ("plan", 2, 3000.0, 1000.0),
            ("forward", 2, 4000.0, 4000.0),
            ("sample", 2, 8000.0, 1500.0),
            ("commit", 2, 9500.0, 500.0),
            ("detokenise", 1, 12000.0, 1000.0),
        ]
        (numbers,) = [e["args"] for e in events if e.get("cat") == "step"]
        assert numbers == {"number": 1, "tokens": 4, "drafts": 3, "accepted": 2, "emitted": 3}
        assert [(e["ph"], e["id2"], e["ts"]) for e in events if e.get("cat") == "hand_over"] == [
            ("b", {"local": "1"}, 10000.0),
            ("e", {"local": "1"}, 12000.0),
        ]

    def test_a_delivery_whose_step_is_gone_is_left_out(self) -> None:
        machine = Machine(max_steps=2)
        deliver = verify_step(machine)
        for _ in range(2):
            verify_step(machine)
        deliver(1.0)
        recording = machine.recorder.recording()
        assert [delivery.number for delivery in recording.deliveries] == [1]
        events = checked_events(chrome_trace(recording))
        assert not any(event.get("cat") == "hand_over" for event in events)

    def test_no_steps_are_a_trace_too(self) -> None:
        events = checked_events(chrome_trace(Recording(0, 0, (), ())))
        assert {event["ph"] for event in events} == {"M"}
