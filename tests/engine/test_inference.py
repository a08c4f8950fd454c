"""The engine in this process: what it takes, what it refuses, and that it is closed when it is closed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mtplx import Engine, SamplingParams
from mtplx.errors import MtplxError, RequestError

pytestmark = pytest.mark.real_model
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, seed=1)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_cache_tokens=1024, max_model_len=512) as engine:
        yield engine


def test_prompts_come_as_text_ids_or_arrays_alone_or_many(engine: Engine) -> None:
    [from_text] = engine.generate("The sea is", GREEDY)
    ids = list(from_text.prompt_token_ids)
    same = [
        engine.generate(ids, GREEDY),
        engine.generate(np.array(ids), GREEDY),
        engine.generate([np.array(ids)], GREEDY),
    ]
    assert [answers for answers in same if answers != [from_text]] == []
    assert engine.generate(["The sea is", ids], GREEDY) == [from_text, from_text]
    assert engine.generate([], GREEDY) == []


def test_n_answers_differ_and_begin_with_the_single_one(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=8, seed=3)
    several = engine.generate(["The sea is"], params, n=3)
    assert len({answer.token_ids for answer in several}) == 3
    assert several[:1] == engine.generate(["The sea is"], params)


@pytest.mark.parametrize("bad_id", [10**6, -5, 2**40])
def test_ids_that_the_model_does_not_have_are_refused_before_anything_runs(engine: Engine, bad_id: int) -> None:
    with pytest.raises(RequestError, match=str(bad_id)):
        engine.generate([[5, bad_id]], GREEDY)
    with pytest.raises(RequestError, match=str(bad_id)):
        engine.generate("x", SamplingParams(max_tokens=2, logit_bias={bad_id: 1.0}))
    assert len(engine.generate("x", GREEDY)) == 1


def test_wrong_kinds_of_parameters_name_the_field() -> None:
    for wrong in ("and", None, 5):
        with pytest.raises(RequestError, match="stop must be a tuple of strings, got"):
            SamplingParams(stop=wrong)  # type: ignore[arg-type]
    assert SamplingParams(stop=["and"]).stop == ["and"]  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="seed must be a number"):
        SamplingParams(seed="a")  # type: ignore[arg-type]
    for name in ("top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "draft_depth"):
        with pytest.raises(RequestError, match=f"{name} must be a whole number, got 4.0") as caught:
            SamplingParams(**{name: 4.0})  # type: ignore[arg-type]
        assert caught.value.param == name


def test_parameters_for_each_prompt_are_refused_in_words(engine: Engine) -> None:
    for wrong in ([GREEDY, GREEDY], {"max_tokens": 2}, []):
        with pytest.raises(RequestError, match="params must be one SamplingParams for all prompts, got"):
            engine.generate(["x", "y"], wrong)  # type: ignore[arg-type]


def test_a_closed_engine_says_so() -> None:
    engine = Engine(kv_cache_tokens=256, max_model_len=128)
    engine.close()
    with pytest.raises(MtplxError, match="closed"):
        engine.generate("x", GREEDY)
