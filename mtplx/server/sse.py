"""Server-sent events: their bytes, and a response that keeps a quiet stream alive and always lets go of its work."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mtplx.server.disconnect import cancel_all, until_disconnect
from mtplx.server.error_bodies import is_planned

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}  # Unicode's, that JSON leaves as they are

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventStyle:
    """What the streams of an API have around their payloads."""

    is_named: bool  # each event is named in a line of its own, by its payload's type
    keep_alive: bytes
    done: bytes  # after the last event, unless something failed


CHUNKS = EventStyle(is_named=False, keep_alive=KEEP_ALIVE, done=DONE)


def event(payload: Any, *, is_named: bool = False) -> bytes:
    """One event whose data is `payload` as JSON on one line, whatever a client takes for a line's end."""
    data = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_LINE_ENDS)
    name = f"event: {payload['type']}\n" if is_named else ""
    return f"{name}data: {data}\n\n".encode()


class EventWriter:
    """Sends whole events, one at a time, and knows how long it has been silent."""

    def __init__(self, send: Send, style: EventStyle = CHUNKS, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._style = style
        self._turn = asyncio.Lock()
        self._clock = clock
        self._last_sent_at_s = self._clock()

    async def write(self, payload: Any) -> None:
        """Sends one event; waits while the client reads slower than it is sent to."""
        await self.write_bytes(event(payload, is_named=self._style.is_named))

    async def write_bytes(self, data: bytes) -> None:
        async with self._turn:
            await _send_or_leave(self._send, {"type": "http.response.body", "body": data, "more_body": True})
            self._last_sent_at_s = self._clock()

    async def keep_alive(self, silence_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Sends a sign of life whenever nothing else was sent for `silence_s`; until cancelled."""
        while True:
            silent_until_s = self._last_sent_at_s + silence_s
            await sleep(silent_until_s - self._clock())
            if self._last_sent_at_s + silence_s <= silent_until_s:
                await self.write_bytes(self._style.keep_alive)


class EventStreamResponse(Response):
    """Lets `produce` write events in the `style`, then ends it; `close` is called exactly once, however it ends.

    A failure of `produce` is told to `on_error` and becomes the events that `fail` makes of it; then no [DONE] follows.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: Callable[[EventWriter], Awaitable[None]],
        *,
        style: EventStyle,
        fail: Callable[[Exception], Sequence[Any]],
        close: Callable[[], None],
        on_error: Callable[[Exception], None],
        keepalive_s: float,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._produce = produce
        self._style = style
        self._fail = fail
        self._close = close
        self._on_error = on_error
        self._keepalive_s = keepalive_s
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(self._stream(send), receive)
        finally:
            self._close()

    async def _stream(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await _send_or_leave(send, start)
        writer = EventWriter(send, self._style)
        ticker = asyncio.create_task(writer.keep_alive(self._keepalive_s))
        try:
            await self._produce_all(writer)
        finally:
            await cancel_all([ticker])
        await _send_or_leave(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _produce_all(self, writer: EventWriter) -> None:
        try:
            await self._produce(writer)
        except ClientDisconnect:
            raise
        except Exception as error:  # the status line is gone, so this is the last place that can tell the client
            if not is_planned(error):
                log.exception("a stream failed")
            self._on_error(error)
            for payload in self._fail(error):
                await writer.write(payload)
        else:
            if self._style.done:
                await writer.write_bytes(self._style.done)


async def _send_or_leave(send: Send, message: dict[str, Any]) -> None:
    try:
        await send(message)
    except OSError as error:
        raise ClientDisconnect from error
