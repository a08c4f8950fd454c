"""POST /v1/responses: what is asked of the engine, the shapes of answers and events, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest
from openai.types.responses import response_create_params
from pydantic import BaseModel

from mtplx.batching.state import FinishReason
from mtplx.errors import ContextLengthError, GenerationError, OverloadedError
from mtplx.sampling_params import SamplingParams
from mtplx.server.choice_text import Delta
from mtplx.server.protocol import responses as protocol_responses
from mtplx.server.protocol.responses import (
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    InputText,
    MessageItem,
    OutputText,
    Reasoning,
    ReasoningItem,
    ResponsesRequest,
    ResponseStreamOptions,
    TextConfig,
)
from mtplx.server.protocol.strict import StrictModel
from tests.server.asgi import ask, chat, error_of
from tests.server.fakes import MODEL, FakeServer, FakeStreams, Item, fake_server
from tests.server.test_messages import events
from tests.server.test_refusals import refused_fields

RESPONSES = "/v1/responses"
TEXT = "p0c0 hello"
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}

# A value that a client could really send, for every field that is refused.
WISHES: dict[type[BaseModel], dict[str, Any]] = {
    ResponsesRequest: {
        "store": True,
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "background": True,
        "background_options": {"completion_window": "2h"},
        "prompt": {"id": "pmpt_1"},
        "truncation": "auto",
        "context_management": [{"type": "compaction"}],
        "service_tier": "flex",
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_retention": "24h",
        "moderation": {"model": "m"},
        "image": {"context_compression": "auto"},
        "access_programs": {"cyber": "standard"},
    },
    ResponseStreamOptions: {"include_obfuscation": True},
    TextConfig: {"verbosity": "low"},
    Reasoning: {"summary": "detailed", "generate_summary": "concise", "context": "all_turns", "mode": "pro"},
    FunctionTool: {"allowed_callers": ["programmatic"], "defer_loading": True, "output_schema": {}},
    MessageItem: {"phase": "commentary"},
    InputText: {"prompt_cache_breakpoint": {"mode": "explicit"}},
    OutputText: {"annotations": [{"type": "url_citation"}]},
    FunctionCallItem: {"caller": {"type": "program", "caller_id": "x"}, "namespace": "n"},
    FunctionOutputItem: {"caller": {"type": "program", "caller_id": "x"}, "namespace": "n"},
    ReasoningItem: {"summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "x"},
}


def around(model: type[BaseModel], fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where a model's fields are in a body, and the part of the body around them."""
    part = {"type": "output_text" if model is OutputText else "input_text", "text": "x"}
    message = {"role": "user", "content": "x"}
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    places: dict[type[BaseModel], tuple[str, dict[str, Any]]] = {
        ResponsesRequest: ("", fields),
        ResponseStreamOptions: ("stream_options.", {"stream": True, "stream_options": fields}),
        TextConfig: ("text.", {"text": fields}),
        Reasoning: ("reasoning.", {"reasoning": fields}),
        FunctionTool: ("tools.0.", {"tools": [{"type": "function", "name": "f", **fields}]}),
        MessageItem: ("input.0.", {"input": [{**message, **fields}]}),
        InputText: ("input.0.content.0.", {"input": [{**message, "content": [{**part, **fields}]}]}),
        OutputText: ("input.0.content.0.", {"input": [{**message, "content": [{**part, **fields}]}]}),
        FunctionCallItem: ("input.0.", {"input": [{**CALL, **fields}]}),
        FunctionOutputItem: ("input.0.", {"input": [{**output, **fields}]}),
        ReasoningItem: ("input.0.", {"input": [{"type": "reasoning", **fields}]}),
    }
    return places[model]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    return fake_server(tmp_path_factory.mktemp("tokenizer"))


def post(server: FakeServer, **fields: Any) -> httpx.Response:
    return ask(server, "POST", RESPONSES, json={"model": MODEL, "input": "hi", **fields})


