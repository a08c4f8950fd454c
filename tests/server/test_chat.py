"""POST /v1/chat/completions: what the engine is asked for, and the shape of answers and chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mtplx.batching.state import FinishReason
from mtplx.sampling_params import SamplingParams
from mtplx.server.choice_text import Delta
from tests.fakes import fake_spec
from tests.server.asgi import chat, chunks
from tests.server.fakes import CHOSEN_LOGPROB, MODEL, FakeServer, FakeStreams, Item, fake_server

TEXT = "p0c0 hello"


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    return fake_server(tmp_path)


def joined(stream: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in stream for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_whole_answer_has_openais_shape_and_the_seed(server: FakeServer) -> None:
    answer = chat(server).json()
    prompt_tokens = len(server.last.prompts[0])
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "system_fingerprint": "fp-fake",
        "seed": 77,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(TEXT),
            "total_tokens": prompt_tokens + len(TEXT),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "metrics": {"speculative_decoding": None},
    }


def test_messages_go_through_the_template_without_more_special_tokens(server: FakeServer) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": [], "annotations": []},
    ]
    chat(server, messages=messages)
    text = "<user>system: be brief\n<user>user: a\nb\n<user>assistant: c\n<assistant>"
    assert server.last.prompts == [tuple(server.tokenizer.encode(text, add_special_tokens=False))]


def test_the_prompt_ends_as_asked(server: FakeServer) -> None:
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well, "}]
    for fields, text, continues in (
        ({}, "<user>user: hi\n<user>assistant: well, \n<assistant>", False),
        ({"add_generation_prompt": False}, "<user>user: hi\n<user>assistant: well, \n", False),
        ({"continue_final_message": True}, "<user>user: hi\n<user>assistant: well, ", True),
    ):
        chat(server, messages=begun, **fields)
        assert server.last.prompts == [tuple(server.tokenizer.encode(text, add_special_tokens=False))]
        assert server.last.continues is continues
    both = chat(server, messages=begun, add_generation_prompt=True, continue_final_message=True)
    assert (both.status_code, both.json()["error"]["param"]) == (400, "continue_final_message")


def test_stream_begins_with_the_role_and_ends_with_the_reason(server: FakeServer) -> None:
    stream = chunks(chat(server, stream=True))
    first, last = stream[0]["choices"][0], stream[-1]["choices"][0]
    assert first == {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert last == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert {chunk["object"] for chunk in stream} == {"chat.completion.chunk"}
    assert {(chunk["id"], chunk["created"], chunk["seed"]) for chunk in stream} == {
        (stream[0]["id"], stream[0]["created"], 77)
    }
    assert all(choice["finish_reason"] is None for chunk in stream[:-1] for choice in chunk["choices"])


def test_streamed_text_is_the_whole_text(server: FakeServer) -> None:
    assert joined(chunks(chat(server, stream=True))) == chat(server).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("options", [{"include_usage": True}, {}, None])
def test_b10_usage_comes_last_and_only_when_asked_for(server: FakeServer, options: dict[str, bool] | None) -> None:
    fields = {} if options is None else {"stream_options": options}
    stream = chunks(chat(server, stream=True, **fields))
    with_usage = [chunk for chunk in stream if chunk.get("usage")]
    if not options:
        assert with_usage == []
        assert all(chunk["choices"] for chunk in stream)
        return
    assert with_usage == stream[-1:]
    assert stream[-1]["choices"] == []
    assert stream[-1]["usage"] == chat(server).json()["usage"]
    assert stream[-2]["choices"][0]["finish_reason"] == "stop"


def test_usage_counts_emitted_tokens_not_pieces_of_text(tmp_path: Path) -> None:
    """Text that is held back or flushed doesn't change the count."""
    held: list[Item] = [
        Delta(0, "", (1, 2), (), None),
        Delta(0, "abc", (3,), (), None),
        Delta(0, "d", (), (), FinishReason.LENGTH),
    ]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: held))
    answer = chat(server).json()
    stream = chunks(chat(server, stream=True, stream_options={"include_usage": True}))
    assert answer["usage"]["completion_tokens"] == stream[-1]["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == stream[-2]["choices"][0]["finish_reason"] == "length"
    assert joined(stream) == "abcd"
    assert len(stream) == 5, "role, abc, d, reason, usage: nothing is sent for text that is held back"


def test_a_prompt_is_cached_as_far_as_it_was_for_all_of_its_choices(tmp_path: Path) -> None:
    """What the first choice computed and the second shared had to be computed for this request."""
    ends = [Delta(index, "x", (1,), (), FinishReason.STOP, num_cached_tokens=n) for index, n in enumerate((32, 48))]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: list(ends)))
    stream = chunks(chat(server, n=2, stream=True, stream_options={"include_usage": True}))
    for answer in (chat(server, n=2).json(), stream[-1]):
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


