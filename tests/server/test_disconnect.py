"""B51: whoever leaves, in whatever state, has the request's work cancelled at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from mtplx.server.choice_text import Delta
from mtplx.server.handlers.prompts import LONG_TEXT_CHARACTERS, MAX_LONG_ENCODES
from mtplx.text.tokenizer import Tokenizer
from tests.faults import PATIENCE_S
from tests.server.asgi import CHAT, COMPLETIONS, USER_SAYS_HI, Exchange
from tests.server.fakes import MODEL, FakeServer, FakeStreams, Item, fake_server, say


def never() -> asyncio.Event:
    return asyncio.Event()


async def fail(_message: dict[str, Any]) -> None:
    raise OSError("the client is gone")


def two_tokens_then_silence(*_: Any) -> list[Item]:
    return [Delta(0, "a", (1,), (), None), Delta(0, "b", (2,), (), None), never()]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


def silent_server(folder: Path) -> FakeServer:
    return fake_server(folder, FakeStreams(script=two_tokens_then_silence))


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    starts = {
        CHAT: {"messages": USER_SAYS_HI},
        COMPLETIONS: {"prompt": ["x", "y"]},
        "/v1/messages": {"messages": USER_SAYS_HI, "max_tokens": 5},
        "/v1/responses": {"input": "x"},
    }
    return {"model": MODEL, **starts[path], **fields}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/messages", "/v1/responses"])
def test_leaving_a_stream_closes_it(tmp_path: Path, path: str) -> None:
    async def test() -> None:
        server = silent_server(tmp_path)
        exchange = Exchange(server.app, path, body_for(path, stream=True))
        exchange.start()
        while b'"b"' not in await exchange.next_body():
            pass
        assert not any(stream.closed.is_set() for stream in server.streams.streams)
        exchange.leave()
        await exchange.end()
        assert all(stream.closed.is_set() for stream in server.streams.streams)

    run(test())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/messages", "/v1/responses"])
def test_leaving_while_the_whole_answer_is_awaited_closes_it(tmp_path: Path, path: str) -> None:
    async def test() -> None:
        server = silent_server(tmp_path)
        exchange = Exchange(server.app, path, body_for(path))
        exchange.start()
        exchange.leave()
        await exchange.end()
        assert server.streams.streams
        assert all(stream.closed.is_set() for stream in server.streams.streams)
        assert exchange.sent.empty(), "nobody is there to be answered"

    run(test())


def test_a_client_that_left_before_the_first_token_is_noticed(tmp_path: Path) -> None:
    """While the request waits in the queue there is nothing to send, so only the disconnect itself can tell."""

    async def test() -> None:
        server = fake_server(tmp_path, FakeStreams(script=lambda *_: [never()]))
        exchange = Exchange(server.app, CHAT, body_for(CHAT, stream=True))
        exchange.start()
        await exchange.next_body()  # the role, which comes before any token
        exchange.leave()
        await exchange.end()
        assert server.streams.streams[0].closed.is_set()

    run(test())


def test_a_send_that_fails_closes_the_stream(tmp_path: Path) -> None:
    """Servers that follow a newer ASGI say that the client is gone by failing to send."""

    async def test() -> None:
        server = silent_server(tmp_path)
        exchange = Exchange(server.app, CHAT, body_for(CHAT, stream=True), on_send=fail)
        exchange.start()
        await exchange.end()
        assert server.streams.streams[0].closed.is_set()

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_handler_closes_the_stream(tmp_path: Path, stream: bool) -> None:
    """A server that shuts down cancels what it runs."""

    async def test() -> None:
        server = silent_server(tmp_path)
        exchange = Exchange(server.app, CHAT, body_for(CHAT, stream=stream))
        exchange.start()
        while not server.streams.streams:
            await asyncio.sleep(0)
        assert exchange.task is not None
        exchange.task.cancel()
        await asyncio.wait([exchange.task])
        assert server.streams.streams[0].closed.is_set()

    run(test())


def test_leaving_in_the_middle_of_the_body_starts_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        server = silent_server(tmp_path)
        exchange = Exchange(server.app, CHAT, body_for(CHAT))
        exchange.to_app.put_nowait({"type": "http.request", "body": b'{"model"', "more_body": True})
        exchange.leave()
        exchange.start()
        await exchange.end()
        assert server.streams.opened == []

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_a_finished_request_is_closed_too(tmp_path: Path, stream: bool) -> None:
    async def test() -> None:
        server = fake_server(tmp_path, FakeStreams(script=lambda *_: say("ok")))
        exchange = Exchange(server.app, CHAT, body_for(CHAT, stream=stream))
        exchange.start()
        await exchange.end()
        assert server.streams.streams[0].closed.is_set()

    run(test())


def test_leaving_while_long_texts_wait_to_be_encoded_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few long texts are encoded at once, and those of clients that left are not encoded at all."""
    started, release, running = threading.Semaphore(0), threading.Event(), []

    def encode(*_: Any, **__: Any) -> list[int]:
        running.append(1)
        started.release()
        assert release.wait(PATIENCE_S)
        return [1]

    async def test() -> None:
        server = fake_server(tmp_path, FakeStreams(max_model_len=32_768))
        monkeypatch.setattr(Tokenizer, "encode", encode)
        body = {"model": MODEL, "prompt": "x" * (LONG_TEXT_CHARACTERS + 1)}
        exchanges = [Exchange(server.app, COMPLETIONS, body) for _ in range(MAX_LONG_ENCODES + 1)]
        for exchange in exchanges:
            exchange.start()
        for _ in range(MAX_LONG_ENCODES):
            assert await asyncio.to_thread(started.acquire, timeout=PATIENCE_S)
        for exchange in exchanges:
            exchange.leave()
        await exchanges[-1].end()
        release.set()
        for exchange in exchanges:
            await exchange.end()
        assert len(running) == MAX_LONG_ENCODES
        assert server.streams.opened == []

    run(test())