def numbered(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose numbers count from 0; without them."""
    payloads = events(response)
    assert [payload.pop("sequence_number") for payload in payloads] == list(range(len(payloads)))
    return payloads


def same_answer(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two answers to one request."""
    own_id = response["id"].removeprefix("resp_")
    text = json.dumps({**response, "created_at": 0}).replace(own_id, "ID")
    same: dict[str, Any] = json.loads(text)
    return same


def test_whole_answer_has_the_apis_shape_and_the_seed(server: FakeServer) -> None:
    answer = post(server, instructions="be brief", max_output_tokens=20, metadata={"a": "b"}, user="u").json()
    assert answer["created_at"] > 1_700_000_000
    assert answer["id"].startswith("resp_")
    num_prompt_tokens = len(server.last.prompts[0])
    assert same_answer(answer) == {
        "id": "resp_ID",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": MODEL,
        "output": [
            {
                "id": "msg_ID0",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}],
            }
        ],
        "usage": {
            "input_tokens": num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(TEXT),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt_tokens + len(TEXT),
        },
        "system_fingerprint": "fp-fake",
        "seed": 77,
        "instructions": "be brief",
        "max_output_tokens": 20,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "tool_choice": "auto",
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "background": False,
        "previous_response_id": None,
        "truncation": "disabled",
        "service_tier": "default",
        "user": "u",
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


def test_a_stream_is_the_whole_answer_in_pieces(server: FakeServer) -> None:
    whole = post(server).json()
    created, begun, item, part, *pieces, text_done, part_done, item_done, last = numbered(post(server, stream=True))
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == begun["response"]
    assert (begun["response"]["status"], begun["response"]["output"]) == ("in_progress", [])
    own_id = item["item"]["id"]
    assert item == {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"id": own_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []},
    }
    place = {"item_id": own_id, "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert part == {"type": "response.content_part.added", **place, "part": empty}
    for piece in pieces:
        assert piece == {"type": "response.output_text.delta", **place, "delta": piece["delta"], "logprobs": []}
    assert "".join(piece["delta"] for piece in pieces) == TEXT
    assert text_done == {"type": "response.output_text.done", **place, "text": TEXT, "logprobs": []}
    assert part_done == {"type": "response.content_part.done", **place, "part": {**empty, "text": TEXT}}
    assert item_done == {"type": "response.output_item.done", "output_index": 0, "item": last["response"]["output"][0]}
    assert last["type"] == "response.completed"
    assert same_answer(last["response"]) == same_answer(whole)


@pytest.mark.parametrize(
    ("ended", "reason"), [(FinishReason.LENGTH, "max_output_tokens"), (FinishReason.TIMEOUT, "timeout")]
)
def test_an_answer_that_was_cut_is_incomplete(tmp_path: Path, ended: FinishReason, reason: str) -> None:
    script: list[Item] = [Delta(0, "ab", (1, 2), (), ended)]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: list(script)))
    whole = post(server).json()
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert whole["output"][0]["status"] == "incomplete"
    *_, item_done, last = numbered(post(server, stream=True))
    assert (item_done["item"]["status"], last["type"]) == ("incomplete", "response.incomplete")
    assert same_answer(last["response"]) == same_answer(whole)


@pytest.mark.parametrize("fields", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}])
def test_logprobs_are_those_of_a_chat(server: FakeServer, fields: dict[str, Any]) -> None:
    top = fields.get("top_logprobs", 0)
    wanted = chat(server, logprobs=True, top_logprobs=top).json()["choices"][0]["logprobs"]["content"]
    (part,) = post(server, **fields).json()["output"][0]["content"]
    assert part["logprobs"] == wanted != []
    pieces = [event for event in numbered(post(server, **fields, stream=True)) if event["type"].endswith("text.delta")]
    assert [entry for piece in pieces for entry in piece["logprobs"]] == wanted


def test_fields_reach_the_engine(server: FakeServer) -> None:
    post(server, temperature=0.5, top_p=0.9, max_output_tokens=9, seed=-3, draft_depth=1, cache_salt="pepper")
    assert server.last.params == SamplingParams(temperature=0.5, top_p=0.9, max_tokens=9, seed=-3, draft_depth=1)
    assert server.last.terms.cache_salt == b"pepper"


