"""B37 and its kind: what a request asks of its answer holds in every mode, at every depth, for each choice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from mtplx.batching.state import StepPlan
from tests.e2e.test_behaviours_drafts import OFTEN, RIGHT, WRONG, accepted, essence
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner
from tests.live import DRAFTING_MODES, MODEL, LiveServer, fake_for, live_server
from tests.schemas import SCHEMAS, record

ROOM: dict[str, Any] = {"num_blocks": 4096, "max_position": 2048}  # bytes for tokens make long answers
TERSE = {str(ord(mark)): -3 for mark in " \n\r\t"}
Body = dict[str, Any]


def in_format(schema: dict[str, Any]) -> Body:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def chat(server: LiveServer, **body: Any) -> Any:
    defaults = {"messages": [{"role": "user", "content": "Answer."}], "max_tokens": 1000, "return_token_ids": True}
    return server.post("/v1/chat/completions", **{**defaults, **body})


def essence_of_chat(answer: Any) -> list[tuple[Any, ...]]:
    return [(c["message"]["content"], c["token_ids"], c["logprobs"], c["finish_reason"]) for c in answer["choices"]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Serial, without a head."""
    with live_server(
        tmp_path_factory.mktemp("plain"), FakeRunner(**ROOM), "serial", prefill_chunk_tokens=512
    ) as server:
        yield server


@pytest.mark.parametrize("name", SCHEMAS)
def test_b37_twenty_of_twenty_are_valid_at_depth_4_and_those_of_depth_0(
    drafting: LiveServer, plain: LiveServer, name: str
) -> None:
    validator = Draft202012Validator(SCHEMAS[name])
    bodies = [{"seed": seed, "temperature": 1, "logit_bias": TERSE, **in_format(SCHEMAS[name])} for seed in range(20)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: essence_of_chat(chat(drafting, **body)), bodies))
    for ((text, _, _, reason),) in answers:
        assert reason == "stop"
        assert validator.is_valid(json.loads(text)), text
    assert answers == [essence_of_chat(chat(plain, **body)) for body in bodies]


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    runner = FakeDraftingRunner(OFTEN, **ROOM)
    with live_server(tmp_path_factory.mktemp("drafting"), runner, "mtp_batch", draft_depth=4) as server:
        yield server


def all_kinds() -> list[tuple[Body, str]]:
    """Wishes beside a grammar, and what each text must match."""
    digits = {"guided_regex": "[0-9]{9,16}"}
    return [
        ({"guided_regex": "(ab|ba){2,9}c", "temperature": 0}, "(ab|ba){2,9}c"),
        ({"guided_choice": ["yes", "no", "perhaps not"], "seed": 3, "logprobs": 2}, "yes|no|perhaps not"),
        ({**digits, "seed": 5, "n": 3}, "[0-9]{9,16}"),
        ({**digits, "seed": 6, "frequency_penalty": 2, "repetition_penalty": 1.3, "logprobs": 0}, "[0-9]{9,16}"),
        ({**digits, "seed": 7, "min_tokens": 12, "logit_bias": {str(EOS): 50}}, "[0-9]{12,16}"),
        ({**digits, "seed": 8, "max_tokens": 6}, "[0-9]{6}"),
        ({**digits, "seed": 9, "stop": ["3", "7"]}, "[0-24-689]*"),
        ({**digits, "seed": 10, "top_k": 20, "top_p": 0.9, "min_p": 0.01}, "[0-9]{9,16}"),
        ({"structured_outputs": {"grammar": 'root ::= "(" root ")" | [a-c]'}, "seed": 11}, r"\(*[a-c]\)*"),
        ({"seed": 12, "max_tokens": 12}, "(?s:.*)"),
        ({"temperature": 0, "max_tokens": 8}, "(?s:.*)"),
    ]


def numbered() -> list[Body]:
    return [{"max_tokens": 200, "prompt": f"{number} :", **body} for number, (body, _) in enumerate(all_kinds())]


@pytest.fixture(scope="module")
def oracle(plain: LiveServer) -> list[list[tuple[Any, ...]]]:
    return [essence(complete(plain, **body)) for body in numbered()]


@pytest.mark.parametrize(
    ("mode", "depth", "p_right"),
    [
        *(("ar_batch", 0, OFTEN), ("cooperative", 0, OFTEN), ("hyper", 0, OFTEN)),
        *((mode, depth, OFTEN) for mode in DRAFTING_MODES for depth in (1, 2, 4)),
        *(("mtp_batch", 4, p_right) for p_right in (RIGHT, WRONG)),
        *((mode, "auto", OFTEN) for mode in ("mtp_batch", "mtp_cohort_experimental")),
    ],
)
def test_every_mode_and_depth_says_the_same_beside_neighbours_without_a_grammar(
    tmp_path: Path, oracle: list[list[tuple[Any, ...]]], mode: str, depth: int | str, p_right: float
) -> None:
    todo = numbered()
    runner = FakeRunner(**ROOM) if mode == "ar_batch" else FakeDraftingRunner(p_right, **ROOM)
    with live_server(tmp_path, runner, mode, draft_depth=depth) as server, ThreadPoolExecutor(len(todo)) as pool:
        answers = list(pool.map(lambda body: complete(server, **body), todo))
    assert [essence(answer) for answer in answers] == oracle
    for answer, (body, pattern) in zip(answers, all_kinds(), strict=True):
        for choice in answer["choices"]:
            assert re.fullmatch(pattern, choice["text"]), body


