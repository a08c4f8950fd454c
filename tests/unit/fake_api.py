"""A tiny HTTP server that answers as it is told and remembers what it was asked; speaks just enough of the API."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal

MODEL = {"id": "tiny", "object": "model", "created": 1, "owned_by": "tests"}
STATUS = {"scheduler_mode": "ar_batch", "exact": True, "uptime_s": 12.34, "width_histogram": {"1": 20, "4": 3}}


@dataclass(frozen=True, slots=True)
class Page:
    body: Any
    status: int = 200
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A stream of `pieces`, then [DONE], an SSE error, a dropped connection, or silence until the client leaves."""

    pieces: tuple[str, ...]
    end: Literal["done", "error", "cut", "hold"] = "done"


@dataclass(slots=True)
class Asked:
    path: str
    authorization: str | None
    body: Any


@dataclass(slots=True)
class FakeApi:
    url: str = ""
    pages: dict[str, Page] = field(default_factory=dict)
    answers: deque[Answer] = field(default_factory=deque)
    asked: list[Asked] = field(default_factory=list)
    client_left: threading.Event = field(default_factory=threading.Event)  # while an answer was held


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    """Listens on loopback until the block ends; has models and a status page, and chat answers when given some."""
    api = FakeApi(
        pages={
            "/v1/models": Page({"object": "list", "data": [MODEL]}),
            "/v1/models/tiny": Page(MODEL),
            "/v1/status": Page(STATUS),
        }
    )
    handler = type("Handler", (_Handler,), {"api": api})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        api.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    api: ClassVar[FakeApi]

    def do_GET(self) -> None:
        self._remember(None)
        self._send(self.api.pages.get(self.path, Page({"error": {"message": "no such page"}}, 404)))

    def do_POST(self) -> None:
        self._remember(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        page = self.api.pages.get(self.path)
        if page is not None:
            self._send(page)
        else:
            self._stream(self.api.answers.popleft())

    def _remember(self, body: Any) -> None:
        self.api.asked.append(Asked(self.path, self.headers["Authorization"], body))

    def _send(self, page: Page) -> None:
        text = page.body if isinstance(page.body, str) else json.dumps(page.body)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _stream(self, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if answer.end == "cut":
            self.send_header("Content-Length", "1000000")  # promises more than will come
        self.end_headers()
        for piece in answer.pieces:
            self._event({"id": "1", "object": "chat.completion.chunk", "choices": [{"delta": {"content": piece}}]})
        if answer.end == "done":
            self.wfile.write(b"data: [DONE]\n\n")
        elif answer.end == "error":
            self._event({"error": {"message": "the model fell over", "code": "generation_failed"}})
        elif answer.end == "hold" and self.connection.recv(1) == b"":
            self.api.client_left.set()

    def _event(self, data: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing."""
