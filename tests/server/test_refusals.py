"""Every field that isn't obeyed is refused by name; every wrong type, value and contradiction too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mtplx.errors import OverloadedError, RequestError
from mtplx.sampling_params import Grammar, SamplingParams
from mtplx.server.admission import Limits
from mtplx.server.error_bodies import answer_of
from mtplx.server.protocol.chat import ChatCompletionRequest, Message, TextPart
from mtplx.server.protocol.completions import CompletionRequest
from mtplx.server.protocol.strict import Refused
from mtplx.text.tokenizer import Tokenizer
from tests.server.asgi import CHAT, COMPLETIONS, ask, chat, complete, error_of
from tests.server.fakes import MODEL, FakeServer, FakeStreams, fake_server

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
USER = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "f", "parameters": {}}

# A value that a client could really send, for every field that is refused.
EXTENSION_WISHES: dict[str, Any] = {
    "use_beam_search": True,
    "length_penalty": 1.5,
    "early_stopping": True,
    "logits_processors": ["module.function"],
    "return_tokens_as_token_ids": True,
    "request_id": "r-1",
    "kv_transfer_params": {"do_remote_decode": True},
    "vllm_xargs": {"a": 1},
}
CHAT_WISHES: dict[str, Any] = {
    **EXTENSION_WISHES,
    "echo": True,
    "chat_template": "{{ messages }}",
    "documents": [{"text": "x"}],
    "mm_processor_kwargs": {"fps": 1},
    "service_tier": "flex",
    "functions": [FUNCTION],
    "function_call": {"name": "f"},
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
}
COMPLETION_WISHES: dict[str, Any] = {**EXTENSION_WISHES, "suffix": "the end", "prompt_embeds": "AAAA"}
MESSAGE_WISHES: dict[str, Any] = {
    "refusal": "no",
    "audio": {"id": "a"},
    "annotations": [{"type": "url_citation"}],
    "function_call": FUNCTION,
}
PART_WISHES: dict[str, Any] = {"prompt_cache_breakpoint": {"mode": "explicit"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    return fake_server(tmp_path_factory.mktemp("tokenizer"))


def refused_fields(model: type[BaseModel]) -> dict[str, Refused]:
    return {
        name: mark for name, field in model.model_fields.items() for mark in field.metadata if isinstance(mark, Refused)
    }


@pytest.mark.parametrize(
    ("model", "wishes"),
    [
        (ChatCompletionRequest, CHAT_WISHES),
        (CompletionRequest, COMPLETION_WISHES),
        (Message, MESSAGE_WISHES),
        (TextPart, PART_WISHES),
    ],
)
def test_there_is_a_wish_for_every_refused_field(model: type[BaseModel], wishes: Mapping[str, Any]) -> None:
    assert set(wishes) == set(refused_fields(model))


@pytest.mark.parametrize("field", CHAT_WISHES)
def test_chat_refuses_by_name(server: FakeServer, field: str) -> None:
    response = chat(server, **{field: CHAT_WISHES[field]})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"], error["type"]) == (field, "unsupported_parameter", "invalid_request_error")
    assert field in error["message"]


@pytest.mark.parametrize("field", COMPLETION_WISHES)
def test_completions_refuse_by_name(server: FakeServer, field: str) -> None:
    error = error_of(complete(server, **{field: COMPLETION_WISHES[field]}))
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")


@pytest.mark.parametrize("field", MESSAGE_WISHES)
def test_messages_refuse_by_path(server: FakeServer, field: str) -> None:
    message = {"role": "assistant", "content": "x", field: MESSAGE_WISHES[field]}
    error = error_of(chat(server, messages=[{"role": "user", "content": "y"}, message]))
    assert (error["param"], error["code"]) == (f"messages.1.{field}", "unsupported_parameter")


def test_parts_and_stream_options_refuse_by_path(server: FakeServer) -> None:
    part = {"type": "text", "text": "x", **PART_WISHES}
    error = error_of(chat(server, messages=[{"role": "user", "content": [part]}]))
    assert error["param"] == "messages.0.content.0.prompt_cache_breakpoint"
    error = error_of(chat(server, stream=True, stream_options={"include_obfuscation": True}))
    assert (error["param"], error["code"]) == ("stream_options.include_obfuscation", "unsupported_parameter")


def test_what_a_refused_field_says_anyway_passes(server: FakeServer) -> None:
    for model, send in ((ChatCompletionRequest, chat), (CompletionRequest, complete)):
        for field, mark in refused_fields(model).items():
            for value in mark.no_ops:
                assert send(server, **{field: value}).status_code == 200, (field, value)


def test_what_only_looks_like_a_no_op_is_refused(server: FakeServer) -> None:
    """Python takes 0 for False and 1 for True; JSON doesn't."""
    assert chat(server, store=0).status_code == 400
    assert chat(server, parallel_tool_calls=1).status_code == 400