def complete(server: LiveServer, **body: Any) -> Any:
    return server.post("/v1/completions", return_token_ids=True, **body)


def test_a_stream_has_the_same_text(drafting: LiveServer) -> None:
    body = {"seed": 4, "max_tokens": 500, "temperature": 1, **in_format(SCHEMAS["nested objects"])}
    whole = chat(drafting, **body)["choices"][0]["message"]["content"]
    message = {"role": "user", "content": "Answer."}
    with drafting.client.stream(
        "POST", "/v1/chat/completions", json={"model": MODEL, "messages": [message], "stream": True, **body}
    ) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == whole
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_json_object_is_an_object(drafting: LiveServer) -> None:
    texts = []
    for seed in range(12):
        ends = {str(ord(mark)): 5 for mark in '"}'}
        messages = [{"role": "user", "content": f"{seed} things"}]
        wish = {"response_format": {"type": "json_object"}, "logit_bias": ends}
        choice = chat(drafting, seed=seed, messages=messages, **wish)["choices"][0]
        assert choice["finish_reason"] == "stop"
        texts.append(choice["message"]["content"])
    assert all(isinstance(json.loads(text), dict) for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize("mode", ["mtp_batch", "mtp_cohort_experimental"])
def test_what_a_grammar_forces_is_drafted(tmp_path: Path, mode: str) -> None:
    """Also where the head is always wrong, which learns as much, and where there is none."""
    schema = record({"a_long_name_of_a_field": {"enum": [1, 2]}, "and_another_of_its_kind": {"enum": [1, 2]}})
    head = FakeDraftingRunner(WRONG, **ROOM)
    runner = FakeRunner(**ROOM) if mode == "mtp_cohort_experimental" else head
    with live_server(tmp_path, runner, mode, draft_depth=8) as server:
        answers = [chat(server, seed=seed, **in_format(schema)) for seed in range(4)]
    assert accepted(answers[-1]) > 30
    assert len(runner.plans) < sum(len(answer["choices"][0]["token_ids"]) for answer in answers) / 2


@pytest.mark.parametrize("mode", ["ar_batch", "mtp_batch"])
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"guided_choice": ["red"], "bad_words": ["red"]}, "guided_choice and bad_words"),
        ({"guided_choice": ["red"], "allowed_token_ids": [5, EOS]}, "guided_choice and allowed_token_ids"),
        ({"bad_words": ["a"], "allowed_token_ids": [ord("a")]}, "allowed_token_ids and bad_words"),
    ],
)
def test_bans_that_leave_no_token_are_the_request_s_own_doing(
    tmp_path: Path, mode: str, fields: dict[str, Any], names: str
) -> None:
    body = {"model": MODEL, "prompt": "x", "ignore_eos": "guided_choice" not in fields, **fields}
    with live_server(tmp_path, fake_for(mode), mode) as server:
        whole = server.client.post("/v1/completions", json=body)
        error = whole.json()["error"]
        assert (whole.status_code, error["code"]) == (400, "no_token_left")
        assert error["type"] == "invalid_request_error"
        assert error["message"] == f"{names} left no token that could come next"
        streamed = server.client.post("/v1/completions", json={**body, "stream": True})
        assert json.loads(streamed.text.split("data: ")[-1])["error"] == error
        assert server.status()["num_failed_steps"] == 0


def test_a_grammar_that_fails_in_the_middle_takes_nobody_along(
    tmp_path: Path,
) -> None:
    """The model gives no digit any chance at all, and after three letters the grammar takes nothing else."""

    class WithoutDigits(FakeRunner):
        def run(self, plan: StepPlan) -> Any:
            logits = super().run(plan)
            logits[:, ord("0") : ord("9") + 1] = float("-inf")
            return logits

    with live_server(tmp_path, WithoutDigits(), "ar_batch") as server, ThreadPoolExecutor(2) as pool:
        failing = pool.submit(
            server.client.post,
            "/v1/completions",
            json={"model": MODEL, "prompt": "x", "guided_regex": "[a-z]{3}[0-9]", "seed": 1},
        )
        others = pool.submit(complete, server, prompt="y", guided_regex="[a-z]{9}", seed=1)
        error = failing.result().json()["error"]
        assert (failing.result().status_code, error["code"]) == (400, "no_token_left")
        assert re.fullmatch("[a-z]{9}", others.result()["choices"][0]["text"])
        assert server.status()["cache_blocks_used"] == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (in_format({"type": "?"}), "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        (in_format({"not": {}}), "response_format.json_schema.schema"),
        (in_format({"const": 9007199254740993}), "response_format.json_schema.schema"),
        ({"guided_json": {"minProperties": 2}}, "guided_json"),
        ({"structured_outputs": {"json": '{"pattern": "\\u0000"}'}}, "structured_outputs.json"),
        ({"guided_grammar": 'start: %json {"minimum": -1e99}'}, "guided_grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "a" * 2**18}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "start: x"}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_wishes_that_cannot_be_held_to_are_refused_by_name(
    plain: LiveServer, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], **fields}
    response = plain.client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_text_is_no_wish(plain: LiveServer) -> None:
    free = chat(plain, seed=1, max_tokens=9)
    assert essence_of_chat(chat(plain, seed=1, max_tokens=9, response_format={"type": "text"})) == essence_of_chat(free)
