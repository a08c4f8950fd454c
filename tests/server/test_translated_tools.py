"""Tools in /v1/messages and /v1/responses: asked for, called, answered, forced, through the official clients too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from mtplx.sampling_params import Grammar
from tests.live import MODEL, LiveServer
from tests.server.asgi import CHAT, ask
from tests.server.fakes import MODEL as FAKE_MODEL
from tests.server.fakes import FakeServer, FakeStreams, fake_server
from tests.server.scripted import ARGUMENTS, ASK, CALL, CLOCK, TIME, WEATHER, Serve, serving

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA = WEATHER["function"]["parameters"]
THEIR_WEATHER: dict[str, Any] = {"name": "get_weather", "description": "tells the weather", "input_schema": SCHEMA}
THEIR_CLOCK: dict[str, Any] = {"name": "get_time", "input_schema": {"type": "object"}}
FLAT_WEATHER: dict[str, Any] = {"type": "function", **WEATHER["function"]}
FLAT_CLOCK: dict[str, Any] = {"type": "function", **CLOCK["function"]}
GIVEN = {"city": "Köln", "unit": "celsius"}

THEIR_CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
THEIR_CALLED: list[dict[str, Any]] = [*ASK, {"role": "assistant", "content": [THEIR_CALL]}]
THEIR_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}
FLAT_CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
FLAT_RESULT = {"type": "function_call_output", "call_id": "a", "output": "x"}

# One conversation in three APIs: two calls, their results, of which one is an error, and a question.
CHAT_TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(GIVEN)}},
            {"id": "b", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "tool", "tool_call_id": "b", "content": "Error: no clock"},
    {"role": "user", "content": "so?"},
]
MESSAGE_TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "get_weather", "input": GIVEN},
            {"type": "tool_use", "id": "b", "name": "get_time", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
            {
                "type": "tool_result",
                "tool_use_id": "b",
                "content": [{"type": "text", "text": "no clock"}],
                "is_error": True,
            },
            {"type": "text", "text": "so?"},
        ],
    },
]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": json.dumps(GIVEN)},
    {"type": "function_call", "call_id": "b", "name": "get_time", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "rain"},
    {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "Error: no clock"}]},
    {"role": "user", "content": "so?"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    return fake_server(tmp_path_factory.mktemp("tokenizer"), FakeStreams(max_model_len=4096))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with serving(tmp_path) as start:
        yield start


def post(server: FakeServer, path: str, **body: Any) -> httpx.Response:
    return ask(server, "POST", path, json={"model": FAKE_MODEL, **body})


def of_anthropic(server: LiveServer) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def of_openai(server: LiveServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_one_conversation_has_one_prompt_in_all_apis(server: FakeServer) -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": CHAT_TURNS, "tools": [WEATHER, CLOCK]},
        MESSAGES: {
            "system": "be brief",
            "messages": MESSAGE_TURNS,
            "tools": [THEIR_WEATHER, {**THEIR_CLOCK, "input_schema": {"type": "object", "properties": {}}}],
            "max_tokens": 20,
        },
        RESPONSES: {"instructions": "be brief", "input": ITEMS, "tools": [FLAT_WEATHER, FLAT_CLOCK]},
    }
    prompts = {}
    for path, body in bodies.items():
        assert post(server, path, **body).status_code == 200
        (prompts[path],) = server.last.prompts
        assert server.last.reading is not None, "calls are told from the text"
    assert prompts[RESPONSES] == prompts[CHAT]
    assert prompts[MESSAGES] == prompts[CHAT]
    del bodies[MESSAGES]["max_tokens"]
    counted = post(server, f"{MESSAGES}/count_tokens", **bodies[MESSAGES])
    assert counted.json() == {"input_tokens": len(prompts[CHAT])}
    tokenized = post(server, "/tokenize", **bodies[CHAT])
    assert tokenized.json()["tokens"] == list(prompts[CHAT])


CHOICES = [
    ("auto", {"type": "auto"}, "auto"),
    ("none", {"type": "none"}, "none"),
    ("required", {"type": "any"}, "required"),
    (
        {"type": "function", "function": {"name": "get_weather"}},
        {"type": "tool", "name": "get_weather"},
        {"type": "function", "name": "get_weather"},
    ),
]


@pytest.mark.parametrize(("chosen", "theirs", "flat"), CHOICES)
@pytest.mark.parametrize("is_parallel", [True, False])
def test_choices_of_tools_mean_the_same(
    server: FakeServer, chosen: Any, theirs: dict[str, Any], flat: Any, is_parallel: bool
) -> None:
    def asked(path: str, **body: Any) -> tuple[Grammar | None, Any, Any]:
        assert post(server, path, **body).status_code == 200
        return server.last.params.grammar, server.last.reading, server.last.prompts

    parallel = {"parallel_tool_calls": is_parallel}
    wanted = asked(CHAT, messages=ASK, tools=[WEATHER], tool_choice=chosen, **parallel)
    if theirs["type"] != "none":
        theirs = {**theirs, "disable_parallel_tool_use": not is_parallel}
        assert asked(MESSAGES, messages=ASK, tools=[THEIR_WEATHER], tool_choice=theirs, max_tokens=20) == wanted
    assert asked(RESPONSES, input=ASK, tools=[FLAT_WEATHER], tool_choice=flat, **parallel) == wanted


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (MESSAGES, {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools.0.input_schema"),
        (MESSAGES, {"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name"),
        (MESSAGES, {"tools": [THEIR_CLOCK, THEIR_CLOCK]}, "tools.1.name"),
        (MESSAGES, {"tools": [THEIR_CLOCK], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            MESSAGES,
            {
                "tools": [{"name": "f", "input_schema": {"properties": {"x": {"type": "string", "pattern": "("}}}}],
                "tool_choice": {"type": "any"},
            },
            "tools.0.input_schema",
        ),
        (
            RESPONSES,
            {"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]},
            "tools.0.parameters",
        ),
        (RESPONSES, {"tools": [FLAT_CLOCK, FLAT_CLOCK]}, "tools.1.name"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"tools": [FLAT_CLOCK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ],
)
def test_wrong_tools_are_named_as_the_client_calls_them(
    server: FakeServer, path: str, body: dict[str, Any], param: str
) -> None:
    start = {"messages": ASK, "max_tokens": 20} if path == MESSAGES else {"input": "hi"}
    response = post(server, path, **{**start, **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_any_without_tools_is_refused_in_the_clients_words(server: FakeServer) -> None:
    error = post(server, MESSAGES, messages=ASK, max_tokens=20, tool_choice={"type": "any"}).json()["error"]
    assert (error["param"], error["message"]) == ("tool_choice", "tool_choice: the type any needs tools")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (MESSAGES, {"messages": [*THEIR_CALLED, THEIR_RESULT, *ASK, THEIR_RESULT]}, "messages.4"),
        (MESSAGES, {"messages": [*ASK, {**THEIR_CALLED[1], "content": [THEIR_CALL, THEIR_CALL]}]}, "messages.1"),
        (RESPONSES, {"input": [*ASK, FLAT_CALL, FLAT_RESULT, FLAT_RESULT]}, "input.3"),
        (RESPONSES, {"input": [*ASK, FLAT_CALL, FLAT_CALL]}, "input.1"),
    ],
)
def test_ids_that_come_twice_are_refused(server: FakeServer, path: str, body: dict[str, Any], param: str) -> None:
    limit = {"max_tokens": 20} if path == MESSAGES else {}
    response = post(server, path, **limit, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"effort": "max"}}, "output_config.effort"),
    ],
)
def test_thinking_that_can_not_be_steered_is_refused(server: FakeServer, fields: dict[str, Any], param: str) -> None:
    response = post(server, MESSAGES, messages=ASK, max_tokens=20, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "fields",
    [{"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}}, {"output_config": {"effort": "high"}}],
)
def test_a_model_that_does_not_think_needs_no_steering(server: FakeServer, fields: dict[str, Any]) -> None:
    assert post(server, MESSAGES, messages=ASK, max_tokens=20, **fields).status_code == 200


def test_thinking_that_can_not_be_kept_from_the_model_names_itself(tmp_path: Path) -> None:
    server = fake_server(tmp_path, reasoning_parser="think")
    response = post(server, MESSAGES, messages=ASK, max_tokens=20, thinking={"type": "disabled"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "thinking")
    response = post(server, RESPONSES, input="hi", reasoning={"effort": "none"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "reasoning.effort")


def test_anthropics_client_calls_a_tool_and_tells_the_result(serve: Serve) -> None:
    server = serve(f"Let me see.\n{CALL}{TIME}")
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "tools": [THEIR_WEATHER, THEIR_CLOCK]}
    with of_anthropic(server) as client:
        message = client.messages.create(messages=ASK, **fields)
        with client.messages.stream(messages=ASK, **fields) as stream:
            streamed = stream.get_final_message()
        for answer in (message, streamed):
            text, first, second = answer.content
            assert answer.stop_reason == "tool_use"
            assert (text.type, first.type, second.type) == ("text", "tool_use", "tool_use")
            assert (first.name, first.input) == ("get_weather", GIVEN)
            assert (second.name, second.input) == ("get_time", {})
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "ok"} for block in message.content[1:]]
        turns: list[Any] = [
            *ASK,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]
        assert client.messages.create(messages=[*ASK, *turns], **fields).stop_reason == "tool_use", "as it always says"


def test_openais_client_calls_a_function_and_tells_the_result(serve: Serve) -> None:
    server = serve(f"Let me see.\n{CALL}{TIME}")
    fields: dict[str, Any] = {"model": MODEL, "tools": [FLAT_WEATHER, FLAT_CLOCK]}
    with of_openai(server) as client:
        response = client.responses.create(input="hi", **fields)
        with client.responses.stream(input="hi", **fields) as stream:
            streamed = stream.get_final_response()
        for answer in (response, streamed):
            text, first, second = answer.output
            assert (text.type, first.type, second.type) == ("message", "function_call", "function_call")
            assert (first.name, first.arguments) == ("get_weather", ARGUMENTS)
            assert (second.name, second.arguments) == ("get_time", "{}")
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "ok"} for item in response.output[1:]
        ]
        items: list[Any] = [*ASK, *response.output, *results]
        assert client.responses.create(input=items, **fields).status == "completed"