def test_fields_that_ask_nothing_pass(server: FakeServer) -> None:
    accepted = {"user": "u", "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s"}
    assert chat(server, **accepted).status_code == 200
    accepted = {"user": "u", "metadata": {"a": "b"}, "spaces_between_special_tokens": True}
    assert complete(server, **accepted).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x", "unknown_parameter"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_k": 1.0}, "top_k", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"min_p": 1.5}, "min_p", "invalid_value"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"repetition_penalty": 1e-310}, "repetition_penalty", "invalid_value"),
        ({"repetition_penalty": 101}, "repetition_penalty", "invalid_value"),
        ({"min_tokens": 1, "stop_token_ids": list(range(260))}, "stop_token_ids", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"n": "2"}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 2.5}, "max_tokens", "invalid_value"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", "invalid_value"),
        ({"seed": 2**64}, "seed", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_value"),
        ({"stream": 1}, "stream", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop.1", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"bad_words": ["a", " "]}, "bad_words.1", "invalid_value"),
        ({"bad_words": ["a" * 257]}, "bad_words.0", "invalid_value"),
        ({"bad_words": ["a"] * 257}, "bad_words", "invalid_value"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [260]}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [256], "min_tokens": 1}, "allowed_token_ids", "invalid_value"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"skip_special_tokens": 0}, "skip_special_tokens", "invalid_value"),
        (
            {"stream_options": {"continuous_usage_stats": 1}, "stream": True},
            "stream_options.continuous_usage_stats",
            "invalid_value",
        ),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids.1", "invalid_value"),
        ({"stop_token_ids": [999]}, "stop_token_ids", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
        ({"logit_bias": {"05": 1}}, "logit_bias.05", "invalid_value"),
        ({"logit_bias": {"five": 1}}, "logit_bias.five", "invalid_value"),
        ({"logit_bias": {"999": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": [5]}, "logit_bias", "invalid_value"),
        ({"model": 5}, "model", "invalid_value"),
        ({"user": 5}, "user", "invalid_value"),
    ],
)
def test_wrong_values_are_named(server: FakeServer, path: str, fields: dict[str, Any], param: str, code: str) -> None:
    start = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    response = ask(server, "POST", path, json={"model": MODEL, **start, **fields})
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, code)
    assert param.partition(".")[0] in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages.0.content"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages.0.mood"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
def test_wrong_chat_fields_are_named(server: FakeServer, fields: dict[str, Any], param: str) -> None:
    response = chat(server, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt.0"),
        ({"prompt": ["a", 5]}, "prompt.1"),
        ({"prompt": [5, "a"]}, "prompt.1"),
        ({"prompt": [True]}, "prompt.0"),
        ({"prompt": [[5], "a"]}, "prompt.1"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_wrong_completion_fields_are_named(server: FakeServer, fields: dict[str, Any], param: str) -> None:
    response = complete(server, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_the_same_limit_twice_is_no_contradiction(server: FakeServer) -> None:
    chat(server, max_tokens=4, max_completion_tokens=4)
    assert server.last.params.max_tokens == 4


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (COMPLETIONS, "prompt")])
def test_missing_fields_are_named(server: FakeServer, path: str, param: str) -> None:
    error = error_of(ask(server, "POST", path, json={"model": MODEL}))
    assert (error["param"], error["code"]) == (param, "missing_required_parameter")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "model": None}, "model"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": [{"role": None, "content": "x"}]}, "messages.0.role"),
        (CHAT, {"messages": USER, "tools": [{"type": "function", "function": None}]}, "tools.0.function"),
        (MESSAGES, {"messages": USER, "max_tokens": None}, "max_tokens"),
        (RESPONSES, {"input": None}, "input"),
    ],
)
def test_null_is_absent_where_a_field_must_be_there(
    server: FakeServer, path: str, fields: dict[str, Any], param: str
) -> None:
    error = ask(server, "POST", path, json={"model": MODEL, **fields}).json()["error"]
    assert (error["param"], error["code"]) == (param, "missing_required_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [None]}, "stop.0"),
        ({"prompt": ["x", None]}, "prompt.1"),
        ({"logit_bias": {"5": None}}, "logit_bias.5"),
        ({"metadata": {"a": None}}, "metadata.a"),
    ],
)
def test_null_is_wrong_where_there_is_no_field(server: FakeServer, fields: dict[str, Any], param: str) -> None:
    error = error_of(complete(server, **fields))
    assert (error["param"], error["code"]) == (param, "invalid_value")


