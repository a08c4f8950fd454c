"""One request's times and token counts, gathered from the pieces of its answer: for the metrics, the log and traces.

Times are the engine's, taken at the end of each step: a client that reads slowly doesn't make the model look slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Counter, Histogram

from mtplx.batching.state import FinishReason


class DeltaLike(Protocol):
    """What a watch reads of a delta."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def finish_reason(self) -> FinishReason | None: ...

    @property
    def at_s(self) -> float: ...

    @property
    def started_at_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSeconds:
    """Histograms of what one endpoint's requests took."""

    first_token: Histogram
    request: Histogram
    queue: Histogram
    prefill: Histogram
    decode: Histogram
    inter_token: Histogram
    output_token: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMeters:
    """Where the numbers of one endpoint's requests go."""

    seconds: RequestSeconds
    prompt_tokens: Counter
    generated_tokens: Counter
    count_finish: Callable[[str], None]


@dataclass(slots=True)
class ChoiceTimes:
    """Seconds of the monotonic clock; None for what hasn't happened."""

    num_tokens: int = 0
    started_at_s: float | None = None
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    finish_reason: FinishReason | None = None


class RequestWatch:
    """Hears of every delta of one request, in the order in which they come."""

    def __init__(self, endpoint: str, meters: RequestMeters, *, asked_at_s: float, num_prompt_tokens: int) -> None:
        self.endpoint = endpoint
        self.asked_at_s = asked_at_s
        self.num_prompt_tokens = num_prompt_tokens
        self.choices: dict[int, ChoiceTimes] = {}  # by number, those that have begun
        self._meters = meters

    @property
    def num_tokens(self) -> int:
        """Of all choices so far."""
        return sum(choice.num_tokens for choice in self.choices.values())

    def on_delta(self, number: int, delta: DeltaLike) -> None:
        """Takes the next delta of choice `number`."""
        choice = self.choices.setdefault(number, ChoiceTimes())
        if choice.started_at_s is None:
            choice.started_at_s = delta.started_at_s
        if delta.token_ids:
            self._on_tokens(choice, delta)
        if delta.finish_reason is not None:
            self._on_end(choice, delta.finish_reason, delta.at_s)

    def _on_tokens(self, choice: ChoiceTimes, delta: DeltaLike) -> None:
        if choice.last_token_at_s is None:
            self._on_first_token(choice, delta.at_s)
        else:
            self._meters.seconds.inter_token.observe(delta.at_s - choice.last_token_at_s)
        choice.last_token_at_s = delta.at_s
        choice.num_tokens += len(delta.token_ids)
        self._meters.generated_tokens.inc(len(delta.token_ids))

    def _on_first_token(self, choice: ChoiceTimes, now_s: float) -> None:
        if self.num_tokens == 0:
            self._meters.prompt_tokens.inc(self.num_prompt_tokens)
            self._meters.seconds.first_token.observe(now_s - self.asked_at_s)
        choice.first_token_at_s = now_s
        if choice.started_at_s is not None:
            self._meters.seconds.queue.observe(choice.started_at_s - self.asked_at_s)
            self._meters.seconds.prefill.observe(now_s - choice.started_at_s)

    def _on_end(self, choice: ChoiceTimes, reason: FinishReason, now_s: float) -> None:
        choice.finish_reason = reason
        self._meters.seconds.request.observe(now_s - self.asked_at_s)
        self._meters.count_finish(str(reason))
        if choice.first_token_at_s is not None:
            decode_s = now_s - choice.first_token_at_s
            self._meters.seconds.decode.observe(decode_s)
            if choice.num_tokens > 1:
                self._meters.seconds.output_token.observe(decode_s / (choice.num_tokens - 1))
