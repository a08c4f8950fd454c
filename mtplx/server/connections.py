"""What connections may cost: how many are open, how slowly a request comes, how long an answer lies there unread.

uvicorn's own protocol would wait for the rest of a request for ever, and for a client that has stopped reading; it
answers what isn't HTTP with plain text.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import h11
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from mtplx.errors import HeadTooLargeError, MtplxError, OverloadedError, RequestError, SlowRequestError
from mtplx.server.boundary import MAX_HEAD_BYTES, REQUEST_ID_HEADER, begin_record, end_record, new_request_id
from mtplx.server.error_bodies import answer_of
from mtplx.telemetry.record import UNREAD, Observer, RequestRecord

log = logging.getLogger(__name__)

INVALID_HTTP = "invalid_http"
LINGER_S = 2.0  # a refused client gets this long to read why: closing at once would discard it with what it still sends


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Beyond `max_connections` open ones a new one is refused; a request must come whole in `receive_timeout_s`.

    While there is something for it to read, a client must take some of it every `send_timeout_s`.
    """

    max_connections: int
    receive_timeout_s: float
    send_timeout_s: float


def bounded_protocol(limits: ConnectionLimits, observers: Sequence[Observer]) -> type[asyncio.Protocol]:
    """What uvicorn takes as its `http`; the observers hear of what is refused without the app."""
    return cast("type[asyncio.Protocol]", functools.partial(BoundedProtocol, limits, observers))


class BoundedProtocol(H11Protocol):
    """One connection. Its timer runs exactly while a request has begun, or a first one is due, and isn't whole.

    The other timer runs exactly while the system takes no more bytes for the client.
    """

    def __init__(self, limits: ConnectionLimits, observers: Sequence[Observer], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._observers = observers
        self._began_at_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does this only for a listener made with the protocol's number; an answer's end would wait for 40 ms
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)  # what the system doesn't take is waited for, and by the timer
        if len(self.connections) > 2 * self._limits.max_connections:
            transport.abort()  # those that linger are bounded too
        elif len(self.connections) > self._limits.max_connections:
            self._refuse(OverloadedError(f"the limit of {self._limits.max_connections} connections is reached"))
        else:
            self._start_timer()

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            super().data_received(data)

    def handle_events(self) -> None:
        """Called with new bytes, and when an answer is complete, with those that came meanwhile."""
        super().handle_events()
        if self._is_refused:
            return
        if self._is_asking and _has_two_lengths(self.headers):
            self._refuse(RequestError("content-length and transfer-encoding contradict each other", code=INVALID_HTTP))
        elif self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()
        elif self._timer is None and (self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]):
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._stop_send_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the bytes aren't HTTP, or a head that isn't whole is over the limit."""
        if len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
            self._refuse(HeadTooLargeError(f"the head is over the limit of {MAX_HEAD_BYTES} bytes"))
        else:
            self._refuse(RequestError("this is not an HTTP/1.1 request", code=INVALID_HTTP))

    def _on_late(self) -> None:
        self._refuse(SlowRequestError(f"the request didn't come whole in {self._limits.receive_timeout_s:g} seconds"))

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self._limits.send_timeout_s, self._on_unread, unread)

    def _on_unread(self, num_bytes: int) -> None:
        """The app hears of a disconnect, and so the work is cancelled."""
        if self.transport.get_write_buffer_size() < num_bytes:
            self._await_reader()
            return
        log.info("a client has read nothing for %g seconds, hanging up", self._limits.send_timeout_s)
        self._send_timer = None
        self.transport.abort()

    def _refuse(self, error: MtplxError) -> None:
        """Answers and hangs up; where an answer has begun already, hangs up alone. The app hears of a disconnect."""
        self._stop_timer()
        self._is_refused = True
        can_answer = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing()
        if can_answer:
            self._send(error)
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.close()
        if self._is_asking:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    @property
    def _is_asking(self) -> bool:
        """Whether the app has a request of this connection."""
        return self.cycle is not None and not self.cycle.response_complete

    def _send(self, error: MtplxError) -> None:
        found = answer_of(error)
        record = self._record()
        record.status = found.status
        record.fail(found.code)
        if not self._is_asking:
            end_record(record, self._observers)  # else the app does so
        response = found.response(record.path, record.request_id)
        response.headers[REQUEST_ID_HEADER] = record.request_id
        headers = [*response.raw_headers, (b"connection", b"close")]
        body = bytes(response.body)
        for event in (h11.Response(status_code=response.status_code, headers=headers), h11.Data(body)):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")

    def _record(self) -> RequestRecord:
        if self._is_asking:
            return begin_record(cast("Scope", self.cycle.scope))
        return RequestRecord(new_request_id(), UNREAD, UNREAD, {}, self._began_at_s)

    def _start_timer(self) -> None:
        self._began_at_s = time.monotonic()
        self._timer = self.loop.call_later(self._limits.receive_timeout_s, self._on_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


def _has_two_lengths(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Then servers in a row may disagree on where the next request begins: a way to smuggle one past the first."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}
