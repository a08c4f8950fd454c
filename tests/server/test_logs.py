"""Every request has its line, for people or for machines, and no line has a word of a prompt, an answer or a key."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mtplx.telemetry.logs import JsonFormatter, TextFormatter
from tests.fakes import FakeRunner, saying
from tests.live import MODEL, live_server
from tests.server.asgi import CHAT, COMPLETIONS, USER_SAYS_HI, Exchange, ask, chat, complete
from tests.server.fakes import FakeStreams, fake_server, say

CANARY = "canary-4711"


@contextmanager
def logged(formatter: logging.Formatter, level: int = logging.INFO) -> Iterator[io.StringIO]:
    """What the whole process logs meanwhile, in that form."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(lambda record: not record.name.startswith("http"))  # the test's own client
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def access_lines(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["logger"] == "mtplx.access"]


def test_an_answered_request_has_its_numbers_in_one_line(tmp_path: Path) -> None:
    with logged(JsonFormatter()) as log, live_server(tmp_path, FakeRunner()) as server:
        body = {"model": MODEL, "prompt": "hello", "max_tokens": 4, "n": 2, "ignore_eos": True}
        answer = server.client.post(COMPLETIONS, json=body, headers={"x-request-id": "mine-1"})
        assert answer.status_code == 200
    (line,) = access_lines(log.getvalue())
    known = {
        "level": "info",
        "request_id": "mine-1",
        "method": "POST",
        "path": COMPLETIONS,
        "status": 200,
        "endpoint": "completions",
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "finish_reasons": "length",
    }
    assert known.items() <= line.items()
    assert 0 <= line["queue_ms"] < line["first_token_ms"] <= line["duration_ms"]
    assert "code" not in line


def test_a_stream_that_ended_well_has_no_code(tmp_path: Path) -> None:
    with logged(JsonFormatter()) as log, live_server(tmp_path, FakeRunner()) as server:
        body = {"model": MODEL, "prompt": "hello", "max_tokens": 4, "stream": True, "ignore_eos": True}
        assert "[DONE]" in server.client.post(COMPLETIONS, json=body).text
        page = server.client.get("/metrics").text
    (line,) = access_lines(log.getvalue())
    assert (line["status"], line["completion_tokens"], line.get("code")) == (200, 4, None)
    assert "mtplx_errors_total{" not in page


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [({"temperature": 9}, 400, "invalid_value"), ({"model": "other"}, 404, "model_not_found")],
)
def test_a_refused_request_has_its_code(tmp_path: Path, fields: dict[str, Any], status: int, code: str) -> None:
    with logged(JsonFormatter()) as log:
        response = complete(fake_server(tmp_path), **fields)
    (line,) = access_lines(log.getvalue())
    assert (line["status"], line["code"]) == (status, code)
    assert line["request_id"] == response.headers["x-request-id"]
    assert "prompt_tokens" not in line


def test_a_stream_that_fails_after_its_beginning_has_a_code_too(tmp_path: Path) -> None:
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: [*say("ab")[:1], KeyError("surprise")]))
    with logged(JsonFormatter()) as log:
        complete(server, stream=True)
    (line,) = access_lines(log.getvalue())
    assert (line["status"], line["code"], line["completion_tokens"]) == (200, "internal_error", 1)
    other = [json.loads(text) for text in log.getvalue().splitlines() if "mtplx.access" not in text]
    assert [entry["request_id"] for entry in other] == [line["request_id"]]
    assert "KeyError" in other[0]["exception"]


def test_looks_at_pages_are_for_debugging_and_failed_ones_are_not(tmp_path: Path) -> None:
    server = fake_server(tmp_path)
    for level, num_lines in ((logging.INFO, 1), (logging.DEBUG, 2)):
        with logged(JsonFormatter(), level) as log:
            ask(server, "GET", "/health")
            ask(server, "GET", "/nowhere")
        assert len(access_lines(log.getvalue())) == num_lines


def test_text_lines_stay_lines_whatever_the_address(tmp_path: Path) -> None:
    with logged(TextFormatter()) as log:
        ask(fake_server(tmp_path), "GET", "/a%0AINFO fake: line é" + "x" * 500, headers={"x-request-id": "i"})
    (line,) = log.getvalue().splitlines()
    assert line.startswith('INFO mtplx.access: request method=GET path="/a\\nINFO fake: line \\u00e9')
    assert " status=404 code=not_found " in line
    assert line.endswith(" [i]")
    assert "x" * 201 not in line


def test_no_word_of_prompts_answers_or_keys_is_logged_at_any_level(tmp_path: Path) -> None:
    answer = f"answer {CANARY}"
    broken = {"fails": False}

    def fault(plan: Any) -> None:
        if broken["fails"]:
            raise RuntimeError("this step breaks")

    runner = FakeRunner(script=saying(answer, prompt_len=len(CANARY)), fault=fault)
    keys = (f"key-{CANARY}",)
    with (
        logged(TextFormatter(), logging.DEBUG) as text,
        logged(JsonFormatter(), logging.DEBUG) as lines,
        live_server(tmp_path, runner, api_key=keys) as server,
    ):
        server.client.headers["authorization"] = f"Bearer {keys[0]}"
        whole = server.client.post(COMPLETIONS, json={"model": MODEL, "prompt": CANARY, "max_tokens": 40})
        assert whole.json()["choices"][0]["text"] == answer
        message = {"role": "user", "content": CANARY}
        for body in (
            {"messages": [message], "max_tokens": 4},
            {"messages": [message], "max_tokens": 4, "stream": True, "stop": [CANARY], "user": CANARY},
            {"messages": [{**message, "role": CANARY}]},
            {"messages": [message], "temperature": CANARY},
            {"messages": [message], CANARY: 1},
            {"messages": [{"role": "user", "content": CANARY * 100}]},
        ):
            server.client.post(CHAT, json={"model": MODEL, **body})
        server.client.post(CHAT, content=f'{{"messages": "{CANARY}', headers={"content-type": "application/json"})
        server.client.get("/v1/models", headers={"authorization": f"Bearer wrong-{CANARY}"})
        broken["fails"] = True
        assert server.client.post(COMPLETIONS, json={"model": MODEL, "prompt": CANARY}).status_code == 500
    assert "mtplx.access" in text.getvalue()
    assert "this step breaks" in lines.getvalue()
    assert CANARY not in text.getvalue()
    assert CANARY not in lines.getvalue()


def test_a_client_that_left_is_logged_as_such(tmp_path: Path) -> None:
    async def leave() -> None:
        held = asyncio.Event()
        server = fake_server(tmp_path, FakeStreams(script=lambda *_: [*say("ab")[:1], held]))
        exchange = Exchange(server.app, CHAT, {"model": "fake/model", "messages": USER_SAYS_HI, "stream": True})
        exchange.start()
        assert await exchange.next_body()
        exchange.leave()
        await exchange.end()

    with logged(JsonFormatter()) as log:
        asyncio.run(leave())
    (line,) = access_lines(log.getvalue())
    assert (line["status"], line["code"]) == (200, "client_left")


def test_what_is_logged_elsewhere_in_a_request_has_its_id(tmp_path: Path) -> None:
    server = fake_server(tmp_path, FakeStreams(refusal=KeyError("surprise")))
    with logged(JsonFormatter()) as log:
        response = chat(server)
    entries = [json.loads(line) for line in log.getvalue().splitlines()]
    assert {entry["request_id"] for entry in entries} == {response.headers["x-request-id"]}
    assert len(entries) == 2
