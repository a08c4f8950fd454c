"""A connection that says nothing, half of something or nonsense is told so and let go: it holds no place for ever."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from mtplx.config import Settings
from mtplx.server.boundary import MAX_HEAD_BYTES
from mtplx.server.connections import LINGER_S, BoundedProtocol, ConnectionLimits
from mtplx.server.openai import Service
from mtplx.telemetry.record import UNREAD, RequestRecord
from tests.e2e.test_behaviours_load import eventually
from tests.fakes import FakeRunner
from tests.live import LiveServer, fake_assembly, live_server

LIMITS = ConnectionLimits(max_connections=2, receive_timeout_s=7.0, send_timeout_s=9.0)
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n"


@dataclass(slots=True)
class FakeTimer:
    delay_s: float
    call: Callable[..., None]
    args: tuple[Any, ...] = ()
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeTask:
    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        """It never ends."""


@dataclass(slots=True)
class FakeLoop:
    """Starts nothing by itself: timers are fired by the test, the app's calls are only counted."""

    timers: list[FakeTimer] = field(default_factory=list)
    num_calls: int = 0

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> FakeTimer:
        self.timers.append(FakeTimer(delay_s, call, args))
        return self.timers[-1]

    def create_task(self, call: Coroutine[Any, Any, None]) -> FakeTask:
        call.close()
        self.num_calls += 1
        return FakeTask()

    @property
    def running(self) -> list[FakeTimer]:
        return [timer for timer in self.timers if not timer.is_cancelled]


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = self.has_eof = False
        self.num_unread = 0
        self.high_water = -1
        self.options: list[tuple[int, int, int]] = []  # of its socket, which this is as well

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        assert name in ("socket", "peername", "sockname", "sslcontext")
        return self if name == "socket" else default

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    getsockname = getpeername

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.options.append((level, name, value))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high_water = high

    def get_write_buffer_size(self) -> int:
        return self.num_unread

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.has_eof
        self.sent += bytes(data)

    def write_eof(self) -> None:
        self.has_eof = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading


@dataclass(slots=True)
class Connection:
    """One connection of a server whose app is never reached."""

    state: ServerState = field(default_factory=ServerState)
    loop: FakeLoop = field(default_factory=FakeLoop)
    transport: FakeTransport = field(default_factory=FakeTransport)
    records: list[RequestRecord] = field(default_factory=list)
    protocol: BoundedProtocol = field(init=False)

    def __post_init__(self) -> None:
        config = uvicorn.Config(_no_app, log_config=None, h11_max_incomplete_event_size=MAX_HEAD_BYTES, ws="none")
        self.protocol = BoundedProtocol(
            LIMITS,
            (self.records.append,),
            config=config,
            server_state=self.state,
            app_state={},
            _loop=self.loop,
        )
        self.protocol.connection_made(self.transport)

    def answer(self) -> tuple[int, str]:
        """Status and code of the one error that it was told."""
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(self.transport.sent)
        response, data = client.next_event(), client.next_event()
        assert isinstance(response, h11.Response)
        assert isinstance(data, h11.Data)
        assert (b"connection", b"close") in response.headers
        return response.status_code, json.loads(data.data)["error"]["code"]


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("the app is reached by nothing here")


@pytest.mark.parametrize("sent", [b"", b"POST /v1", HEAD, HEAD + b"\r\n12345"])
def test_a_request_that_does_not_come_whole_in_time_is_408(sent: bytes) -> None:
    connection = Connection()
    if sent:
        connection.protocol.data_received(sent)
    (timer,) = connection.loop.running
    assert timer.delay_s == LIMITS.receive_timeout_s
    timer.cancel()
    timer.call()
    assert connection.answer() == (408, "receive_timeout")
    assert connection.transport.has_eof
    if connection.protocol.cycle is not None:
        assert connection.protocol.cycle.disconnected, "the app hears that nobody waits any more"
        assert connection.records == [], "it is the app that says how the request ended"
    else:
        (record,) = connection.records
        assert (record.method, record.path, record.status, record.error_code) == (
            UNREAD,
            UNREAD,
            408,
            "receive_timeout",
        )
        assert f"x-request-id: {record.request_id}\r\n".encode() in connection.transport.sent
    (timer,) = connection.loop.running
    assert timer.delay_s == LINGER_S
    timer.call()
    assert connection.transport.is_closed


def test_each_piece_of_an_answer_leaves_at_once() -> None:
    """Else the system holds a second small piece back until the client has acknowledged the first, 40 ms later."""
    assert Connection().transport.options == [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]


def test_a_trickle_does_not_put_the_end_off() -> None:
    connection = Connection()
    for byte in HEAD + b"\r\n123456789":
        connection.protocol.data_received(bytes([byte]))
        assert len(connection.loop.timers) == 1
    connection.protocol.data_received(b"0")
    assert connection.loop.running == []
    assert connection.transport.sent == b""


def test_what_comes_after_a_refusal_is_not_read() -> None:
    connection = Connection()
    connection.loop.timers[0].call()
    sent = connection.transport.sent
    connection.protocol.data_received(HEAD + b"\r\n1234567890")
    assert (connection.loop.num_calls, connection.transport.sent) == (0, sent)


