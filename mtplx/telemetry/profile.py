"""From recorded steps to a profile: how often each stage ran, how long it took, and what the steps gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from mtplx.telemetry.stages import DeliveryRecord, Recording, Span, Stage, StepRecord


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One stage in all steps that had it; a step's several stretches of it are one call.

    Shares are of the time that all steps took. Those of the worker's stages add up to 1; hand-over and detokenise run
    beside the next step, on the event loop.
    """

    stage: Stage
    num_tokens: int | None  # of the steps it is about; None is all of them
    num_calls: int
    median_s: float
    total_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Stages in their order, those that never ran left out, and the forward again by the tokens of its step."""

    num_steps: int
    last_step: int
    num_dropped: int
    steps_s: float
    num_decode_steps: int
    num_decode_tokens: int  # emitted by those
    num_draft_tokens: int
    num_accepted_tokens: int
    stages: tuple[StageTimes, ...]
    forward_by_tokens: tuple[StageTimes, ...]

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step of decoding emits, the one that needs no draft included."""
        return self.num_decode_tokens / self.num_decode_steps if self.num_decode_steps else None


def profile_of(recording: Recording) -> Profile:
    """The profile of what was recorded."""
    decode_steps = [step for step in recording.steps if step.is_decode]
    steps_s = sum(step.spans[-1].end_s - step.spans[0].start_s for step in recording.steps)
    return Profile(
        num_steps=len(recording.steps),
        last_step=recording.last_step,
        num_dropped=recording.num_dropped,
        steps_s=steps_s,
        num_decode_steps=len(decode_steps),
        num_decode_tokens=sum(step.num_emitted for step in decode_steps),
        num_draft_tokens=sum(step.num_drafts for step in recording.steps),
        num_accepted_tokens=sum(step.num_accepted for step in recording.steps),
        stages=_stages([*recording.steps, *recording.deliveries], steps_s),
        forward_by_tokens=_forward_by_tokens(recording.steps, steps_s),
    )


def _stages(records: Sequence[StepRecord | DeliveryRecord], steps_s: float) -> tuple[StageTimes, ...]:
    calls: dict[Stage, list[float]] = defaultdict(list)
    for record in records:
        for stage, seconds in _seconds_by_stage(record.spans).items():
            calls[stage].append(seconds)
    return tuple(_times(stage, None, calls[stage], steps_s) for stage in Stage if stage in calls)


def _forward_by_tokens(steps: Iterable[StepRecord], steps_s: float) -> tuple[StageTimes, ...]:
    calls: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        calls[step.num_tokens].append(_seconds_by_stage(step.spans)[Stage.FORWARD])
    return tuple(_times(Stage.FORWARD, size, calls[size], steps_s) for size in sorted(calls))


def _seconds_by_stage(spans: Iterable[Span]) -> dict[Stage, float]:
    seconds: dict[Stage, float] = defaultdict(float)
    for span in spans:
        seconds[span.stage] += span.end_s - span.start_s
    return seconds


def _times(stage: Stage, num_tokens: int | None, seconds: Sequence[float], steps_s: float) -> StageTimes:
    total_s = sum(seconds)
    share = total_s / steps_s if steps_s else 0.0
    return StageTimes(stage, num_tokens, len(seconds), median(seconds), total_s, share)
