"""What an answer holds and where it ends, over HTTP, in every mode: stop strings, limits, usage, counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import EOS, saying
from tests.live import ALL_MODES, MODEL, LiveServer, fake_for, live_server

PROMPT = "hello"
LONG = "E" * 3 + "EN is not it, the END of it"


@pytest.fixture(params=ALL_MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hashing(tmp_path: Path, mode: str) -> Iterator[LiveServer]:
    with live_server(tmp_path, fake_for(mode), mode) as server:
        yield server


def stream(server: LiveServer, path: str, **body: Any) -> list[dict[str, Any]]:
    """The JSON chunks of a streamed answer, which must end with [DONE]."""
    response = server.client.post(path, json={"model": MODEL, "stream": True, **body})
    assert response.status_code == 200, response.text
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def chat_prompt_len() -> int:
    """Bytes of the fake template around one user message 'hello', its two markers being one token each."""
    return len("user: hello\n") + 2


def test_b3_no_part_of_a_stop_string_is_sent(tmp_path: Path, mode: str) -> None:
    """The text that only looked like the stop string comes out; the stop string itself never does."""
    script = saying(LONG, prompt_len=chat_prompt_len())
    messages = [{"role": "user", "content": PROMPT}]
    with live_server(tmp_path, fake_for(mode, script=script), mode) as server:
        whole = server.post("/v1/chat/completions", messages=messages, stop=["END"])["choices"][0]
        chunks = stream(server, "/v1/chat/completions", messages=messages, stop=["END"])
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(pieces) == whole["message"]["content"] == "EEEEN is not it, the "
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_b3_held_text_is_flushed_at_the_end(tmp_path: Path, mode: str) -> None:
    with live_server(tmp_path, fake_for(mode, script=saying("the EN", prompt_len=5)), mode) as server:
        answer = server.post("/v1/completions", prompt=PROMPT, stop=["END"], max_tokens=50)["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == ("the EN", "stop")


def test_b5_nothing_after_the_end_unless_it_is_ignored(tmp_path: Path, mode: str) -> None:
    with live_server(tmp_path, fake_for(mode, script=saying("ab", prompt_len=5, then=EOS)), mode) as server:
        ended = server.post("/v1/completions", prompt=PROMPT, max_tokens=9, return_token_ids=True)["choices"][0]
        going = server.post("/v1/completions", prompt=PROMPT, max_tokens=9, ignore_eos=True, return_token_ids=True)
    assert (ended["text"], ended["finish_reason"]) == ("ab", "stop")
    assert ended["token_ids"] == [97, 98, EOS]
    assert going["choices"][0]["finish_reason"] == "length"
    assert going["choices"][0]["token_ids"] == [97, 98] + [EOS] * 7


def test_b6_min_tokens_holds_against_stop_strings_and_eos(tmp_path: Path, mode: str) -> None:
    with live_server(tmp_path, fake_for(mode, script=saying("abcdefghijc", prompt_len=5)), mode) as server:
        late = server.post("/v1/completions", prompt=PROMPT, max_tokens=20, min_tokens=8, stop=["c"])
        banned = server.post("/v1/completions", prompt=PROMPT, max_tokens=20, min_tokens=14)
    assert late["choices"][0]["text"] == "abcdefghij"
    assert late["usage"]["completion_tokens"] == 11
    assert banned["usage"]["completion_tokens"] == 15, "fourteen tokens that aren't the end, then the end"


def test_b8_the_context_limit(hashing: LiveServer) -> None:
    """A prompt near the limit ends there, one over it is refused with the number of /v1/models, then all is well."""
    client = hashing.client
    limit = client.get("/v1/models").json()["data"][0]["max_model_len"]
    near = client.post("/v1/completions", json={"model": MODEL, "prompt": [65] * (limit - 2)})
    chat = client.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": "x" * (limit - 2 - len("user: \n") - 2)}]},
    )
    over = client.post("/v1/completions", json={"model": MODEL, "prompt": [65] * (limit + 1)})
    asks_too_much = client.post("/v1/completions", json={"model": MODEL, "prompt": [65] * 8, "max_tokens": limit})
    normal = client.post("/v1/completions", json={"model": MODEL, "prompt": "hi", "max_tokens": 3})
    for answer in (near, chat):
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.json()["usage"]["total_tokens"] == limit
    for answer in (over, asks_too_much):
        assert answer.status_code == 400
        assert str(limit) in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert normal.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("options", [{"include_usage": True}, {}, None])
def test_b10_usage_comes_once_and_only_when_asked(hashing: LiveServer, options: dict[str, bool] | None) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 7}
    plain = hashing.post("/v1/chat/completions", **body)
    chunks = stream(hashing, "/v1/chat/completions", **body, **({} if options is None else {"stream_options": options}))
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    if options and options.get("include_usage"):
        assert with_usage == [chunks[-1]]
        assert chunks[-1]["choices"] == []
        for usage in (chunks[-1]["usage"], plain["usage"]):
            usage.pop("prompt_tokens_details")  # the second finds its prompt computed
        assert chunks[-1]["usage"] == plain["usage"]
        assert plain["usage"]["completion_tokens"] == 7
    else:
        assert not with_usage
        assert all(chunk["choices"] for chunk in chunks)


def test_b12_exactly_max_tokens(hashing: LiveServer) -> None:
    answer = hashing.post("/v1/completions", prompt=PROMPT, max_tokens=64, return_token_ids=True)
    assert len(answer["choices"][0]["token_ids"]) == 64
    assert answer["usage"]["completion_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


def test_b31_one_logprob_entry_a_token_streamed_or_not(hashing: LiveServer) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6, "temperature": 0}
    plain = hashing.post("/v1/chat/completions", logprobs=True, top_logprobs=3, **body)["choices"][0]
    chunks = stream(hashing, "/v1/chat/completions", logprobs=True, top_logprobs=3, **body)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {}).get("content", [])
    ]
    entries = plain["logprobs"]["content"]
    assert len(entries) == 6
    assert streamed == entries
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] < 0, "greedy takes the likeliest"
        assert entry["token"] == entry["top_logprobs"][0]["token"]


def test_b34_an_answer_is_never_changed_by_the_next(hashing: LiveServer) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{hashing.url}/v1", api_key="none", max_retries=0)
    first = client.completions.create(model=MODEL, prompt="one", max_tokens=5)
    before = first.model_dump()
    client.completions.create(model=MODEL, prompt="two", max_tokens=5)
    assert first.model_dump() == before
    client.close()
