"""Events on the wire: their bytes, the comments of a quiet stream, and a reader that is slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtplx.server.choice_text import Delta
from mtplx.server.sse import DONE, KEEP_ALIVE, EventWriter, event
from tests.faults import PATIENCE_S
from tests.server.asgi import COMPLETIONS, Exchange
from tests.server.fakes import MODEL, FakeStreams, Item, fake_server, say

BODY = {"model": MODEL, "prompt": "x", "stream": True}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


@given(st.text())
@example("one\u2028two\u2029three\x85four\x0bfive\x1csix")
def test_an_event_is_one_line_whatever_the_text(text: str) -> None:
    data = event({"text": text})
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert len(data.decode().splitlines()) == 2, "it and an empty one, also by Unicode's rules"
    assert json.loads(data.removeprefix(b"data: ")) == {"text": text}


@given(st.text(alphabet="\u2028\u2029\x85\r\né"))
def test_readers_that_split_lines_as_unicode_does_get_it_whole(text: str) -> None:
    lines = httpx.Response(200, content=event({"text": text})).iter_lines()
    assert [json.loads(line.removeprefix("data: ")) for line in lines if line] == [{"text": text}]


def test_other_characters_are_sent_as_they_are() -> None:
    assert event("Köln \u20ac 🙂") == 'data: "Köln € 🙂"\n\n'.encode()


def test_numbers_that_json_lacks_are_never_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        event({"logprob": float("nan")})


def test_a_quiet_stream_sends_comments_and_then_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        gate = asyncio.Event()
        script: list[Item] = [Delta(0, "a", (1,), (), None), gate, *say("b")]
        server = fake_server(tmp_path, FakeStreams(script=lambda *_: script), keepalive_s=0.001)
        exchange = Exchange(server.app, COMPLETIONS, BODY)
        exchange.start()
        assert b'"a"' in await exchange.next_body()
        assert [await exchange.next_body() for _ in range(3)] == [KEEP_ALIVE] * 3
        gate.set()
        await exchange.end()
        rest = [message["body"] for message in drain(exchange)]
        assert [body for body in rest if body != KEEP_ALIVE][1:] == [DONE, b""]
        assert rest[-1] == b"", "nothing follows the end"

    run(test())


def test_comments_come_only_after_silence() -> None:
    """With 10 s of silence allowed and an event at 4 s, the first comment is due at 14 s."""

    async def test() -> None:
        now_s = 0.0
        sent_at_s: list[tuple[float, bytes]] = []

        async def send(message: dict[str, Any]) -> None:
            sent_at_s.append((now_s, message["body"]))
            if len(sent_at_s) == 3:
                raise asyncio.CancelledError

        async def sleep(seconds: float) -> None:
            nonlocal now_s
            end_s = now_s + seconds
            if now_s == 0.0:
                now_s = 4.0
                await writer.write("news")
            now_s = end_s

        writer = EventWriter(send, clock=lambda: now_s)
        with pytest.raises(asyncio.CancelledError):
            await writer.keep_alive(10.0, sleep)
        assert sent_at_s == [(4.0, event("news")), (14.0, KEEP_ALIVE), (24.0, KEEP_ALIVE)]

    run(test())


def test_a_comment_waits_for_the_event_that_is_on_its_way() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        begun: list[bytes] = []

        async def send(message: dict[str, Any]) -> None:
            begun.append(message["body"])
            await gate.wait()

        writer = EventWriter(send)
        first = asyncio.create_task(writer.write("x"))
        second = asyncio.create_task(writer.write_bytes(KEEP_ALIVE))
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == [event("x")]
        gate.set()
        await asyncio.gather(first, second)
        assert begun == [event("x"), KEEP_ALIVE]

    run(test())


def test_a_slow_reader_is_not_written_to_faster_than_it_reads(tmp_path: Path) -> None:
    """While one event is on its way, the engine's stream isn't read on."""

    async def test() -> None:
        server = fake_server(tmp_path, FakeStreams(script=lambda *_: say("abcdef")))
        may_go_on = asyncio.Event()
        started: list[bytes] = []

        async def send_slowly(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                started.append(message["body"])
                await may_go_on.wait()

        exchange = Exchange(server.app, COMPLETIONS, BODY, on_send=send_slowly)
        exchange.start()
        while not started:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(started) == 1
        assert len(server.streams.streams[0].items) == 5
        may_go_on.set()
        await exchange.end()
        assert len([body for body in started if body.startswith(b"data: {")]) == 6

    run(test())


def drain(exchange: Exchange) -> list[dict[str, Any]]:
    messages = []
    while not exchange.sent.empty():
        messages.append(exchange.sent.get_nowait())
    return messages
