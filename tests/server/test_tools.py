"""Calls of tools in chat completions: their shape, their pieces, their end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.scripted import ARGUMENTS, CALL, CLOCK, TIME, WEATHER, Serve, ask, choice_of, joined, serving, stream


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with serving(tmp_path) as start:
        yield start


def test_a_call_has_openais_shape(serve: Serve) -> None:
    choice = choice_of(serve(CALL), tools=[WEATHER])
    (call,) = choice["message"].pop("tool_calls")
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert choice["finish_reason"] == "tool_calls"


def test_choices_are_counted_by_the_reason_that_clients_are_told(serve: Serve) -> None:
    server = serve(CALL)
    told = [
        choice_of(server, tools=[WEATHER])["finish_reason"],
        stream(server, tools=[WEATHER])[-1]["finish_reason"],
        choice_of(server)["finish_reason"],
        choice_of(server, tools=[WEATHER], max_tokens=len(CALL) // 2)["finish_reason"],
    ]
    page = server.client.get("/metrics").text
    for name, label in (("mtplx_choices_finished_total", "reason"), ("vllm:request_success_total", "finished_reason")):
        found = re.findall(rf'^{name}{{[^}}]*{label}="(\w+)"[^}}]*}} (\d)\.0$', page, re.MULTILINE)
        assert {reason: int(count) for reason, count in found} == Counter(told)
    assert Counter(told) == {"tool_calls": 2, "stop": 1, "length": 1}


def test_a_streamed_call_begins_with_id_and_name_and_goes_on_in_pieces(serve: Serve) -> None:
    choices = stream(serve(f"Let me see.\n{CALL}"), tools=[WEATHER])
    deltas = [choice["delta"]["tool_calls"][0] for choice in choices if "tool_calls" in choice["delta"]]
    assert deltas[0]["id"].startswith("call_")
    assert {**deltas[0], "id": ""} == {
        "id": "",
        "index": 0,
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    assert len(deltas) > 5
    assert all(set(delta) == {"index", "function"} for delta in deltas[1:])
    assert joined(choices)["calls"] == [["get_weather", ARGUMENTS]]
    assert joined(choices)["content"] == "Let me see."
    assert choices[-1]["delta"] == {}
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert {choice["finish_reason"] for choice in choices[:-1]} == {None}


def test_several_calls_and_what_is_said_around_them(serve: Serve) -> None:
    server = serve(f"A\n{CALL}\n{TIME}\nB")
    message = choice_of(server, tools=[WEATHER, CLOCK])["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"]]
    assert calls == [["get_weather", ARGUMENTS], ["get_time", "{}"]]
    assert message["content"] == "A\nB"
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert joined(stream(server, tools=[WEATHER, CLOCK])) == {
        "content": "A\nB",
        "reasoning_content": "",
        "calls": calls,
    }


def test_no_more_than_one_call_where_only_one_may_be_made(serve: Serve) -> None:
    server = serve(f"{CALL}{TIME}" + "x" * 200)
    answer = ask(server, tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    (choice,) = answer["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens"] < len(CALL.encode()), "it ends with the arguments"
    assert len(joined(stream(server, tools=[WEATHER, CLOCK], parallel_tool_calls=False))["calls"]) == 1
    assert server.status()["num_running"] == 0


def test_a_call_of_no_tool_is_text(serve: Serve) -> None:
    server = serve(CALL)
    for fields in ({"tools": [CLOCK]}, {}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = choice_of(server, **fields)
        assert choice["message"] == {"role": "assistant", "content": CALL, "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert joined(stream(server, **fields))["content"] == CALL


def test_a_call_that_is_cut_off_ends_as_what_cut_it(serve: Serve) -> None:
    server = serve(CALL)
    half = len(CALL.encode()) // 2 + 10
    for fields, reason in (({"max_tokens": half}, "length"), ({"stop": "Köl"}, "stop")):
        choice = choice_of(server, tools=[WEATHER], **fields)
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == reason
        assert ARGUMENTS.startswith(call["function"]["arguments"])
        assert joined(stream(server, tools=[WEATHER], **fields))["calls"] == [
            ["get_weather", call["function"]["arguments"]]
        ]


def test_each_choice_has_calls_of_its_own(serve: Serve) -> None:
    server = serve(CALL)
    choices = ask(server, tools=[WEATHER], n=3)["choices"]
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 3
    streamed = stream(server, tools=[WEATHER], n=3)
    assert [joined(streamed, index)["calls"] for index in range(3)] == [[["get_weather", ARGUMENTS]]] * 3


def test_logprobs_have_one_entry_a_token_wherever_the_token_went(serve: Serve) -> None:
    server = serve(f"A {CALL}")
    whole = choice_of(server, tools=[WEATHER], logprobs=True, return_token_ids=True)
    entries = whole["logprobs"]["content"]
    assert len(entries) == len(whole["token_ids"]) == len(f"A {CALL}".encode()) + 1
    streamed = stream(server, tools=[WEATHER], logprobs=True, return_token_ids=True)
    assert [entry for choice in streamed for entry in (choice["logprobs"] or {"content": []})["content"]] == entries
    assert [token for choice in streamed for token in choice.get("token_ids", [])] == whole["token_ids"]


def test_answers_are_the_same_without_drafts(serve: Serve) -> None:
    server = serve(f"A\n{CALL}\n{TIME}")
    one, other = (joined(stream(server, tools=[WEATHER, CLOCK], draft_depth=depth)) for depth in (0, 4))
    assert one == other
