"""Whatever breaks inside, no answer has a path, a traceback or an exception's words in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from mtplx.server.schema import DescribedApi
from tests.server.asgi import ask
from tests.server.fakes import MODEL, FakeServer, FakeStreams, fake_server

SECRET = "/secret/place.py"
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}
LEAKS = re.compile(r"secret|Traceback|\.py|site-packages|RuntimeError|File \"|/mtplx/")


class BrokenStreams(FakeStreams):
    """Nothing of the engine's side can be asked any more; each question raises."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return _break if callable(value) and not name.startswith("__") else value


def _break(*_: Any, **__: Any) -> Any:
    raise RuntimeError(f"{SECRET} is gone")


@pytest.fixture
def broken(tmp_path: Path) -> FakeServer:
    return fake_server(tmp_path, BrokenStreams())


def operations(server: FakeServer) -> list[tuple[str, str]]:
    assert isinstance(server.app, DescribedApi)
    described = ask(server, "GET", "/openapi.json").json()["paths"]
    return [(method, path) for path, methods in described.items() for method in methods]


def call(server: FakeServer, method: str, path: str, **more: Any) -> httpx.Response:
    body = {"json": {"model": MODEL, **BODIES[path], **more}} if method == "post" else {}
    return ask(server, method.upper(), path.replace("{model_id}", MODEL), **body)


def test_every_endpoint_that_breaks_says_so_and_nothing_else(broken: FakeServer) -> None:
    statuses = {}
    for method, path in operations(broken):
        response = call(broken, method, path)
        assert not LEAKS.search(response.text), f"{method} {path}: {response.text}"
        assert "x-request-id" in response.headers
        statuses[path] = response.status_code
        if response.status_code == 500:
            assert response.json()["error"]["message"] == "the server failed on this request"
    assert {path for path, status in statuses.items() if status == 500} >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/status",
        "/health",
        "/metrics",
    }
    assert set(BODIES) <= set(statuses)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_breaks_on_its_way_tells_nothing(tmp_path: Path, path: str, stream: bool) -> None:
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: [RuntimeError(f"{SECRET} is gone")]))
    response = call(server, "post", path, stream=stream)
    assert response.status_code == (200 if stream else 500)
    assert "the server failed on this request" in response.text
    assert not LEAKS.search(response.text), response.text


def test_a_model_name_or_an_address_that_is_a_path_is_only_echoed(tmp_path: Path) -> None:
    server = fake_server(tmp_path)
    for path in ("/etc/passwd", "/v1/models/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/docs/../app.py"):
        response = ask(server, "GET", path)
        assert response.status_code == 404
        assert "root:" not in response.text
