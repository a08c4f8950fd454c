"""Echoed prompts and prompt logprobs in both shapes, whole and streamed, as a live server computes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mtplx.decode.logprobs import token_logprobs
from tests.fakes import FakeRunner, saying
from tests.live import MODEL, LiveServer, live_server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "The sea is wide"  # its tokens are its bytes


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("live"), FakeRunner(), prefill_chunk_tokens=4) as server:
        yield server


def true_logprobs(prompt: str) -> list[float]:
    runner, ids = FakeRunner(), prompt.encode()
    lines = [runner._logits(tuple(ids[:position])).astype(np.float32) for position in range(1, len(ids))]
    return [token_logprobs(line, ids[position + 1], 0).chosen.logprob for position, line in enumerate(lines)]


def choices(live: LiveServer, **body: Any) -> list[dict[str, Any]]:
    fields = {"prompt": PROMPT, "max_tokens": 5, "seed": 3, "logprobs": 2, **body}
    answer: list[dict[str, Any]] = live.post(COMPLETIONS, **fields)["choices"]
    return answer


def streamed(live: LiveServer, **body: Any) -> list[dict[str, Any]]:
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 5, "seed": 3, "logprobs": 2, "stream": True, **body}
    text = live.client.post(COMPLETIONS, json=fields).text
    assert text.endswith("data: [DONE]\n\n"), text
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]


def test_an_echo_is_the_prompt_and_its_logprobs_before_the_same_answer(live: LiveServer) -> None:
    [plain] = choices(live)
    [echoed] = choices(live, echo=True)
    assert echoed["text"] == PROMPT + plain["text"]
    logprobs, size = echoed["logprobs"], len(PROMPT)
    assert logprobs["tokens"] == [*PROMPT, *plain["logprobs"]["tokens"]]
    assert logprobs["token_logprobs"][:1] == logprobs["top_logprobs"][:1] == [None]
    assert logprobs["token_logprobs"][1:size] == true_logprobs(PROMPT)
    assert logprobs["token_logprobs"][size:] == plain["logprobs"]["token_logprobs"]
    assert logprobs["top_logprobs"][size:] == plain["logprobs"]["top_logprobs"]
    assert all(token in top for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True))
    assert logprobs["text_offset"] == list(range(size + 5))


def test_prompt_tokens_alone(live: LiveServer) -> None:
    """As evaluation harnesses ask: nothing is generated, twice the same, and the prefix cache has no say."""
    asked = live.post(COMPLETIONS, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    again = live.post(COMPLETIONS, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    assert asked["choices"] == again["choices"]
    [choice] = asked["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert choice["logprobs"]["token_logprobs"] == [None, *true_logprobs(PROMPT)]
    assert asked["usage"]["completion_tokens"] == 0
    [silent] = live.post(COMPLETIONS, prompt=PROMPT, max_tokens=0, echo=True)["choices"]
    assert (silent["text"], silent["logprobs"]) == (PROMPT, None)


@pytest.mark.parametrize("prompts", [[PROMPT, "Hi", "x"], [list(PROMPT.encode()), [72, 105], [120]]])
def test_several_prompts_and_choices_each_have_their_own_echo(live: LiveServer, prompts: Any) -> None:
    found = choices(live, prompt=prompts, n=2, echo=True, temperature=1)
    plain = choices(live, prompt=prompts, n=2, temperature=1)
    for number, (echoed, alone) in enumerate(zip(found, plain, strict=True)):
        text = (PROMPT, "Hi", "x")[number // 2]
        assert (echoed["index"], echoed["text"]) == (number, text + alone["text"])
        assert echoed["logprobs"]["token_logprobs"][: len(text)] == [None, *true_logprobs(text)]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_a_stream_begins_with_the_echo_and_joins_to_the_whole(live: LiveServer, n: int, max_tokens: int) -> None:
    whole = choices(live, n=n, echo=True, max_tokens=max_tokens)
    chunks = streamed(live, n=n, echo=True, max_tokens=max_tokens)
    for index in range(n):
        pieces = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert pieces[0]["text"] == PROMPT
        assert "".join(piece["text"] for piece in pieces) == whole[index]["text"]
        for key, values in whole[index]["logprobs"].items():
            joined = [value for piece in pieces if piece["logprobs"] for value in piece["logprobs"][key]]
            assert joined == values, key
        assert [piece["finish_reason"] for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_prompt_logprobs_have_vllms_shape_at_both_endpoints(live: LiveServer) -> None:
    answer = live.post(COMPLETIONS, prompt=PROMPT, max_tokens=1, prompt_logprobs=2)
    [choice] = answer["choices"]
    assert choice["logprobs"] is None
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for char, logprob, entry in zip(PROMPT[1:], true_logprobs(PROMPT), others, strict=True):
        own = entry[str(ord(char))]
        assert (own["logprob"], own["decoded_token"]) == (logprob, char)
        assert sorted(entry) == sorted({str(ord(char)), *entry})
        assert len(entry) in (2, 3)
        assert sorted(value["rank"] for value in entry.values())[:2] == [1, 2]
        assert own["rank"] <= 2 or len(entry) == 3
    chat = live.post(CHAT, messages=[{"role": "user", "content": "Hi"}], max_tokens=1, prompt_logprobs=0)
    assert [len(entry) for entry in chat["prompt_logprobs"][1:]] == [1] * (chat["usage"]["prompt_tokens"] - 1)


def test_both_wishes_at_once_are_told_apart(live: LiveServer) -> None:
    [choice] = choices(live, echo=True, logprobs=1, prompt_logprobs=3)
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1 : len(PROMPT)]} <= {1, 2}
    assert {len(entry) for entry in choice["prompt_logprobs"][1:]} <= {3, 4}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt_logprobs": 2, "stream": True}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"echo": True}, "echo"),
    ],
)
def test_what_cannot_be_had_is_named(live: LiveServer, path: str, fields: dict[str, Any], param: str) -> None:
    start = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    response = live.client.post(path, json={"model": MODEL, **start, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_only_the_last_tokens_of_a_truncated_prompt_are_read(live: LiveServer) -> None:
    [cut] = choices(live, echo=True, truncate_prompt_tokens=4)
    [short] = choices(live, echo=True, prompt=PROMPT[-4:])
    assert cut == short


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    runner = FakeRunner(script=saying("one END two", prompt_len=1))
    with live_server(tmp_path_factory.mktemp("live"), runner) as server:
        yield server


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stop": "END"}, "one "),
        ({"stop": ["two", "END"], "include_stop_str_in_output": True}, "one END"),
        ({"stop_token_ids": [ord("E")]}, "one "),
        ({"stop_token_ids": [ord("E")], "include_stop_str_in_output": True}, "one E"),
        ({}, "one END two"),
        ({"include_stop_str_in_output": True}, "one END two"),
        ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "one END two<eos>"),
        ({"skip_special_tokens": False}, "one END two"),
        ({"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 13}, "one END two<eos><eos>"),
    ],
)
def test_what_ends_an_answer_is_part_of_it_only_when_asked_for(
    script: LiveServer, fields: dict[str, Any], text: str
) -> None:
    [choice] = choices(script, prompt="x", temperature=0, **{"max_tokens": 40, **fields})
    assert choice["text"] == text
    chunks = streamed(script, prompt="x", temperature=0, **{"max_tokens": 40, **fields})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
