"""A server that is told to stop under load: what was accepted is answered, or told in words why it isn't."""

from __future__ import annotations

import json
import signal
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_behaviours_load import eventually
from tests.fakes import FakeRunner
from tests.faults import Hold
from tests.live import MODEL, LiveServer, live_server

BODIES: list[dict[str, Any]] = [
    {"prompt": f"p{k}", "max_tokens": 12, "temperature": 0, "stream": bool(k % 2)} for k in range(6)
]


def ask(server: LiveServer, body: dict[str, Any]) -> httpx.Response:
    return server.client.post("/v1/completions", json={"model": MODEL, **body})


def outcome(body: dict[str, Any], response: httpx.Response) -> str:
    """The answer's text, or the code of the error that it ended with."""
    if not body["stream"]:
        answer = response.json()
        return str(answer["error"]["code"] if "error" in answer else answer["choices"][0]["text"])
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    if data[-1] != "[DONE]":
        return str(json.loads(data[-1])["error"]["code"])
    return "".join(json.loads(item)["choices"][0]["text"] for item in data[:-1])


def ask_all(server: LiveServer, hold: Hold, pool: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    """Two run and four wait behind a step that is held; every stream has begun."""
    hold.arm(lambda plan: True)
    asked = [pool.submit(ask, server, body) for body in BODIES]
    assert eventually(lambda: server.service.streams.num_live == len(BODIES))
    hold.wait()
    return asked


def is_closed(server: LiveServer) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


@pytest.mark.parametrize("mode", ["serial", "ar_batch"])
def test_all_that_was_accepted_is_answered_before_the_server_ends(tmp_path: Path, mode: str) -> None:
    hold = Hold()
    width = {} if mode == "serial" else {"decode_batch_max": 2}
    with (
        live_server(tmp_path, FakeRunner(fault=hold), mode, **width) as server,
        ThreadPoolExecutor(6) as pool,
    ):
        expected = [outcome(body, ask(server, body)) for body in BODIES]
        asked = ask_all(server, hold, pool)
        server.service.stop()
        assert eventually(lambda: is_closed(server)), "nobody else comes in"
        hold.let_go()
        assert [outcome(*pair) for pair in zip(BODIES, (f.result() for f in asked), strict=True)] == expected


@pytest.mark.parametrize("num_signals", [1, 2])
def test_what_is_not_ready_in_time_ends_with_an_error_and_not_in_silence(tmp_path: Path, num_signals: int) -> None:
    """One signal leaves no time here; after a second one nobody waits for the time that there is."""
    hold = Hold()
    drain_timeout_s = 0.1 if num_signals == 1 else 600.0
    with (
        live_server(tmp_path, FakeRunner(fault=hold), decode_batch_max=2, drain_timeout_s=drain_timeout_s) as server,
        ThreadPoolExecutor(6) as pool,
    ):
        asked = ask_all(server, hold, pool)
        for _ in range(num_signals):
            server.service._server.handle_exit(signal.SIGINT, None)
        responses = [future.result() for future in asked]
        hold.let_go()  # the step that nobody waited for
    codes = [200 if body["stream"] else 503 for body in BODIES]
    assert [response.status_code for response in responses] == codes
    assert {outcome(*pair) for pair in zip(BODIES, responses, strict=True)} == {"engine_dead"}
