"""What is known of one HTTP request by its end: for its line in the log, its count in the metrics and its trace.

Holds no word that a client or a model wrote, but for the address, cut short, and an id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mtplx.sampling_params import SamplingParams
from mtplx.telemetry.watch import RequestWatch

MAX_PATH_CHARACTERS = 200
CLIENT_LEFT = "client_left"  # where other requests have their error's code
UNREAD = "-"


@dataclass(slots=True)
class RequestRecord:
    """Filled in while the request is answered; times in seconds of the monotonic clock."""

    request_id: str
    method: str  # UNREAD, as the path is, of a request whose head didn't come
    path: str  # without the query
    trace_headers: Mapping[str, str]  # traceparent and tracestate, where they were sent
    started_at_s: float
    ended_at_s: float | None = None
    status: int | None = None  # None: the client left before it was told
    error_code: str | None = None
    watch: RequestWatch | None = None  # of a request that was admitted
    params: SamplingParams | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the server is to blame for its end; a stream can fail after it was told to be well."""
        if self.status is None or self.error_code in (None, CLIENT_LEFT):
            return False
        return self.status >= 500 or self.status < 400

    def fail(self, code: str) -> None:
        """The first reason stays: what comes after it comes of it."""
        self.error_code = self.error_code or code

    def fields(self) -> dict[str, object]:
        """For a log line, in order; what isn't known is left out."""
        ended_at_s = self.started_at_s if self.ended_at_s is None else self.ended_at_s
        known: dict[str, object | None] = {
            "method": self.method,
            "path": self.path[:MAX_PATH_CHARACTERS],
            "status": self.status,
            "code": self.error_code,
            "duration_ms": _milliseconds(ended_at_s - self.started_at_s),
        }
        if self.watch is not None:
            known |= _generation_fields(self.watch)
        return {name: value for name, value in known.items() if value is not None}


Observer: TypeAlias = Callable[[RequestRecord], None]
"""Hears of each request's end, once."""


def _generation_fields(watch: RequestWatch) -> dict[str, object | None]:
    """Of several choices the times of whichever was first."""
    choices = watch.choices.values()
    started = [choice.started_at_s for choice in choices if choice.started_at_s is not None]
    first = [choice.first_token_at_s for choice in choices if choice.first_token_at_s is not None]
    reasons = sorted({str(choice.finish_reason) for choice in choices if choice.finish_reason is not None})
    return {
        "endpoint": watch.endpoint,
        "prompt_tokens": watch.num_prompt_tokens,
        "completion_tokens": watch.num_tokens,
        "queue_ms": _milliseconds(min(started) - watch.asked_at_s) if started else None,
        "first_token_ms": _milliseconds(min(first) - watch.asked_at_s) if first else None,
        "finish_reasons": ",".join(reasons) or None,
    }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