def test_a_schema_holds_the_answer(server: FakeServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    answer = post(server, text={"format": asked}).json()
    grammar = server.last.params.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.source)) == ("json_schema", schema)
    assert answer["text"] == {"format": asked}
    post(server, text={"format": {"type": "json_object"}})
    assert server.last.params.grammar is not None
    post(server, text={"format": {"type": "text"}})
    assert server.last.params.grammar is None


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}, "text.format.schema"),
        ({"type": "json_schema", "name": "a b", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "x", "schema": {}, "mood": 1}, "text.format.mood"),
        ({"type": "text", "mood": 1}, "text.format.mood"),
        ({"type": "grammar", "definition": "x"}, "text.format.type"),
        ({}, "text.format.type"),
    ],
)
def test_wrong_formats_are_named(server: FakeServer, given: dict[str, Any], param: str) -> None:
    response = post(server, text={"format": given})
    assert (response.status_code, error_of(response)["param"]) == (400, param)


def test_items_become_the_turns_of_a_chat(server: FakeServer) -> None:
    items = [
        {"type": "message", "role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        *post(server).json()["output"],
        {"role": "user", "content": "c"},
    ]
    post(server, instructions="be brief", input=items)
    text = (
        f"<user>system: be brief\n<user>system: be kind\n<user>user: a\nb\n<user>assistant: {TEXT}\n<user>user: c\n"
        "<assistant>"
    )
    assert server.last.prompts == [tuple(server.tokenizer.encode(text, add_special_tokens=False))]


@pytest.mark.parametrize("model", WISHES, ids=lambda model: str(model.__name__))
def test_refused_fields_are_named_and_what_they_say_anyway_passes(server: FakeServer, model: type[BaseModel]) -> None:
    assert set(WISHES[model]) == set(refused_fields(model))
    for field, wish in WISHES[model].items():
        path, body = around(model, {field: wish})
        response = post(server, **body)
        error = error_of(response)
        assert (response.status_code, error["param"], error["code"]) == (400, path + field, "unsupported_parameter")
    for field, mark in refused_fields(model).items():
        for value in mark.no_ops:
            body = {"model": MODEL, "input": "hi", **around(model, {field: value})[1]}
            ResponsesRequest.model_validate_json(json.dumps(body))


def test_there_are_wishes_for_every_model_with_refused_fields() -> None:
    models = [item for item in vars(protocol_responses).values() if isinstance(item, type)]
    assert {model for model in models if issubclass(model, StrictModel) and refused_fields(model)} == set(WISHES)


def test_every_field_of_the_official_client_is_known() -> None:
    known = get_type_hints(response_create_params.ResponseCreateParamsStreaming)
    assert set(known) - set(ResponsesRequest.model_fields) == set()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [5]}, "input.0", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0", "invalid_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0", "invalid_value"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "invalid_value"),
        ({"input": [{"role": "user", "content": "x", "mood": 1}]}, "input.0.mood", "unknown_parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "invalid_value"),
        ({"tool_choice": "maybe"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "allowed_tools", "name": "f"}}, "tool_choice.type", "invalid_value"),
        ({"include": ["file_search_call.results"]}, "include.0", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ],
)
def test_wrong_values_are_named(server: FakeServer, fields: dict[str, Any], param: str, code: str) -> None:
    response = post(server, **fields)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert param.partition(".")[0] in error["message"]


def test_a_limit_names_the_field_that_it_came_from(tmp_path: Path) -> None:
    for refusal, param in (("prompt", "input"), ("max_tokens", "max_output_tokens")):
        server = fake_server(tmp_path, FakeStreams(refusal=ContextLengthError("too long", refusal)))
        assert error_of(post(server))["param"] == param


def test_overload_is_as_everywhere(tmp_path: Path) -> None:
    response = post(fake_server(tmp_path, FakeStreams(refusal=OverloadedError("full", retry_after_s=3))))
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert error_of(response)["code"] == "overloaded"


def test_a_stream_that_fails_says_so_with_what_there_is(tmp_path: Path) -> None:
    script: list[Item] = [Delta(0, "half", (1, 2), (), None), GenerationError("the model failed on this request")]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: list(script)))
    *_, error, failed = numbered(post(server, stream=True))
    words = "the model failed on this request"
    assert error == {"type": "error", "code": "generation_failed", "message": words, "param": None}
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": words}
    (item,) = failed["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "half")
    assert server.streams.streams[0].closed.is_set()