def test_names_that_the_template_has_no_place_for_are_refused(tmp_path: Path) -> None:
    response = chat(fake_server(tmp_path), messages=[{"role": "user", "content": "x", "name": "ann"}])
    assert response.status_code == 400
    assert "name" in error_of(response)["message"]


IMAGE = [{"type": "image_url", "image_url": {"url": "x"}}]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (CHAT, {"messages": "hi"}, "messages: must be a list"),
        (CHAT, {"messages": []}, "messages: the list should have at least 1 item, not 0"),
        (CHAT, {"messages": [5]}, "messages.0: must be an object"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": None}]},
            "messages.0.content is missing",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content: must be a string or a list of text parts",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": IMAGE}]},
            'messages.0.content.0.type: must be "text": this server reads no images, audio or files',
        ),
        (COMPLETIONS, {"prompt": 5}, "prompt: must be a string, a list of token ids, or a list of either"),
        (COMPLETIONS, {"stop": 5}, "stop: must be a string or a list of strings"),
        (COMPLETIONS, {"logit_bias": {"x": 1}}, 'logit_bias.x: keys must be token ids, such as "50256"'),
    ],
)
def test_refusals_say_in_plain_words_what_is_allowed(
    server: FakeServer, path: str, fields: dict[str, Any], message: str
) -> None:
    start = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    assert error_of(ask(server, "POST", path, json={"model": MODEL, **start, **fields}))["message"] == message


def refuse_to_encode(*_: Any, **__: Any) -> None:
    raise AssertionError("no text may be encoded")


def test_a_text_that_can_never_fit_is_refused_before_it_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fake_server(tmp_path)
    text = "x" * (server.streams.max_model_len * server.tokenizer.longest_token)
    assert complete(server, prompt=text).status_code == 200, "the fake admits any length, so only size counts"
    monkeypatch.setattr(Tokenizer, "encode", refuse_to_encode)
    for response, param in (
        (complete(server, prompt=text + "x"), "prompt"),
        (complete(server, prompt=["x", text + "x"]), "prompt"),
        (chat(server, messages=[{"role": "user", "content": text}]), "messages"),
    ):
        error = error_of(response)
        assert (response.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")
        assert "64 tokens" in error["message"]


def test_a_full_queue_is_said_before_any_text_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = fake_server(tmp_path, FakeStreams(refusal=OverloadedError("full")))
    monkeypatch.setattr(Tokenizer, "encode", refuse_to_encode)
    for response in (chat(server), complete(server, prompt=["a", "b"])):
        assert (response.status_code, error_of(response)["code"]) == (503, "overloaded")


def limits(max_live: int) -> Limits:
    return Limits(max_model_len=64, cache_tokens=64, max_live=max_live, eos_ids=frozenset())


@pytest.mark.parametrize(("num_prompts", "n", "param"), [(3, 1, "prompt"), (1, 3, "n"), (2, 2, "n")])
def test_too_many_answers_name_the_field_that_asks_for_them(num_prompts: int, n: int, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        limits(2).check_room(num_live=0, num_prompts=num_prompts, n=n)
    assert caught.value.param == param
    assert "1 prompts" not in str(caught.value)


def test_an_empty_prompt_is_not_too_long() -> None:
    with pytest.raises(RequestError) as caught:
        limits(2).stop_rules(0, SamplingParams())
    assert answer_of(caught.value).code == "invalid_value"


def test_a_grammar_must_be_able_to_end() -> None:
    grammar = Grammar("regex", "a")
    with pytest.raises(RequestError, match="could end") as caught:
        limits(2).stop_rules(1, SamplingParams(grammar=grammar, allowed_token_ids=(97,)))
    assert caught.value.param == "allowed_token_ids"
    rules = limits(2).stop_rules(1, SamplingParams(grammar=grammar, allowed_token_ids=(97, 98), stop_token_ids=(98,)))
    assert rules.stop_ids == {98}
