"""POST /v1/messages: what is asked of the engine, the shapes of answers, events and errors, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from pydantic import BaseModel

from mtplx.batching.state import FinishReason
from mtplx.errors import ContextLengthError, EngineDeadError, GenerationError, OverloadedError
from mtplx.sampling_params import SamplingParams
from mtplx.server.choice_text import Delta
from mtplx.server.protocol import messages as protocol_messages
from mtplx.server.protocol.messages import (
    CountTokensRequest,
    MessagesRequest,
    TextBlock,
    Thinking,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
)
from mtplx.server.protocol.strict import StrictModel
from tests.server.asgi import Exchange, ask
from tests.server.fakes import MODEL, FakeServer, FakeStreams, Item, fake_server, say
from tests.server.test_refusals import refused_fields

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TEXT = "p0c0 hello"

# A value that a client could really send, for every field that is refused.
WISHES: dict[type[BaseModel], dict[str, Any]] = {
    MessagesRequest: {
        "container": "c",
        "diagnostics": {"previous_message_id": "m"},
        "inference_geo": "eu",
        "service_tier": "priority",
        "context_management": {"edits": []},
        "mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}],
        "speed": "fast",
        "user_profile_id": "u",
        "workspace_id": "w",
    },
    TextBlock: {"citations": [{"type": "char_location"}]},
    ToolUseBlock: {"caller": {"type": "code_execution_20250825", "tool_id": "t"}, "toolset_name": "computer"},
    ToolResultBlock: {"toolset_name": "computer"},
    Tool: {
        "allowed_callers": ["code_execution_20250825"],
        "defer_loading": True,
        "input_examples": [{"x": 1}],
    },
    Thinking: {"display": "omitted"},
}
# Where a model of a field is in a body, as path and as the body's part around it.
PLACES: dict[type[BaseModel], tuple[str, Any]] = {
    MessagesRequest: ("", lambda fields: fields),
    TextBlock: (
        "messages.0.content.0.",
        lambda fields: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **fields}]}]},
    ),
    ToolUseBlock: (
        "messages.1.content.0.",
        lambda fields: {
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}, **fields}],
                },
            ]
        },
    ),
    ToolResultBlock: (
        "messages.0.content.0.",
        lambda fields: {
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", **fields}]}]
        },
    ),
    Tool: ("tools.0.", lambda fields: {"tools": [{"name": "f", "input_schema": {}, **fields}]}),
    Thinking: ("thinking.", lambda fields: {"thinking": {"type": "adaptive", **fields}}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    return fake_server(tmp_path_factory.mktemp("tokenizer"))


def post(server: FakeServer, path: str = MESSAGES, **fields: Any) -> httpx.Response:
    start = {"max_tokens": 20} if path == MESSAGES else {}
    return ask(server, "POST", path, json={"model": MODEL, "messages": HI, **start, **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The payloads of a stream, each of which names its event."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    payloads = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        payload: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        payloads.append(payload)
    return payloads


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert sorted(body) == ["error", "request_id", "type"]
    assert body["type"] == "error"
    assert response.headers["request-id"] == response.headers["x-request-id"] == body["request_id"]
    error: dict[str, Any] = body["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    return error


def ended(text: str, **end: Any) -> FakeStreams:
    script: list[Item] = [*say(text)[:-1], Delta(0, text[-1], (ord(text[-1]),), (), **end)]
    return FakeStreams(script=lambda *_: list(script))


def test_whole_answer_has_anthropics_shape_and_the_seed(server: FakeServer) -> None:
    answer = post(server).json()
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(server.last.prompts[0]),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": len(TEXT),
        },
        "system_fingerprint": "fp-fake",
        "seed": 77,
    }


def test_a_stream_is_the_whole_answer_in_pieces(server: FakeServer) -> None:
    whole = post(server).json()
    stream = events(post(server, stream=True))
    start, begin, *pieces, stop, delta, last = stream
    assert start["type"] == "message_start"
    assert {**start["message"], "id": None} == {
        **whole,
        "id": None,
        "content": [],
        "stop_reason": None,
        "usage": {**whole["usage"], "output_tokens": 0},
    }
    assert begin == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {(piece["type"], piece["index"], piece["delta"]["type"]) for piece in pieces} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert "".join(piece["delta"]["text"] for piece in pieces) == TEXT
    assert stop == {"type": "content_block_stop", "index": 0}
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": whole["usage"],
    }
    assert last == {"type": "message_stop"}


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        ({"finish_reason": FinishReason.STOP}, "end_turn", None),
        ({"finish_reason": FinishReason.STOP, "stop_string": "END"}, "stop_sequence", "END"),
        ({"finish_reason": FinishReason.LENGTH}, "max_tokens", None),
        ({"finish_reason": FinishReason.TIMEOUT}, "timeout", None),
    ],
)
def test_why_an_answer_ended(tmp_path: Path, end: dict[str, Any], reason: str, sequence: str | None) -> None:
    server = fake_server(tmp_path, ended("hello", **end))
    whole = post(server).json()
    delta = events(post(server, stream=True))[-2]["delta"]
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_answer_without_text_has_no_blocks(tmp_path: Path) -> None:
    script: list[Item] = [Delta(0, "", (1,), (), FinishReason.STOP)]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: list(script)))
    assert post(server).json()["content"] == []
    assert [event["type"] for event in events(post(server, stream=True))] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


def test_cached_tokens_are_counted_apart(tmp_path: Path) -> None:
    server = fake_server(tmp_path, ended("hello", finish_reason=FinishReason.STOP, num_cached_tokens=4))
    usage = post(server).json()["usage"]
    assert usage["cache_read_input_tokens"] == 4
    assert usage["input_tokens"] + 4 == len(server.last.prompts[0])
    assert events(post(server, stream=True))[-2]["usage"] == usage


def test_fields_reach_the_engine(server: FakeServer) -> None:
    post(
        server,
        system=[
            {"type": "text", "text": "be"},
            {"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}},
        ],
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["a", "b"],
        seed=-3,
        draft_depth=2,
        cache_salt="pepper",
        metadata={"user_id": "u"},
        thinking={"type": "adaptive"},
    )
    assert server.last.params == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, max_tokens=20, stop=("a", "b"), seed=-3, draft_depth=2
    )
    assert server.last.terms.cache_salt == b"pepper"
    text = "<user>system: be\nbrief\n<user>user: hi\n<assistant>"
    assert server.last.prompts == [tuple(server.tokenizer.encode(text, add_special_tokens=False))]


def test_a_schema_holds_the_answer(server: FakeServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    post(server, output_config={"format": {"type": "json_schema", "schema": schema}})
    grammar = server.last.params.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.source)) == ("json_schema", schema)
    response = post(server, output_config={"format": {"type": "json_schema", "schema": {"type": "nothing"}}})
    assert (response.status_code, error_of(response)["param"]) == (400, "output_config.format.schema")


def test_turns_of_one_role_in_a_row_are_one(server: FakeServer) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    ]
    post(server, messages=messages)
    text = "<user>user: a\nb\nc\n<user>assistant: d\n<user>user: e\n<assistant>"
    assert server.last.prompts == [tuple(server.tokenizer.encode(text, add_special_tokens=False))]


def test_what_the_assistant_has_begun_goes_on(server: FakeServer) -> None:
    begun = [*HI, {"role": "assistant", "content": "well, "}]
    post(server, messages=begun)
    text = "<user>user: hi\n<user>assistant: well, "
    assert server.last.prompts == [tuple(server.tokenizer.encode(text, add_special_tokens=False))]
    assert server.last.continues


def test_tokens_are_counted_as_they_are_asked_with(server: FakeServer) -> None:
    fields = {"system": "be brief", "messages": [*HI, {"role": "assistant", "content": "x"}, *HI]}
    count = post(server, COUNT, **fields).json()
    assert count == {"input_tokens": post(server, **fields).json()["usage"]["input_tokens"]}
    num_opened = len(server.streams.opened)
    post(server, COUNT, **fields)
    assert len(server.streams.opened) == num_opened, "nothing is generated"


def test_headers_of_its_clients_are_taken(server: FakeServer) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x-2026-01-01"}
    body = {"model": MODEL, "messages": HI, "max_tokens": 5}
    assert ask(server, "POST", f"{MESSAGES}?beta=true", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize("model", WISHES, ids=lambda model: str(model.__name__))
def test_refused_fields_are_named_and_what_they_say_anyway_passes(server: FakeServer, model: type[BaseModel]) -> None:
    path, around = PLACES[model]
    assert set(WISHES[model]) == set(refused_fields(model))
    for field, wish in WISHES[model].items():
        response = post(server, **around({field: wish}))
        error = error_of(response)
        assert (response.status_code, error["param"]) == (400, path + field)
        assert (error["code"], error["type"]) == ("unsupported_parameter", "invalid_request_error")
    for field, mark in refused_fields(model).items():
        for value in mark.no_ops:
            body = {"model": MODEL, "messages": HI, "max_tokens": 5, **around({field: value})}
            MessagesRequest.model_validate_json(json.dumps(body))


def test_every_field_of_the_official_client_is_known() -> None:
    streaming = get_type_hints(message_create_params.MessageCreateParamsStreaming)
    assert set(streaming) - set(MessagesRequest.model_fields) == set()
    counting = get_type_hints(message_count_tokens_params.MessageCountTokensParams)
    assert set(counting) - set(CountTokensRequest.model_fields) == set()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0", "invalid_value"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages.0.content.0", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages.0.content.0.text",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
            "messages.0.content.0",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
            "messages.0.content.0",
            "invalid_value",
        ),
        ({"stop_sequences": ["a", ""]}, "stop_sequences.1", "invalid_value"),
        ({"stop_sequences": "a"}, "stop_sequences", "invalid_value"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema", "missing_required_parameter"),
        ({"tools": [{"type": "bash_20250124", "name": "bash", "input_schema": {}}]}, "tools.0.type", "invalid_value"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type", "invalid_value"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "invalid_value"),
        ({"tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name", "invalid_value"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.type", "invalid_value"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format", "invalid_value"),
    ],
)
def test_wrong_values_are_named(server: FakeServer, fields: dict[str, Any], param: str, code: str) -> None:
    response = post(server, **fields)
    error = error_of(response)
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, code)
    assert param in error["message"]


@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [
        (OverloadedError("full", retry_after_s=3), 529, "overloaded_error"),
        (EngineDeadError("dead"), 503, "api_error"),
        (KeyError("/secret/path"), 500, "api_error"),
    ],
)
def test_the_servers_own_trouble_has_anthropics_shape(
    tmp_path: Path, refusal: Exception, status: int, kind: str
) -> None:
    response = post(fake_server(tmp_path, FakeStreams(refusal=refusal)))
    assert (response.status_code, error_of(response)["type"]) == (status, kind)
    assert "secret" not in response.text
    assert response.headers.get("retry-after") == ("3" if status == 529 else None)


def test_other_trouble_of_the_path_has_its_shape_too(tmp_path: Path) -> None:
    server = fake_server(tmp_path, api_keys=("k",))
    key = {"x-api-key": "k"}
    body = {"model": "other", "messages": HI, "max_tokens": 5}
    for response, status, kind in (
        (ask(server, "POST", MESSAGES, json=body), 401, "authentication_error"),
        (ask(server, "POST", MESSAGES, json=body, headers=key), 404, "not_found_error"),
        (ask(server, "GET", MESSAGES, headers=key), 405, "invalid_request_error"),
        (ask(server, "POST", f"{MESSAGES}/nowhere", headers=key), 404, "not_found_error"),
        (ask(server, "POST", MESSAGES, content=b"{}", headers=key), 415, "invalid_request_error"),
        (
            ask(
                server,
                "POST",
                MESSAGES,
                content=b" " * (9 * 2**20),
                headers={**key, "content-type": "application/json"},
            ),
            413,
            "request_too_large",
        ),
    ):
        assert (response.status_code, error_of(response)["type"]) == (status, kind)
    assert "request-id" not in ask(server, "GET", "/v1/messagesx").headers
    assert sorted(ask(server, "GET", "/v1/messagesx").json()["error"]) == ["code", "message", "param", "type"]
    assert list(ask(server, "GET", "/v1/messagesx").json()) == ["error"]


def test_a_limit_names_the_field_that_it_came_from(tmp_path: Path) -> None:
    server = fake_server(tmp_path, FakeStreams(refusal=ContextLengthError("too long", "prompt")))
    error = error_of(post(server))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


def test_a_stream_that_fails_ends_with_an_error_event(tmp_path: Path) -> None:
    script: list[Item] = [Delta(0, "half", (1, 2), (), None), GenerationError("the model failed on this request")]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: list(script)))
    response = post(server, stream=True)
    *_, piece, last = events(response)
    assert piece["delta"]["text"] == "half"
    assert last == {
        "type": "error",
        "error": {
            "type": "api_error",
            "message": "the model failed on this request",
            "param": None,
            "code": "generation_failed",
        },
        "request_id": response.headers["request-id"],
    }
    assert server.streams.streams[0].closed.is_set()


def test_a_quiet_stream_pings_and_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    async def test() -> None:
        script: list[Item] = [Delta(0, "a", (1,), (), None), asyncio.Event()]
        server = fake_server(tmp_path, FakeStreams(script=lambda *_: script), keepalive_s=0.001)
        body = {"model": MODEL, "messages": HI, "max_tokens": 5, "stream": True}
        exchange = Exchange(server.app, MESSAGES, body)
        exchange.start()
        while b'"a"' not in await exchange.next_body():
            pass
        assert [await exchange.next_body() for _ in range(2)] == [b'event: ping\ndata: {"type":"ping"}\n\n'] * 2
        exchange.leave()
        await exchange.end()
        assert server.streams.streams[0].closed.is_set()

    asyncio.run(asyncio.wait_for(test(), 20))


def test_there_are_wishes_for_every_model_with_refused_fields() -> None:
    models = [item for item in vars(protocol_messages).values() if isinstance(item, type)]
    with_refusals = {model for model in models if issubclass(model, StrictModel) and refused_fields(model)}
    assert with_refusals - {CountTokensRequest} == set(WISHES)
