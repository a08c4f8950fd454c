"""Thoughts in chat completions, told from the answer and counted; grammars come after them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.scripted import CALL, CLOCK, TIME, WEATHER, Serve, ask, choice_of, joined, refusal, serving, stream


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with serving(tmp_path) as start:
        yield start


def test_thoughts_are_told_from_the_answer(serve: Serve) -> None:
    server = serve("<think>\nhm\n</think>\n\nYes", reasoning_parser="think")
    answer = ask(server)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Yes", "refusal": None, "reasoning_content": "hm"}
    num_thought = len("<think>\nhm\n</think>")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_thought - len("<think")}
    assert joined(stream(server)) == {"content": "Yes", "reasoning_content": "hm", "calls": []}


def test_calls_come_after_thoughts(serve: Serve) -> None:
    server = serve(f"<think>{TIME}</think>{CALL}", reasoning_parser="think")
    message = choice_of(server, tools=[WEATHER, CLOCK])["message"]
    assert message["reasoning_content"] == TIME
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]


def test_a_model_without_thoughts_has_no_place_for_them(serve: Serve) -> None:
    server = serve("<think>hm</think>Yes")
    answer = ask(server, reasoning_effort="none")
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "<think>hm</think>Yes",
        "refusal": None,
    }
    assert "completion_tokens_details" not in answer["usage"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [CLOCK], "tool_choice": "required"},
        {"guided_json": {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}},
        {"guided_regex": "a/b|c"},
    ],
)
def test_what_an_answer_is_held_to_comes_after_its_thought(serve: Serve, fields: dict[str, Any]) -> None:
    server = serve("<think>hm</think>", reasoning_parser="think")  # then it wants to end, and must not
    message = choice_of(server, max_tokens=1000, **fields)["message"]
    assert message["reasoning_content"] == "hm"
    if "tools" in fields:
        assert message["tool_calls"][0]["function"] == {"name": "get_time", "arguments": "{}"}
    elif "guided_regex" in fields:
        assert message["content"] in ("a/b", "c")
    else:
        assert isinstance(json.loads(message["content"]), dict)


def test_a_grammar_of_ones_own_and_thoughts_are_refused_together(serve: Serve) -> None:
    server = serve("x", reasoning_parser="think")
    assert refusal(server, guided_grammar='start: "a"')["param"] == "guided_grammar"
