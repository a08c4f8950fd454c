"""The native runner on the real model: equal ids in every mode, width, chunk and thread count; and how right it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.perplexity import TEXT, perplexity
from mtplx.batching.state import SchedulerMode
from mtplx.model.native.loader import load_native_runner
from mtplx.model.native.runner import NativeRunner
from mtplx.model.native.support import why_not_native
from mtplx.model.weights import ModelFolder, resolve_model
from mtplx.server.engine import Submit
from mtplx.text.tokenizer import Tokenizer
from tests.drivers import run_closed_loop
from tests.engine.test_identity import WHOLE, submits
from tests.native_models import all_logits
from tests.prompts import EIGHT_PROMPTS

pytestmark = pytest.mark.real_model

SERIAL, COOPERATIVE, AR_BATCH = SchedulerMode.SERIAL, SchedulerMode.COOPERATIVE, SchedulerMode.AR_BATCH

# Cooperative and ar_batch meet every chunk size, width and thread count; serial, whose width is one, the extremes.
COVERING = (
    (COOPERATIVE, 1, 16, 2),
    (COOPERATIVE, 4, WHOLE, 1),
    (COOPERATIVE, 16, 64, 2),
    (AR_BATCH, 1, 64, 1),
    (AR_BATCH, 4, 16, 2),
    (AR_BATCH, 16, WHOLE, 2),
    (AR_BATCH, 16, 16, 1),
    (SERIAL, 1, WHOLE, 1),
    (SERIAL, 1, 16, 2),
)


@pytest.fixture(scope="module")
def model(default_model_folder: Path) -> ModelFolder:
    """The default model, with its GGUF file."""
    found = resolve_model("smollm2-135m-instruct")
    assert found.path == default_model_folder
    return found


@pytest.fixture(scope="module")
def tokenizer(model: ModelFolder) -> Tokenizer:
    return Tokenizer.load(model.path)


@pytest.fixture(scope="module")
def runners(model: ModelFolder) -> Iterator[dict[int, NativeRunner]]:
    loaded = {
        threads: load_native_runner(model, threads=threads, kv_cache_tokens=4096, max_model_len=512)
        for threads in (1, 2)
    }
    yield loaded
    for runner in loaded.values():
        runner.close()


@pytest.fixture(scope="module")
def todo(tokenizer: Tokenizer) -> list[Submit]:
    """Eight prompts, each greedy, seeded, and seeded with filters and penalties."""
    return submits([tokenizer.encode(text, add_special_tokens=False) for text in EIGHT_PROMPTS], max_tokens=12)


@pytest.fixture(scope="module")
def answers(runners: dict[int, NativeRunner], todo: list[Submit]) -> list[tuple[int, ...]]:
    """All of them at once on one thread; the slow cells below compare every fifth."""
    return run_closed_loop(runners[1], todo, mode=AR_BATCH, concurrency=len(todo), chunk=WHOLE)


def test_the_default_model_is_native(model: ModelFolder) -> None:
    assert why_not_native(model) is None


@pytest.mark.parametrize(("mode", "concurrency", "chunk", "threads"), COVERING)
def test_identical_ids(
    runners: dict[int, NativeRunner],
    todo: list[Submit],
    answers: list[tuple[int, ...]],
    mode: SchedulerMode,
    concurrency: int,
    chunk: int,
    threads: int,
) -> None:
    some = slice(None, None, 5 if mode is SERIAL or concurrency == 1 else 1)
    found = run_closed_loop(runners[threads], todo[some], mode=mode, concurrency=concurrency, chunk=chunk)
    assert found == answers[some]
    assert len({tuple(ids) for ids in answers}) > len(todo) // 2


def test_float32_mode_has_transformers_logits(model: ModelFolder, tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(EIGHT_PROMPTS[-1], add_special_tokens=False)
    runner = load_native_runner(model, quantization="none", threads=2, kv_cache_tokens=512, max_model_len=512)
    found = all_logits(runner, token_ids, chunk=50)
    runner.close()
    reference = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_rounding_costs_less_than_one_percent_of_perplexity(model: ModelFolder, tokenizer: Tokenizer) -> None:
    """The same Q4_1 and Q8_0 weights, with activations in 8 bits and the cache in float16, and all in float32."""
    token_ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)[:1600]
    found = {}
    for quantization in ("auto", "none"):
        runner = load_native_runner(
            model, quantization=quantization, threads=2, kv_cache_tokens=1024, max_model_len=1024
        )
        found[quantization] = perplexity(runner, token_ids)
        runner.close()
    assert len(token_ids) == 1600
    assert 5 < found["none"] < 50, "the text is no longer English, or the model is no longer itself"
    assert abs(found["auto"] / found["none"] - 1) < 0.01
