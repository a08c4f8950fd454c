"""Calls that must be made fit their schemas; whatever can't be asked of tools is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.server.asgi import chat, error_of
from tests.server.fakes import fake_server
from tests.server.scripted import ASK, CLOCK, WEATHER, Serve, choice_of, joined, refusal, serving, stream


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with serving(tmp_path) as start:
        yield start


@pytest.mark.parametrize("mode", ["ar_batch", "mtp_batch"])
@pytest.mark.parametrize(
    ("choice", "functions"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
    ],
)
def test_a_call_that_must_be_made_fits_its_schema(serve: Serve, mode: str, choice: Any, functions: set[str]) -> None:
    """The model is noise at temperature 1: whatever is valid comes of the grammar."""
    server = serve(mode=mode)
    validator = jsonschema_rs.validator_for(WEATHER["function"]["parameters"])
    called = set()
    for seed in range(20):
        found = choice_of(server, tools=[WEATHER, CLOCK], tool_choice=choice, temperature=1, seed=seed, max_tokens=1500)
        assert found["finish_reason"] == "tool_calls"
        assert found["message"]["content"] is None
        assert isinstance(choice, str) or len(found["message"]["tool_calls"]) == 1
        for call in found["message"]["tool_calls"]:
            called.add(call["function"]["name"])
            arguments = json.loads(call["function"]["arguments"])
            assert arguments == {} if call["function"]["name"] == "get_time" else validator.is_valid(arguments)
    assert called == functions


@pytest.mark.parametrize("max_tokens", [1, 4, 20, 60])
def test_a_call_that_is_cut_leaves_no_markup(serve: Serve, max_tokens: int) -> None:
    server = serve()
    forced = {"tools": [WEATHER], "tool_choice": "required", "temperature": 1, "seed": 1, "max_tokens": max_tokens}
    found = choice_of(server, **forced)
    calls = [call["function"]["arguments"] for call in found["message"].get("tool_calls", [])]
    assert (found["message"]["content"], found["finish_reason"]) == (None, "length")
    assert len(calls) == (max_tokens == 60)
    streamed = joined(stream(server, **forced))
    assert (streamed["content"], [arguments for _, arguments in streamed["calls"]]) == ("", calls)
    cut_in_name = choice_of(server, **forced | {"max_tokens": 500, "stop": ["get_wea"]})
    assert (cut_in_name["message"]["content"], cut_in_name["finish_reason"]) == (None, "stop")
    message = server.post(
        "/v1/messages",
        messages=ASK,
        max_tokens=max_tokens,
        tools=[{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}],
        tool_choice={"type": "any"},
    )
    assert {block["type"] for block in message["content"]} <= {"tool_use"}
    response = server.post(
        "/v1/responses",
        input="hi",
        max_output_tokens=max_tokens,
        tools=[{"type": "function", **WEATHER["function"]}],
        tool_choice="required",
    )
    assert {item["type"] for item in response["output"]} <= {"function_call"}


def test_a_single_call_that_must_be_made(serve: Serve) -> None:
    found = choice_of(
        serve(), tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False, temperature=1, seed=3
    )
    assert len(found["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("mode", ["ar_batch", "mtp_batch"])
def test_an_answer_of_a_form_may_be_calls_instead(serve: Serve, mode: str) -> None:
    server = serve(mode=mode)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    reasons = set()
    for seed in range(12):
        found = choice_of(
            server, tools=[WEATHER, CLOCK], response_format=form, temperature=1, seed=seed, max_tokens=1500
        )
        message = found["message"]
        reasons.add(found["finish_reason"])
        if found["finish_reason"] == "stop":
            assert jsonschema_rs.is_valid(schema, json.loads(message["content"]))
        else:
            assert message["content"] is None
            assert {call["function"]["name"] for call in message["tool_calls"]} <= {"get_weather", "get_time"}
    assert reasons == {"stop", "tool_calls"}


@pytest.mark.parametrize(
    "bad", [{"pattern": "("}, {"type": "strin"}, {"$ref": "https://example.org/schema"}, {"const": 2**63}]
)
def test_a_schema_that_no_call_can_be_held_to_is_named(serve: Serve, bad: dict[str, Any]) -> None:
    wrong = {
        "type": "function",
        "function": {"name": "bad", "parameters": {"properties": {"x": {"type": "string", **bad}}}},
    }
    error = refusal(serve(), tools=[CLOCK, wrong], tool_choice="required")
    assert error["param"] == "tools.1.function.parameters"
    named = {"type": "function", "function": {"name": "bad"}}
    assert refusal(serve(), tools=[CLOCK, wrong], tool_choice=named)["param"] == "tools.1.function.parameters"


def test_references_inside_a_schema_are_followed(serve: Serve) -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/point"}},
        "required": ["at"],
        "$defs": {"point": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}},
    }
    tool = {"type": "function", "function": {"name": "go", "parameters": schema}}
    found = choice_of(serve(), tools=[tool], tool_choice="required", temperature=1, seed=1)
    for call in found["message"]["tool_calls"]:
        assert jsonschema_rs.is_valid(schema, json.loads(call["function"]["arguments"]))


# Refusals


EARLIER = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [*ASK, {"role": "assistant", "tool_calls": [EARLIER]}]
RESULT = {"role": "tool", "tool_call_id": "a", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, CLOCK, WEATHER]}, "tools.2.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
        (
            {"tools": [CLOCK, {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools.1.function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": []}}}]},
            "tools.0.function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"required": "x"}}}]},
            "tools.0.function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 2**18}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [CLOCK], "tool_choice": 5}, "tool_choice"),
        (
            {"tools": [CLOCK], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"tools": [CLOCK], "guided_choice": ["a"]}, "guided_choice"),
        ({"tools": [CLOCK], "guided_regex": "("}, "guided_regex"),
        ({"tools": [CLOCK], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"messages": [*ASK, {"role": "tool", "content": "x"}]}, "messages.1.tool_call_id"),
        ({"messages": [*ASK, {"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages.1.tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "assistant"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "reasoning_content": "hm"}]}, "messages.0.reasoning_content"),
        ({"messages": [{"role": "system", "content": "x", "reasoning_content": "hm"}]}, "messages.0.reasoning_content"),
        ({"messages": [*CALLED, {**RESULT, "reasoning_content": "hm"}]}, "messages.2.reasoning_content"),
        ({"messages": [*CALLED, {**RESULT, "name": "g"}]}, "messages.2.name"),
        ({"messages": [*CALLED, RESULT, RESULT]}, "messages.3.tool_call_id"),
        ({"messages": [*CALLED, RESULT, *ASK, RESULT]}, "messages.4.tool_call_id"),
        ({"messages": [*ASK, {"role": "assistant", "tool_calls": [EARLIER, EARLIER]}]}, "messages.1.tool_calls.1.id"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}],
                    }
                ]
            },
            "messages.0.tool_calls",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": ""}}],
                    }
                ]
            },
            "messages.0.tool_calls.0.id",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    response = chat(fake_server(tmp_path), **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_a_server_that_reads_no_calls_refuses_tools(serve: Serve) -> None:
    server = serve("x", tool_parser="none")
    error = refusal(server, tools=[CLOCK])
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert "--tool-parser" in error["message"]
    assert choice_of(server, tools=[CLOCK], tool_choice="none")["message"]["content"] == "x"