def test_an_answer_that_has_begun_is_not_followed_by_another() -> None:
    """A refused key is answered before the body has come; the body's time still counts."""
    connection = Connection()
    connection.protocol.data_received(HEAD + b"\r\n123")
    connection.protocol.conn.send(h11.Response(status_code=401, headers=[("content-length", "0")]))
    connection.loop.running[0].call()
    assert connection.transport.sent == b""
    assert connection.transport.is_closed


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400, "invalid_http")),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * MAX_HEAD_BYTES, (431, "head_too_large")),
        (HEAD + b"content-length: 11\r\n\r\n", (400, "invalid_http")),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /", (400, "invalid_http")),
        (HEAD.replace(b"content-length: 10", b"transfer-encoding: chunked") + b"\r\nx\r\n", (400, "invalid_http")),
    ],
)
def test_what_is_not_http_gets_an_answer_in_the_usual_shape(sent: bytes, expected: tuple[int, str]) -> None:
    connection = Connection()
    connection.protocol.data_received(sent)
    assert connection.answer() == expected


def test_a_quiet_connection_is_closed_by_the_client_first(tmp_path: Path) -> None:
    """A server that does it may do it just when the client asks again, which then fails."""
    service = Service(fake_assembly(tmp_path, FakeRunner(), Settings()))
    expiry_s = httpx.Limits().keepalive_expiry
    assert expiry_s is not None
    assert expiry_s < service._server.config.timeout_keep_alive


def test_connections_over_the_limit_are_refused_and_far_over_it_dropped() -> None:
    state = ServerState()
    connections = [Connection(state) for _ in range(5)]
    assert [bool(connection.transport.sent) for connection in connections] == [False, False, True, True, False]
    assert connections[2].answer() == connections[3].answer() == (503, "overloaded")
    assert b"retry-after: 1\r\n" in connections[2].transport.sent
    codes = [[record.error_code for record in connection.records] for connection in connections]
    assert codes == [[], [], ["overloaded"], ["overloaded"], []]
    assert [connection.transport.is_closed for connection in connections] == [False] * 4 + [True]
    for connection in connections[2:]:
        connection.protocol.connection_lost(None)
    connections[0].protocol.connection_lost(None)
    assert not Connection(state).transport.sent


def fire(connection: Connection) -> None:
    """Lets the one timer that answers wait for run out."""
    (timer,) = [timer for timer in connection.loop.running if timer.delay_s == LIMITS.send_timeout_s]
    timer.cancel()
    timer.call(*timer.args)


def test_a_client_that_reads_nothing_is_cut_off_and_one_that_reads_slowly_is_not() -> None:
    connection = Connection()
    assert connection.transport.high_water == 0, "one unread byte starts the clock"
    connection.transport.num_unread = 100
    connection.protocol.pause_writing()
    connection.transport.num_unread = 99
    fire(connection)
    assert not connection.transport.is_closed
    fire(connection)
    assert connection.transport.is_closed


def test_a_client_that_has_read_everything_is_waited_for_no_more() -> None:
    connection = Connection()
    for end in (connection.protocol.resume_writing, lambda: connection.protocol.connection_lost(None)):
        connection.protocol.pause_writing()
        end()
        assert not [timer for timer in connection.loop.running if timer.delay_s == LIMITS.send_timeout_s]


def test_a_server_lets_go_of_what_does_not_come_counts_it_and_goes_on(tmp_path: Path) -> None:
    content_type = b"content-type: application/json\r\n"
    with live_server(tmp_path, FakeRunner(), receive_timeout_s=0.2) as server:
        # Once it was answered, the client has a connection on which no first request is due.
        assert eventually(lambda: server.client.get("/health").status_code == 200)
        before = num_errors(server)
        assert b'"code":"receive_timeout"' in said(server, HEAD + content_type + b"\r\n{", b"HTTP/1.1 408 ")
        assert b'"code":"receive_timeout"' in said(server, b"", b"HTTP/1.1 408 ")
        two_lengths = HEAD + content_type + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        assert b'"code":"invalid_http"' in said(server, two_lengths, b"HTTP/1.1 400 ")
        assert server.post("/v1/completions", prompt="hi", max_tokens=1)["usage"]["completion_tokens"] == 1
        assert (server.status()["num_running"], server.status()["num_waiting"]) == (0, 0)
        assert num_errors(server) - before == {"receive_timeout": 2, "invalid_http": 1}


def num_errors(server: LiveServer) -> Counter[str]:
    """By their code."""
    found = re.findall(r'^mtplx_errors_total{code="(\w+)"} (\d+)', server.client.get("/metrics").text, re.MULTILINE)
    return Counter({code: int(number) for code, number in found})


def said(server: LiveServer, sent: bytes, beginning: bytes) -> bytes:
    """All that the server answers, until it hangs up."""
    port = int(server.url.rpartition(":")[2])
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(beginning)
    assert answer.count(b"HTTP/1.1 ") == 1
    return answer
