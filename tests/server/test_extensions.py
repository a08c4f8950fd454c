"""Fields that vLLM's clients know, on their way to the engine, and counts in every chunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.asgi import chat, chunks, complete, error_of
from tests.server.fakes import FakeServer, fake_server

BOTH = pytest.mark.parametrize("send", [chat, complete])


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    return fake_server(tmp_path)


@BOTH
@pytest.mark.parametrize(
    ("field", "value", "name", "expected", "default"),
    [
        ("include_stop_str_in_output", True, "include_stop_str_in_output", True, False),
        ("skip_special_tokens", False, "skip_special_tokens", False, True),
        ("bad_words", ["a", " b"], "bad_words", ("a", " b"), ()),
        ("allowed_token_ids", [5, 6], "allowed_token_ids", (5, 6), None),
        ("prompt_logprobs", 0, "prompt_logprobs", 0, None),
        ("logit_bias", {"5": -100, "6": 100}, "logit_bias", {5: -100.0, 6: 100.0}, {}),
        ("stop", ["x"] * 16, "stop", ("x",) * 16, ()),
    ],
)
def test_fields_reach_the_engine(
    server: FakeServer, send: Callable[..., Any], field: str, value: Any, name: str, expected: Any, default: Any
) -> None:
    assert send(server, **{field: value}).status_code == 200
    assert getattr(server.last.params, name) == expected
    assert send(server).status_code == 200
    assert getattr(server.last.params, name) == default


@BOTH
def test_a_prompt_is_cut_to_its_last_tokens(server: FakeServer, send: Callable[..., Any]) -> None:
    send(server)
    [whole] = server.last.prompts
    send(server, truncate_prompt_tokens=1)
    assert server.last.prompts == [whole[-1:]]
    send(server, truncate_prompt_tokens=500)
    assert server.last.prompts == [whole]


def test_special_tokens_are_added_where_they_are_asked_for(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    encode = server.tokenizer.encode

    def spy(text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        asked.append(add_special_tokens)
        return encode(text, add_special_tokens=add_special_tokens, param=param)

    monkeypatch.setattr(server.tokenizer, "encode", spy)
    for fields in ({}, {"add_special_tokens": False}, {"add_special_tokens": True}):
        complete(server, **fields)
        chat(server, **fields)
    assert asked == [True, False, False, False, True, True]


def usages(response: httpx.Response) -> list[int | None]:
    return [chunk["usage"]["completion_tokens"] if chunk.get("usage") else None for chunk in chunks(response)]


@BOTH
def test_every_chunk_has_the_counts_so_far_when_asked(server: FakeServer, send: Callable[..., Any]) -> None:
    num_tokens = len("p0c0 hello")
    running = usages(send(server, stream=True, stream_options={"continuous_usage_stats": True}))
    assert None not in running
    assert running == sorted(running)  # type: ignore[type-var]
    assert running[-1] == num_tokens
    both = usages(send(server, stream=True, stream_options={"continuous_usage_stats": True, "include_usage": True}))
    assert both == [*running, num_tokens]
    assert set(usages(send(server, stream=True, stream_options={}))) == {None}


def test_choices_are_never_ranked(server: FakeServer) -> None:
    error = error_of(complete(server, best_of=3))
    assert (error["param"], error["code"]) == ("best_of", "unsupported_parameter")
    assert complete(server, best_of=3, n=3).status_code == 200
