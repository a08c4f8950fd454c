"""Structured output of the default model as users have it, with the draft head that comes with it and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema_rs import Draft202012Validator

import mtplx
from mtplx import Engine, Grammar, SamplingParams
from mtplx.errors import GenerationError
from mtplx.inference import Completion
from tests.schemas import SCHEMAS

pytestmark = pytest.mark.real_model

HEAD = Path(mtplx.__file__).parent / "model" / "heads" / "smollm2-135m-instruct.safetensors"
NAMES = ["bounded integers", "pattern", "nested objects"]
SMALL = {"kv_cache_tokens": 2048, "max_model_len": 1024}


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with Engine(scheduler_mode="serial", draft_head="none", **SMALL) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting() -> Iterator[Engine]:
    with Engine(scheduler_mode="mtp_batch", draft_head=str(HEAD), draft_depth=4, **SMALL) as engine:
        yield engine


def ask(engine: Engine, name: str, n: int = 2) -> list[Completion]:
    messages = [{"role": "user", "content": f"Write JSON for this schema: {json.dumps(SCHEMAS[name])}"}]
    grammar = Grammar("json_schema", json.dumps(SCHEMAS[name]))
    return engine.chat(messages, SamplingParams(temperature=1.0, seed=5, max_tokens=300, grammar=grammar), n=n)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_valid_and_the_same_with_drafts(plain: Engine, drafting: Engine, name: str) -> None:
    answers = ask(drafting, name)
    assert answers == ask(plain, name)
    for answer in answers:
        assert answer.finish_reason == "stop"
        assert Draft202012Validator(SCHEMAS[name]).is_valid(json.loads(answer.text))


def test_a_choice_is_one_of_the_texts_and_ends_there(plain: Engine) -> None:
    grammar = Grammar("lark", 'start: "Yes, it is." | "No, it isn\'t."')
    (answer,) = plain.generate("Is snow black?", SamplingParams(seed=1, max_tokens=20, grammar=grammar))
    assert answer.text in ("Yes, it is.", "No, it isn't.")
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] == 2, "the end is a token of the answer"


def test_an_expression_that_grows_too_complex_fails_its_own_answer(plain: Engine) -> None:
    grammar = Grammar("regex", "(.*a.{20}b|.*c.{25}d|.*e.{30}f)")
    with pytest.raises(GenerationError, match="too complex"):
        plain.generate("x", SamplingParams(seed=1, max_tokens=40, grammar=grammar))
    assert plain.generate("x", SamplingParams(seed=1, max_tokens=2))
