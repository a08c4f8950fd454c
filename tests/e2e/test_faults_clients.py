"""Clients that send what nobody should, or read nothing: they get a clear answer or none, and others notice nothing."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtplx.server.body import MAX_BODY_BYTES
from tests.e2e.test_behaviours_load import eventually, is_idle
from tests.fakes import FakeRunner
from tests.live import MODEL, LiveServer, live_server

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("clients"), FakeRunner()) as server:
        yield server
        assert is_idle(server)
        assert server.status()["num_finished"].keys() <= {"length"}, "nothing that was refused was begun"


def address(server: LiveServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def assert_well(server: LiveServer) -> None:
    assert server.client.get("/health").status_code == 200
    assert server.post("/v1/completions", prompt="hi", max_tokens=2)["usage"]["completion_tokens"] == 2


def tell(server: LiveServer, data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of what these bytes are answered with."""
    with socket.create_connection(address(server), timeout=60) as connection:
        connection.sendall(data)
        response = http.client.HTTPResponse(connection)
        response.begin()
        error: dict[str, Any] = json.loads(response.read())["error"]
        return response.status, error


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + b"x: y\r\n" * 10_000 + b"\r\n", 431),
        (HEAD + b"x: " + b"y" * 2**20 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 2**20 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (HEAD + b"Content-Length: 104857600\r\n\r\n{", 413),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (HEAD + b"Host: twice\r\n\r\n", 400),
        (HEAD + b"x: \x00\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /v1/models/%ed%a0%80%00 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /v1/models/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n", 400),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bytes_that_are_no_request_are_refused_and_cost_nothing(server: LiveServer, data: bytes, status: int) -> None:
    found, error = tell(server, data)
    assert found == status
    assert error["type"] == "invalid_request_error"
    assert_well(server)


def test_a_body_of_100_megabytes_is_refused_whether_its_length_is_said_or_not(server: LiveServer) -> None:
    """A client that writes all of it before it reads anything hears why, too."""
    pieces = [b"x" * 2**20] * 100
    for body, headers in ((b"".join(pieces), JSON), (iter(pieces), JSON)):
        connection = http.client.HTTPConnection(*address(server), timeout=60)
        connection.request("POST", "/v1/completions", body, headers, encode_chunked=not isinstance(body, bytes))
        response = connection.getresponse()
        assert response.status == 413
        assert str(MAX_BODY_BYTES) in json.loads(response.read())["error"]["message"]
        connection.close()
    assert_well(server)


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"\xef\xbb\xbf{}", None),
        ('{"prompt": "x"}'.encode("utf-16"), None),
        (b'{"prompt": "\xc3\x28"}', None),
        (b'{"prompt": "a\x00b"}', None),
        (b'{"\\ud800": 1}', None),
        (b'{"prompt": "x", "metadata": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_001, None),
        (b'{"prompt": "x", "seed": 1' + b"0" * 100_000 + b"}", None),
        (b'{"model": "fake-model", "prompt": "x", "seed": 1' + b"0" * 4000 + b"}", "seed"),
        (b'{"model": "fake-model", "prompt": "x", "max_tokens": 1e400}', "max_tokens"),
        (b'{"model": "fake-model", "prompt": [1' + b"0" * 30 + b"]}", "prompt.0"),
        (b'{"model": "fake-model", "prompt": "x", "logit_bias": {"65": 1e400}}', "logit_bias.65"),
        (b'{"model": "fake-model", "prompt": "x", "max_tokens": 2, "max_tokens": -2}', "max_tokens"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_json_that_is_none_or_too_much_is_refused(server: LiveServer, content: bytes, param: str | None) -> None:
    response = server.client.post("/v1/completions", content=content, headers=JSON)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["code"] == ("invalid_json" if param is None else "invalid_value")
    assert len(response.content) < 1000


def test_prompts_of_one_token_of_all_there_may_be_and_of_odd_characters(server: LiveServer) -> None:
    limit = server.client.get("/v1/models").json()["data"][0]["max_model_len"]
    for prompt, num_tokens in (([65], 1), ([65] * (limit - 1), limit - 1), ("\0", 1), ("\U0001f600\ufeff", 7)):
        usage = server.post("/v1/completions", prompt=prompt, max_tokens=1, stop=["\0"])["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (num_tokens, 1)
    for prompt in ("", [], [[]], [65] * limit):
        answer = server.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("prompt")


def test_a_client_that_stops_reading_holds_up_nobody_and_is_cut_off(tmp_path: Path) -> None:
    """What it doesn't read waits in the server, never more than its own tokens; then its work is cancelled."""
    runner = FakeRunner(num_blocks=2048, max_position=8000)
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 7000, "logprobs": 5, "n": 2, "stream": True}
    content = json.dumps(body).encode()
    with live_server(tmp_path, runner, send_buffer=4096, send_timeout_s=0.5) as server, socket.socket() as slow:
        alone = server.post("/v1/completions", prompt="other", max_tokens=20, temperature=0)["choices"]
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(address(server))
        slow.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        assert eventually(lambda: any(connection.flow.write_paused for connection in connections(server)))
        beside = server.post("/v1/completions", prompt="other", max_tokens=20, temperature=0)["choices"]
        assert beside == alone
        assert eventually(lambda: len(connections(server)) == 1), "cut off"
        assert eventually(lambda: is_idle(server))
        assert server.status()["num_finished"] == {"length": 2, "cancelled": 2}
        assert runner.plans[-1].rows[-1].start < 7000, "it stopped long before the answer's end"


def connections(server: LiveServer) -> list[Any]:
    return list(server.service._server.server_state.connections)
