"""A client that drops, at whatever moment: within a step its work is gone, and the server is as it was."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_behaviours_load import eventually, is_idle
from tests.fakes import FakeDraftingRunner
from tests.faults import Hold
from tests.live import ALL_MODES, MODEL, LiveServer, live_server

MAX_TOKENS = 9


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_client_that_drops_at_any_of_six_moments_leaves_nothing(tmp_path: Path, mode: str) -> None:
    hold = Hold()
    runner = FakeDraftingRunner(0.6, fault=hold, max_position=2000, num_blocks=1000)
    with live_server(tmp_path, runner, mode) as server:
        expected = ask(server)
        whole, streamed = Drops(server, hold, streaming=False), Drops(server, hold, streaming=True)
        for drops in (whole, streamed):
            moments = [drops.in_the_head, drops.in_the_body, drops.in_the_queue, drops.in_the_prompt, drops.at_the_end]
            for moment in [*moments, drops.between_tokens] if drops is streamed else moments:
                moment()
                assert eventually(lambda: is_idle(server)), moment.__name__
                assert eventually(lambda: num_connections(server) == 1), "the one that the test's own client keeps"
                assert ask(server) == expected
        assert set(server.status()["num_finished"]) <= {"length", "cancelled"}


def ask(server: LiveServer) -> Any:
    answer = server.post("/v1/completions", prompt="hello", max_tokens=5, temperature=0, return_token_ids=True)
    return answer["choices"]


def num_connections(server: LiveServer) -> int:
    return len(server.service._server.server_state.connections)


class Drops:
    """Each method opens a connection, leaves it at its moment, and returns when the client is gone."""

    def __init__(self, server: LiveServer, hold: Hold, *, streaming: bool) -> None:
        self._server = server
        self._hold = hold
        prompt = "ws"[streaming] * 200  # none that was computed before
        body = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "stream": streaming}
        content = json.dumps(body).encode()
        self._head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(content)
        )
        self._request = self._head + content

    def in_the_head(self) -> None:
        self._sends_and_starts_nothing(self._head[:60])

    def in_the_body(self) -> None:
        self._sends_and_starts_nothing(self._request[:-5])

    def in_the_queue(self) -> None:
        """Before its first step, which waits behind a step of somebody else."""
        self._hold.arm(lambda plan: True)
        with self._connected(self._request), self._connected(self._request):
            assert eventually(lambda: self._server.service.streams.num_live == 2)
            self._hold.wait()
        self._let_go_when_they_left()

    def in_the_prompt(self) -> None:
        self._drops_at(lambda plan: any(row.start >= 32 and row.num_logits == 0 for row in plan.rows))

    def between_tokens(self) -> None:
        """When it has read the first of them."""
        self._hold.arm(lambda plan: any(row.start > 202 for row in plan.rows))
        with self._connected(self._request) as connection:
            read = b""
            while b"data: " not in read:
                read += connection.recv(4096)
            self._hold.wait()
        self._let_go_when_they_left()

    def at_the_end(self) -> None:
        """While its last token is computed."""
        self._drops_at(lambda plan: any(row.end == 200 + MAX_TOKENS - 1 for row in plan.rows))

    def _drops_at(self, is_hit: Any) -> None:
        self._hold.arm(is_hit)
        with self._connected(self._request):
            self._hold.wait()
        self._let_go_when_they_left()

    def _let_go_when_they_left(self) -> None:
        assert eventually(lambda: self._server.service.streams.num_live == 0), "the event loop hears of it at once"
        self._hold.let_go()

    def _sends_and_starts_nothing(self, data: bytes) -> None:
        num_plans = len(self._server.runner.plans)
        with self._connected(data):
            assert eventually(lambda: num_connections(self._server) == 2)
        assert len(self._server.runner.plans) == num_plans

    @contextmanager
    def _connected(self, data: bytes) -> Iterator[socket.socket]:
        host, port = self._server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(data)
            yield connection
