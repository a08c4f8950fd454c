"""Whatever goes wrong ends as OpenAI's error body with the right status, and says nothing of the server's insides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import ContextLengthError, EngineDeadError, GenerationError, OverloadedError
from mtplx.server.body import MAX_BODY_BYTES
from mtplx.server.boundary import MAX_HEAD_BYTES, MAX_HEADERS
from mtplx.server.choice_text import Delta
from tests.server.asgi import CHAT, COMPLETIONS, ask, chat, complete, error_of, events
from tests.server.fakes import MODEL, FakeServer, FakeStreams, Item, fake_server

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    return fake_server(tmp_path_factory.mktemp("tokenizer"))


def post(server: FakeServer, content: Any, headers: dict[str, str] = JSON) -> tuple[int, dict[str, Any]]:
    response = ask(server, "POST", COMPLETIONS, content=content, headers=headers)
    return response.status_code, error_of(response)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"model": "m"} x',
        b"{'model': 'm'}",
        b'{"model": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"[" * 100_000,
        b'{"n": 1' + b"0" * 5000 + b"}",
    ],
)
def test_what_is_not_json_is_refused(server: FakeServer, content: bytes) -> None:
    status, error = post(server, content)
    assert (status, error["code"], error["param"]) == (400, "invalid_json", None)


@pytest.mark.parametrize("content", [b"[]", b'"x"', b"null", b"5"])
def test_what_is_no_object_is_refused(server: FakeServer, content: bytes) -> None:
    status, error = post(server, content)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", None)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
def test_numbers_that_are_not_finite_are_refused(server: FakeServer, number: str) -> None:
    status, error = post(server, f'{{"model": "{MODEL}", "prompt": "x", "temperature": {number}}}'.encode())
    assert (status, error["param"]) == (400, "temperature")


def test_a_body_over_the_limit_is_refused_while_it_streams_in(server: FakeServer) -> None:
    """Without a Content-Length, and with one that fits exactly."""
    sent = 0

    async def three_times_the_limit() -> Any:
        nonlocal sent
        while sent < 3 * MAX_BODY_BYTES:
            sent += 2**20
            yield b" " * 2**20

    status, error = post(server, three_times_the_limit())
    assert (status, error["code"]) == (413, "body_too_large")
    assert sent <= MAX_BODY_BYTES + 2**21, "the rest was not read"
    start = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    fits = ask(server, "POST", COMPLETIONS, content=start.ljust(MAX_BODY_BYTES), headers=JSON)
    assert fits.status_code == 200


def test_many_faults_cost_no_more_than_one(server: FakeServer) -> None:
    """A list stops being read at its first fault, so that a hostile one makes no list of a million errors."""
    status, error = post(server, json.dumps({"model": MODEL, "prompt": [1] + [""] * 500_000}).encode())
    assert (status, error["param"]) == (400, "prompt.1")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types_are_refused(server: FakeServer, content_type: str) -> None:
    status, error = post(server, b"{}", {"content-type": content_type})
    assert (status, error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("content_encoding", ["gzip", "deflate", "identity, GZIP", "x"])
def test_compressed_bodies_are_refused(server: FakeServer, content_encoding: str) -> None:
    status, error = post(server, b"{}", JSON | {"content-encoding": content_encoding})
    assert (status, error["code"]) == (415, "unsupported_encoding")
    assert "content-encoding" in error["message"]


@pytest.mark.parametrize("charset", ["latin-1", '"utf-16"', ""])
def test_other_charsets_are_refused(server: FakeServer, charset: str) -> None:
    status, error = post(server, b"{}", {"content-type": f"application/json; charset={charset}"})
    assert (status, error["code"]) == (415, "unsupported_encoding")
    assert "content-type" in error["message"]


@pytest.mark.parametrize(
    "headers",
    [{f"x-{i}": "a" for i in range(MAX_HEADERS + 1)}, {"x-long": "a" * MAX_HEAD_BYTES}],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", COMPLETIONS)])
def test_a_head_over_the_limit_is_431(server: FakeServer, method: str, path: str, headers: dict[str, str]) -> None:
    response = ask(server, method, path, headers=headers)
    assert (response.status_code, error_of(response)["code"]) == (431, "head_too_large")


def test_a_long_address_counts_as_head(server: FakeServer) -> None:
    assert ask(server, "GET", "/health?" + "a" * MAX_HEAD_BYTES).status_code == 431
    assert ask(server, "GET", "/health", headers={"x-long": "a" * (MAX_HEAD_BYTES - 1024)}).status_code == 200


def test_json_may_name_its_charset_and_that_it_is_as_it_is(server: FakeServer) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    for content_type in ("Application/JSON; charset=utf-8", 'application/json;Charset="UTF8"', "application/x+json"):
        headers = {"content-type": content_type, "content-encoding": "Identity"}
        assert ask(server, "POST", COMPLETIONS, content=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
    ],
)
def test_routes_that_are_not_there(server: FakeServer, method: str, path: str, status: int, code: str) -> None:
    response = ask(server, method, path)
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    if status == 405:
        assert response.headers["allow"]


def test_an_unknown_model_is_404_everywhere(server: FakeServer) -> None:
    for response in (chat(server, model="other"), complete(server, model="other"), complete(server, model="")):
        error = error_of(response)
        assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert MODEL in error["message"]


def test_names_that_clients_made_up_are_echoed_briefly(server: FakeServer) -> None:
    assert error_of(complete(server, **{"<text>": 1}))["param"] == "<text>"
    long = "x" * 100_000
    for response in (complete(server, **{long: 1}), complete(server, model=long)):
        assert error_of(response)["param"]
        assert "x" * 100 in response.text
        assert len(response.text) < 1000


def test_overload_is_503_with_retry_after(tmp_path: Path) -> None:
    server = fake_server(tmp_path, FakeStreams(refusal=OverloadedError("the queue is full", retry_after_s=3)))
    for response in (chat(server), chat(server, stream=True), complete(server), complete(server, stream=True)):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "3"
        assert error_of(response) == {
            "message": "the queue is full",
            "type": "server_error",
            "param": None,
            "code": "overloaded",
        }
    for path in ("/health", "/metrics", "/v1/models", "/v1/status"):
        assert ask(server, "GET", path).status_code == 200


def test_a_full_server_says_so_before_it_reads_a_body_and_after_it_has_seen_a_key(tmp_path: Path) -> None:
    """A flood costs as little as can be; whoever has no key learns nothing of the load."""
    streams = FakeStreams(refusal=OverloadedError("the queue is full"))

    async def never_read() -> Any:
        raise AssertionError("the body was read")
        yield b""

    for path in (CHAT, COMPLETIONS, "/v1/messages", "/v1/responses"):
        response = ask(fake_server(tmp_path, streams), "POST", path, content=never_read(), headers=JSON)
        expected = 529 if path == "/v1/messages" else 503  # Anthropic has a number of its own
        assert (response.status_code, response.headers["retry-after"]) == (expected, "1")
    guarded = fake_server(tmp_path, streams, api_keys=["secret"])
    assert complete(guarded).status_code == 401
    with_key = ask(guarded, "POST", COMPLETIONS, json={}, headers={"authorization": "Bearer secret"})
    assert with_key.status_code == 400, "with a key, a body is looked at first"


def test_a_dead_engine_is_503_for_all_and_for_health(tmp_path: Path) -> None:
    streams = FakeStreams(refusal=EngineDeadError("the engine has died"), alive=False)
    server = fake_server(tmp_path, streams)
    for response in (chat(server), complete(server, stream=True), ask(server, "GET", "/health")):
        assert (response.status_code, error_of(response)["code"]) == (503, "engine_dead")
    assert ask(server, "GET", "/v1/status").json()["alive"] is False


def test_a_prompt_over_the_limit_names_the_field_that_it_came_from(tmp_path: Path) -> None:
    refusal = ContextLengthError("too long", "prompt")
    server = fake_server(tmp_path, FakeStreams(refusal=refusal))
    for response, param in ((chat(server), "messages"), (complete(server), "prompt")):
        error = error_of(response)
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)


def half_then(error: Exception) -> FakeStreams:
    script: list[Item] = [Delta(0, "half", (1, 2), (), None), error]
    return FakeStreams(script=lambda *_: script)


def test_a_failed_request_is_500_and_closed(tmp_path: Path) -> None:
    server = fake_server(tmp_path, half_then(GenerationError("the model failed on this request")))
    response = chat(server)
    assert (response.status_code, error_of(response)["code"]) == (500, "generation_failed")
    assert server.streams.streams[0].closed.is_set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GenerationError("the model failed on this request"), "generation_failed"),
        (EngineDeadError("the engine has died"), "engine_dead"),
        (KeyError("/secret/path"), "internal_error"),
    ],
)
def test_a_stream_that_fails_ends_with_the_error_and_without_done(tmp_path: Path, error: Exception, code: str) -> None:
    server = fake_server(tmp_path, half_then(error))
    response = complete(server, stream=True, stream_options={"include_usage": True})
    *pieces, last = events(response.text)
    assert response.status_code == 200
    assert [json.loads(piece)["choices"][0]["text"] for piece in pieces] == ["half"]
    assert json.loads(last)["error"]["code"] == code
    assert "[DONE]" not in response.text
    assert "secret" not in response.text
    assert server.streams.streams[0].closed.is_set()
    assert f'mtplx_errors_total{{code="{code}"}} 1.0' in ask(server, "GET", "/metrics").text


def test_one_failed_prompt_of_a_list_ends_the_others(tmp_path: Path) -> None:
    scripts: list[list[Item]] = [[Delta(0, "a", (1,), (), None), GenerationError("failed")], []]
    server = fake_server(tmp_path, FakeStreams(script=lambda number, *_: scripts[number]))
    assert complete(server, prompt=["a", "b"]).status_code == 500
    assert all(stream.closed.is_set() for stream in server.streams.streams)


def test_a_surprise_is_a_plain_500_and_a_log_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = fake_server(tmp_path, FakeStreams(refusal=KeyError("/secret/path")))
    response = complete(server)
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in caplog.text
    assert "/secret/path" in caplog.text


def test_request_ids_are_echoed_or_made(server: FakeServer) -> None:
    def id_for(sent: str | None) -> str:
        headers = {} if sent is None else {"x-request-id": sent}
        return str(ask(server, "GET", "/health", headers=headers).headers["x-request-id"])

    assert id_for("abc-1.2:3_x") == "abc-1.2:3_x"
    made = [id_for(sent) for sent in (None, "", "a b", "x" * 129, "<script>")]
    assert all(len(request_id) == 32 for request_id in made)
    assert len(set(made)) == len(made)
    assert len(ask(server, "GET", "/nowhere").headers["x-request-id"]) == 32
