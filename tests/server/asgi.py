"""Ways to talk to an app without a socket: whole exchanges through httpx, and one driven message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from tests.faults import PATIENCE_S
from tests.server.fakes import MODEL, FakeServer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER_SAYS_HI = [{"role": "user", "content": "hi"}]


def ask(server: FakeServer, method: str, path: str, **request: Any) -> httpx.Response:
    """One whole exchange."""

    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **request)

    return asyncio.run(exchange())


def chat(server: FakeServer, **fields: Any) -> httpx.Response:
    return ask(server, "POST", CHAT, json={"model": MODEL, "messages": USER_SAYS_HI, **fields})


def complete(server: FakeServer, **fields: Any) -> httpx.Response:
    return ask(server, "POST", COMPLETIONS, json={"model": MODEL, "prompt": "hi", **fields})


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error's details, in a body that has nothing else."""
    body: dict[str, Any] = response.json()
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message", "param", "type"]
    error: dict[str, Any] = body["error"]
    return error


def events(text: str) -> list[str]:
    """The data of every event of a stream, comments left out."""
    assert text.endswith("\n\n")
    blocks = [block for block in text.removesuffix("\n\n").split("\n\n") if not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that ended well."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    data = events(response.text)
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


@dataclass(slots=True)
class Exchange:
    """One POST driven by hand: `app` runs as a task, the test reads what it sends and may leave at any moment."""

    app: FastAPI
    path: str
    body: dict[str, Any]
    on_send: Callable[[dict[str, Any]], Awaitable[None]] | None = None  # hears of every message first, may hold or fail
    sent: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    to_app: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.to_app.put_nowait({"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False})
        self.task = asyncio.create_task(self.app(self._scope(), self.to_app.get, self._send))

    async def next_body(self) -> bytes:
        """The next piece of the response's body."""
        while True:
            message = await asyncio.wait_for(self.sent.get(), PATIENCE_S)
            if message["type"] == "http.response.body":
                body: bytes = message["body"]
                return body

    def leave(self) -> None:
        self.to_app.put_nowait({"type": "http.disconnect"})

    async def end(self) -> None:
        """Waits until the app is done with the request."""
        assert self.task is not None
        await asyncio.wait_for(self.task, PATIENCE_S)

    async def _send(self, message: dict[str, Any]) -> None:
        if self.on_send is not None:
            await self.on_send(message)
        self.sent.put_nowait(message)

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "root_path": "",
        }
