"""/openapi.json tells the truth: what it allows is taken, what it forbids is refused, what is answered is described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from tests.server.asgi import CHAT, COMPLETIONS, USER_SAYS_HI, ask, chat, complete
from tests.server.fakes import MODEL, FakeServer, fake_server
from tests.server.test_messages import COUNT, MESSAGES
from tests.server.test_responses import RESPONSES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    return fake_server(tmp_path_factory.mktemp("tokenizer"), api_keys=())


@pytest.fixture(scope="module")
def described(server: FakeServer) -> dict[str, Any]:
    schema: dict[str, Any] = ask(server, "GET", "/openapi.json").json()
    return schema


def validator(described: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": described["components"]})


def body_validator(described: dict[str, Any], path: str) -> Draft202012Validator:
    content = described["paths"][path]["post"]["requestBody"]["content"]
    return validator(described, content["application/json"]["schema"])


def answer_validator(described: dict[str, Any], path: str, method: str, status: int) -> Draft202012Validator:
    content = described["paths"][path][method]["responses"][str(status)]["content"]
    return validator(described, content["application/json"]["schema"])


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [ref for value in node.values() for ref in references(value)]
        return [ref for value in node for ref in references(value)] if isinstance(node, list) else []

    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert set(references(described)) - known == set()
    assert set(references(described))


def test_422_is_never_described(described: dict[str, Any]) -> None:
    statuses = {s for path in described["paths"].values() for op in path.values() for s in op["responses"]}
    assert "422" not in statuses
    assert {"200", "400", "401", "404", "413", "415", "500", "503", "504", "529"} <= statuses


def test_unknown_fields_are_forbidden(described: dict[str, Any]) -> None:
    for name in ("ChatCompletionRequest", "CompletionRequest", "Message", "TextPart", "StreamOptions"):
        assert described["components"]["schemas"][name]["additionalProperties"] is False


GOOD: list[dict[str, Any]] = [
    {"temperature": 0.5, "n": 2, "stop": ["a"], "seed": 3, "logit_bias": {"5": 1.5}},
    {"temperature": None, "stop": None, "top_k": -1, "stop_token_ids": [], "user": "u"},
    {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}, "stop": "x"},
]
BAD: list[dict[str, Any]] = [
    {"temperature": "1"},
    {"temperature": 3},
    {"n": 0},
    {"n": 1.5},
    {"stop": ""},
    {"stop": [5]},
    {"stop": ["a"] * 17},
    {"seed": 2**64},
    {"logit_bias": {"05": 1}},
    {"logit_bias": {"5": 500}},
    {"stop_token_ids": [-1]},
    {"stream_options": {"include_obfuscation": True}, "stream": True},
    {"unheard_of": 1},
    {"model": None},
]
GOOD_COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": ["a", "b"]},
    {"prompt": [1, 2]},
    {"prompt": [[1], [2]]},
    {"prompt": "x", "echo": False},
    {"prompt": "x", "echo": True, "max_tokens": 0},
]
BAD_COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [1, "a"]},
    {"prompt": None},
    {"echo": "yes"},
    {"suffix": "x"},
    {"logprobs": 21},
]
GOOD_CHATS: list[dict[str, Any]] = [
    {"logprobs": True, "top_logprobs": 5, "response_format": {"type": "text"}, "tools": []},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]},
    {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
    },
    {
        "messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "y"},
        ]
    },
]
BAD_CHATS: list[dict[str, Any]] = [
    {"store": True},
    {"store": 0},
    {"tools": [{}]},
    {"messages": []},
    {"messages": [{"role": "function", "content": "x"}]},
    {"tool_choice": "maybe"},
    {"tool_choice": {"type": "custom", "custom": {"name": "f"}}},
    {"tools": [{"type": "function", "function": {"name": "no such"}}]},
    {"tools": [{"type": "function", "function": {"name": "f"}}] * 129},
    {"reasoning_effort": "extreme"},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
]
STARTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER_SAYS_HI},
    COMPLETIONS: {"prompt": "x"},
    MESSAGES: {"messages": USER_SAYS_HI, "max_tokens": 5},
    COUNT: {"messages": USER_SAYS_HI},
    RESPONSES: {"input": "x"},
    "/tokenize": {},
    "/detokenize": {},
}
OTHERS: list[tuple[str, dict[str, Any], bool]] = [
    (MESSAGES, {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}, True),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "top_k": 0}, True),
    (MESSAGES, {"stop_sequences": ["a"], "thinking": {"type": "adaptive"}, "service_tier": "auto"}, True),
    (MESSAGES, {"max_tokens": None}, False),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, False),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, False),
    (MESSAGES, {"tools": [{"name": "f"}]}, False),
    (MESSAGES, {"service_tier": "priority"}, False),
    (COUNT, {"system": "x"}, True),
    (COUNT, {"max_tokens": 5}, False),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}, True),
    (RESPONSES, {"include": ["message.output_text.logprobs"], "store": False, "tools": []}, True),
    (RESPONSES, {"store": True}, False),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, False),
    (RESPONSES, {"tool_choice": "maybe"}, False),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, False),
    ("/tokenize", {"prompt": "x", "return_token_strs": True}, True),
    ("/tokenize", {"prompt": 5}, False),
    ("/detokenize", {"tokens": [1, 2]}, True),
    ("/detokenize", {"tokens": [-1]}, False),
]


@pytest.mark.parametrize(
    ("path", "fields", "is_good"),
    [
        *((path, fields, True) for path in (CHAT, COMPLETIONS) for fields in GOOD),
        *((path, fields, False) for path in (CHAT, COMPLETIONS) for fields in BAD),
        *((CHAT, fields, True) for fields in GOOD_CHATS),
        *((CHAT, fields, False) for fields in BAD_CHATS),
        *((COMPLETIONS, fields, True) for fields in GOOD_COMPLETIONS),
        *((COMPLETIONS, fields, False) for fields in BAD_COMPLETIONS),
        *OTHERS,
    ],
)
def test_the_description_and_the_server_agree_on_bodies(
    server: FakeServer, described: dict[str, Any], path: str, fields: dict[str, Any], is_good: bool
) -> None:
    body = {"model": MODEL, **STARTS[path], **fields}
    assert body_validator(described, path).is_valid(body) is is_good
    assert ask(server, "POST", path, json=body).status_code == (200 if is_good else 400)


def test_answers_are_as_described(server: FakeServer, described: dict[str, Any]) -> None:
    everything = {"n": 2, "return_token_ids": True}
    answer_validator(described, CHAT, "post", 200).validate(chat(server, logprobs=True, **everything).json())
    answer_validator(described, CHAT, "post", 200).validate(chat(server).json())
    answer_validator(described, COMPLETIONS, "post", 200).validate(complete(server, logprobs=2, **everything).json())
    answer_validator(described, COMPLETIONS, "post", 400).validate(complete(server, n=0).json())
    for path in (MESSAGES, COUNT, RESPONSES):
        answer = ask(server, "POST", path, json={"model": MODEL, **STARTS[path]}).json()
        answer_validator(described, path, "post", 200).validate(answer)
        wrong = ask(server, "POST", path, json={"model": MODEL, **STARTS[path], "mood": 1}).json()
        answer_validator(described, path, "post", 400).validate(wrong)
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})):
        answer_validator(described, path, "post", 200).validate(ask(server, "POST", path, json=body).json())
    for path in ("/v1/models", "/v1/status", "/health"):
        answer_validator(described, path, "get", 200).validate(ask(server, "GET", path).json())


def test_keys_are_described_where_they_are_needed(tmp_path: Path) -> None:
    described = ask(fake_server(tmp_path, api_keys=("k",)), "GET", "/openapi.json").json()
    assert described["paths"][CHAT]["post"]["security"] == [{"HTTPBearer": []}, {"APIKeyHeader": []}]
    assert "security" not in described["paths"]["/health"]["get"]