def test_b28_choices_are_numbered_and_separate(server: FakeServer) -> None:
    answer = chat(server, n=4, temperature=1, seed=5).json()
    stream = chunks(chat(server, n=4, temperature=1, seed=5, stream=True))
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert texts == [f"p0c{index} hello" for index in range(4)]
    assert [joined(stream, index) for index in range(4)] == texts
    roles = [chunk["choices"][0]["index"] for chunk in stream if "role" in chunk["choices"][0]["delta"]]
    assert roles == [0, 1, 2, 3]
    assert server.last.n == 4
    assert answer["usage"]["completion_tokens"] == 4 * len(TEXT)
    assert answer["usage"]["prompt_tokens"] == len(server.last.prompts[0]), "the prompt counts once"
    assert answer["seed"] == 5


def test_b31_logprobs_have_one_entry_a_token(server: FakeServer) -> None:
    answer = chat(server, logprobs=True, top_logprobs=3).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == list(TEXT)
    assert {entry["logprob"] for entry in content} == {CHOSEN_LOGPROB}
    assert content[0]["bytes"] == [ord("p")]
    assert content[0]["top_logprobs"] == [
        {"token": "q", "logprob": -0.25, "bytes": [ord("q")]},
        {"token": "p", "logprob": CHOSEN_LOGPROB, "bytes": [ord("p")]},
        {"token": "r", "logprob": -1.0, "bytes": [ord("r")]},
    ]
    stream = chunks(chat(server, logprobs=True, top_logprobs=3, stream=True))
    streamed = [entry for chunk in stream for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


def test_logprobs_without_top_have_the_chosen_token_alone(server: FakeServer) -> None:
    content = chat(server, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert server.last.params.logprobs == 0
    assert all(entry["top_logprobs"] == [] for entry in content)


def test_token_ids_come_when_asked_for(server: FakeServer) -> None:
    answer = chat(server, return_token_ids=True).json()
    stream = chunks(chat(server, return_token_ids=True, stream=True))
    assert answer["prompt_token_ids"] == list(server.last.prompts[0])
    assert answer["choices"][0]["token_ids"] == list(TEXT.encode())
    assert stream[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [i for chunk in stream for i in chunk["choices"][0].get("token_ids", [])] == list(TEXT.encode())
    assert all("prompt_token_ids" not in chunk for chunk in stream[1:])


def test_fields_reach_the_engine(server: FakeServer) -> None:
    chat(
        server,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        repetition_penalty=1.2,
        logit_bias={"5": -100, "12": 1.5},
        seed=-3,
        max_completion_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        stop="x",
        stop_token_ids=[3, 4],
    )
    assert server.last.params == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        repetition_penalty=1.2,
        logit_bias={5: -100.0, 12: 1.5},
        seed=-3,
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        stop=("x",),
        stop_token_ids=(3, 4),
    )


def test_defaults_are_the_models_own(tmp_path: Path) -> None:
    plain, tuned = fake_server(tmp_path), fake_server(tmp_path, spec=_tuned_spec())
    chat(plain, temperature=None, n=None, stop=None, logit_bias=None, max_tokens=None)
    assert plain.last.params == SamplingParams()
    chat(tuned)
    assert tuned.last.params == SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
    chat(tuned, temperature=1, top_p=1, top_k=-1)
    assert tuned.last.params == SamplingParams(), "0 and -1 both keep every token"


def test_b34_an_answer_does_not_change_with_the_next(server: FakeServer) -> None:
    first = chat(server, return_token_ids=True, n=2)
    before = first.json()
    chat(server, return_token_ids=True, n=3, messages=[{"role": "user", "content": "other"}])
    assert first.json() == before
    assert chat(server).json()["id"] != before["id"]


def test_long_prompts_are_encoded_like_short_ones(tmp_path: Path) -> None:
    server = fake_server(tmp_path, FakeStreams(max_model_len=32_768))
    chat(server, messages=[{"role": "user", "content": "x" * 20_000}])
    assert server.last.prompts[0].count(ord("x")) == 20_000


def _tuned_spec() -> Any:
    from dataclasses import replace

    return replace(fake_spec(), default_temperature=0.6, default_top_p=0.95, default_top_k=20)
