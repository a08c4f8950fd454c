"""From recorded steps to a trace file that Perfetto and chrome://tracing open.

Source: "Trace Event Format", the Chromium project: complete events (X) for the worker and the event loop, asynchronous
ones (b, e) for hand-overs, which overlap when the loop is busy, and metadata (M) for names. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mtplx.telemetry.stages import DeliveryRecord, Recording, StepRecord

Event = dict[str, Any]

_PROCESS = 1
_EVENT_LOOP, _WORKER = _PROCESS, 2  # threads; the one with the process's number is shown as its main thread


def chrome_trace(recording: Recording) -> dict[str, Any]:
    """The trace as one JSON object; times count from the first step's start."""
    events = [
        _named("process_name", _EVENT_LOOP, "mtplx"),
        _named("thread_name", _WORKER, "worker"),
        _named("thread_name", _EVENT_LOOP, "event loop"),
    ]
    if recording.steps:
        first = recording.steps[0]
        origin_s = first.spans[0].start_s
        for step in recording.steps:
            events += _step_events(step, origin_s)
        for delivery in recording.deliveries:
            if delivery.number >= first.number:
                events += _delivery_events(delivery, origin_s)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _step_events(step: StepRecord, origin_s: float) -> Iterator[Event]:
    """The step as a whole, then its stages, which lie inside it."""
    name = f"step of {step.num_tokens}"
    numbers = {
        "number": step.number,
        "tokens": step.num_tokens,
        "drafts": step.num_drafts,
        "accepted": step.num_accepted,
        "emitted": step.num_emitted,
    }
    start_s, end_s = (seconds - origin_s for seconds in (step.spans[0].start_s, step.spans[-1].end_s))
    yield {**_complete(name, "step", _WORKER, start_s, end_s), "args": numbers}
    for span in step.spans:
        yield _complete(span.stage, "stage", _WORKER, span.start_s - origin_s, span.end_s - origin_s)


def _delivery_events(delivery: DeliveryRecord, origin_s: float) -> Iterator[Event]:
    hand_over, detokenise = delivery.spans
    for phase, seconds in (("b", hand_over.start_s), ("e", hand_over.end_s)):
        yield {
            "name": str(hand_over.stage),
            "cat": "hand_over",
            "ph": phase,
            "id2": {"local": str(delivery.number)},  # within the process; a plain `id` is a track outside of it
            "ts": _nanoseconds(seconds - origin_s) / 1000,
            "pid": _PROCESS,
            "tid": _EVENT_LOOP,
        }
    yield _complete(detokenise.stage, "stage", _EVENT_LOOP, detokenise.start_s - origin_s, detokenise.end_s - origin_s)


def _complete(name: str, category: str, thread: int, start_s: float, end_s: float) -> Event:
    start, end = _nanoseconds(start_s), _nanoseconds(end_s)
    return {
        "name": str(name),
        "cat": category,
        "ph": "X",
        "ts": start / 1000,
        "dur": (end - start) / 1000,  # between rounded ends: a stage must not stick out of its step by a rounding
        "pid": _PROCESS,
        "tid": thread,
    }


def _named(kind: str, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
