"""Where the time of each step goes, stage by stage: written by the engine as it runs, read as a snapshot.

Laps, not nested timers: what passed since the last call belongs to the stage that is named, so a step has no gaps.

    worker     start |  plan  | draft | plan | forward | sample | commit |  start of the next step ...
    its end                                                              |- hand-over -|- detokenise -|  event loop
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from mtplx.batching.state import StepPlan

MAX_STEPS = 8192  # that are kept; each takes about a kilobyte

Outputs = TypeVar("Outputs")


class Stage(StrEnum):
    """In the order in which a step passes through them."""

    PLAN = "plan"
    DRAFT = "draft"
    FORWARD = "forward"
    SAMPLE = "sample"  # the next-token function at each position, which verifies the drafts
    COMMIT = "commit"
    HAND_OVER = "hand_over"  # from the step's end until the event loop takes its tokens
    DETOKENISE = "detokenise"  # ids to text, stop strings, the queues of the streams


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of one stage, in seconds of the recorder's clock."""

    stage: Stage
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step on the worker's thread; each span begins where the one before it ended."""

    number: int  # the first step is 1
    spans: tuple[Span, ...]
    num_tokens: int  # that the model computed
    num_drafts: int  # of them
    num_accepted: int  # of the drafts, as far as they were emitted
    num_emitted: int
    is_decode: bool  # no row is a chunk of a prompt


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """What the event loop did with the tokens of step `number`."""

    number: int
    spans: tuple[Span, Span]  # hand-over, detokenise


@dataclass(frozen=True, slots=True)
class Recording:
    """The steps after number `after_step` that are still kept, and their deliveries, oldest first."""

    after_step: int
    last_step: int
    steps: tuple[StepRecord, ...]
    deliveries: tuple[DeliveryRecord, ...]

    @property
    def num_dropped(self) -> int:
        """Steps that were asked for and are no longer kept."""
        return max(0, self.last_step - self.after_step) - len(self.steps)


class OutputLike(Protocol):
    """What a recorder reads of a sequence's output."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def num_accepted_tokens(self) -> int: ...


class StageRecorder(Protocol):
    """Hears from the engine, on its thread, what it is about to have done."""

    def start(self) -> None:
        """A step begins; one that was begun and not ended is forgotten."""
        ...

    def lap(self, stage: Stage) -> None:
        """What passed since the last call was `stage`."""
        ...

    def end(self, plan: StepPlan, outputs: Sequence[OutputLike], *, is_decode: bool) -> None:
        """The step has ended, with the last lap; `is_decode` says that no row of it was of a prompt."""
        ...

    def delivery(self, dispatch: Callable[[Outputs], None]) -> Callable[[Outputs], None]:
        """`dispatch` for the outputs of the step that has just ended; may be called on another thread."""
        ...

    def recording(self, after_step: int = 0) -> Recording | None:
        """A snapshot, from any thread; None where nothing is recorded."""
        ...


class NullRecorder:
    """Records nothing and reads no clock."""

    def start(self) -> None: ...

    def lap(self, stage: Stage) -> None: ...

    def end(self, plan: StepPlan, outputs: Sequence[OutputLike], *, is_decode: bool) -> None: ...

    def delivery(self, dispatch: Callable[[Outputs], None]) -> Callable[[Outputs], None]:
        return dispatch

    def recording(self, after_step: int = 0) -> None:
        return None


class StepRecorder:
    """Keeps the last `max_steps` steps and as many deliveries.

    The step in progress is the worker's alone; what is kept is shared with other threads under the lock.
    """

    def __init__(self, max_steps: int = MAX_STEPS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._steps: deque[StepRecord] = deque(maxlen=max_steps)
        self._deliveries: deque[DeliveryRecord] = deque(maxlen=max_steps)
        self._num_steps = 0
        self._spans: list[Span] = []
        self._last_s = 0.0
        self._has_undelivered = False

    def start(self) -> None:
        self._spans = []
        self._last_s = self._clock()

    def lap(self, stage: Stage) -> None:
        now_s = self._clock()
        self._spans.append(Span(stage, self._last_s, now_s))
        self._last_s = now_s

    def end(self, plan: StepPlan, outputs: Sequence[OutputLike], *, is_decode: bool) -> None:
        record = StepRecord(
            number=self._num_steps + 1,
            spans=tuple(self._spans),
            num_tokens=plan.num_tokens,
            num_drafts=sum(row.num_drafts for row in plan.rows),
            num_accepted=sum(output.num_accepted_tokens for output in outputs),
            num_emitted=sum(len(output.token_ids) for output in outputs),
            is_decode=is_decode,
        )
        self._has_undelivered = bool(outputs)
        with self._lock:
            self._num_steps += 1
            self._steps.append(record)

    def delivery(self, dispatch: Callable[[Outputs], None]) -> Callable[[Outputs], None]:
        if not self._has_undelivered:  # outputs of no step, such as those of a shut-down
            return dispatch
        self._has_undelivered = False
        number, ended_s = self._num_steps, self._last_s

        def timed(outputs: Outputs) -> None:
            taken_s = self._clock()
            dispatch(outputs)
            spans = (Span(Stage.HAND_OVER, ended_s, taken_s), Span(Stage.DETOKENISE, taken_s, self._clock()))
            with self._lock:
                self._deliveries.append(DeliveryRecord(number, spans))

        return timed

    def recording(self, after_step: int = 0) -> Recording:
        with self._lock:
            steps, deliveries, last_step = tuple(self._steps), tuple(self._deliveries), self._num_steps
        return Recording(
            after_step=after_step,
            last_step=last_step,
            steps=tuple(step for step in steps if step.number > after_step),
            deliveries=tuple(delivery for delivery in deliveries if delivery.number > after_step),
        )
