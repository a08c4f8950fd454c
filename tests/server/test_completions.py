"""POST /v1/completions: prompts in all their forms, and the shape of answers and chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mtplx.batching.state import FinishReason
from mtplx.server.choice_text import Delta
from tests.server.asgi import chunks, complete, error_of
from tests.server.fakes import CHOSEN_LOGPROB, MODEL, FakeServer, FakeStreams, Item, entry_for, fake_server
from tests.unit import vocabularies

TEXT = "p0c0 hello"
HI = (104, 105)


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    return fake_server(tmp_path)


def joined(stream: list[dict[str, Any]], index: int) -> str:
    return "".join(c["text"] for chunk in stream for c in chunk["choices"] if c["index"] == index)


def test_whole_answer_has_openais_shape_and_the_seed(server: FakeServer) -> None:
    answer = complete(server).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "system_fingerprint": "fp-fake",
        "seed": 77,
        "choices": [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": len(TEXT),
            "total_tokens": 2 + len(TEXT),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "metrics": {"speculative_decoding": None},
    }


@pytest.mark.parametrize(
    ("prompt", "prompt_ids"),
    [
        ("hi", [HI]),
        (["hi", "h"], [HI, (104,)]),
        ([104, 105], [HI]),
        ([[104, 105], [104]], [HI, (104,)]),
    ],
)
def test_prompts_may_be_texts_or_token_ids(server: FakeServer, prompt: Any, prompt_ids: list[tuple[int, ...]]) -> None:
    complete(server, prompt=prompt)
    assert server.last.prompts == prompt_ids


def test_choices_are_numbered_prompt_by_prompt(server: FakeServer) -> None:
    answer = complete(server, prompt=["a", "bc"], n=2).json()
    texts = ["p0c0 hello", "p0c1 hello", "p1c0 hello", "p1c1 hello"]
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == list(enumerate(texts))
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 4 * len(TEXT)
    stream = chunks(complete(server, prompt=["a", "bc"], n=2, stream=True, stream_options={"include_usage": True}))
    assert [joined(stream, index) for index in range(4)] == texts
    assert stream[-1]["usage"] == answer["usage"]
    assert stream[-1]["choices"] == []


def test_cached_tokens_are_summed_over_prompts(tmp_path: Path) -> None:
    def script(number: int, *_: object) -> list[Item]:
        return [Delta(i, "x", (1,), (), FinishReason.STOP, num_cached_tokens=16 * (number + i)) for i in range(2)]

    server = fake_server(tmp_path, FakeStreams(script=script))
    usage = complete(server, prompt=["a", "b", "c"], n=2).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0 + 16 + 32}


def test_stream_ends_with_the_reason(server: FakeServer) -> None:
    stream = chunks(complete(server, stream=True))
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in stream]
    assert reasons == [None] * (len(TEXT) - 1) + ["stop"]
    assert joined(stream, 0) == TEXT
    assert all("usage" not in chunk for chunk in stream)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 16),
        ({"max_tokens": 3}, 3),
        ({"min_tokens": 20}, 20),
        ({"prompt": [1] * 62}, 2),
        ({"prompt": [[1], [1] * 60]}, 4),
        ({"prompt": [1] * 70}, 1),
    ],
)
def test_max_tokens_is_openais_default_or_what_fits(
    server: FakeServer, fields: dict[str, Any], max_tokens: int
) -> None:
    """The context has 64 tokens; what doesn't fit at all is for the engine to refuse."""
    complete(server, **fields)
    assert server.last.params.max_tokens == max_tokens


def test_b31_logprobs_are_parallel_lists_with_one_entry_a_token(server: FakeServer) -> None:
    logprobs = complete(server, logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list(TEXT)
    assert logprobs["token_logprobs"] == [CHOSEN_LOGPROB] * len(TEXT)
    assert logprobs["top_logprobs"][0] == {"q": -0.25, "p": CHOSEN_LOGPROB}
    assert logprobs["text_offset"] == list(range(len(TEXT)))
    stream = chunks(complete(server, logprobs=2, stream=True))
    for key, values in logprobs.items():
        assert [v for chunk in stream for v in chunk["choices"][0]["logprobs"][key]] == values


def test_the_chosen_token_is_always_among_the_top(server: FakeServer) -> None:
    for count in (0, 1):
        top = complete(server, logprobs=count).json()["choices"][0]["logprobs"]["top_logprobs"][0]
        assert server.last.params.logprobs == count
        assert top == ({"p": CHOSEN_LOGPROB} if count == 0 else {"q": -0.25, "p": CHOSEN_LOGPROB})


def test_offsets_count_whole_characters_and_texts_may_collide(tmp_path: Path) -> None:
    """The two bytes of é are two tokens: both begin where é does, and neither byte alone is a character."""
    first, second = "é".encode()
    script: list[Item] = [
        Delta(0, "", (first,), (entry_for(first, 1),), None),
        Delta(0, "é", (second,), (entry_for(second, 1),), None),
        Delta(0, "!", (33,), (entry_for(33, 1),), FinishReason.LENGTH),
    ]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: script))
    logprobs = complete(server, logprobs=1).json()["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 0, 1]
    assert logprobs["tokens"] == ["\ufffd", "\ufffd", "!"]
    assert logprobs["top_logprobs"][0] == {"\ufffd": -0.25, f"\ufffd<{first}>": CHOSEN_LOGPROB}


def test_token_ids_come_when_asked_for(server: FakeServer) -> None:
    one = complete(server, return_token_ids=True).json()
    assert one["prompt_token_ids"] == one["choices"][0]["prompt_token_ids"] == list(HI)
    assert one["choices"][0]["token_ids"] == list(TEXT.encode())
    two = complete(server, prompt=["hi", "h"], return_token_ids=True).json()
    assert "prompt_token_ids" not in two
    assert [choice["prompt_token_ids"] for choice in two["choices"]] == [list(HI), [104]]
    stream = chunks(complete(server, return_token_ids=True, stream=True))
    assert [i for chunk in stream for i in chunk["choices"][0]["token_ids"]] == list(TEXT.encode())
    assert [chunk["choices"][0].get("prompt_token_ids") for chunk in stream] == [list(HI)] + [None] * (len(TEXT) - 1)


def test_best_of_passes_only_when_it_changes_nothing(server: FakeServer) -> None:
    assert complete(server, best_of=2, n=2).status_code == 200
    refused = error_of(complete(server, best_of=3, n=2))
    assert refused["param"] == "best_of"


@pytest.mark.parametrize("prompt", [[260], [[1], [2, 999]]])
def test_unknown_token_ids_are_refused(server: FakeServer, prompt: Any) -> None:
    response = complete(server, prompt=prompt)
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"
    assert server.streams.opened == []


def test_text_offsets_count_the_space_that_a_continuation_begins_with(tmp_path: Path) -> None:
    """A sentencepiece vocabulary drops the space at the start of a text, but a completion goes on with the prompt's."""
    backend = vocabularies.sentencepiece()
    the = backend.token_id("▁the")
    assert the is not None
    script: list[Item] = [
        Delta(0, " the", (the,), (entry_for(the, 1),), None),
        Delta(0, " the", (the,), (entry_for(the, 1),), FinishReason.STOP),
    ]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: script), tokenizer=backend)
    assert complete(server, logprobs=1).json()["choices"][0]["logprobs"]["text_offset"] == [0, 4]
