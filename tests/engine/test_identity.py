"""The same ids from every mode, concurrency and chunk size: on tiny models, and on the real one in exact mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mtplx.batching.state import SchedulerMode, StopRules
from mtplx.model.runner import Runner
from mtplx.model.torch.loader import load_torch_runner
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Submit
from mtplx.text.tokenizer import Tokenizer
from tests.drivers import run_closed_loop
from tests.prompts import EIGHT_PROMPTS
from tests.tiny_models import VOCAB_SIZE, write_tiny_model

WHOLE = 512
# Of mode, concurrency and chunk each pair of values meets once.
COVERING = (
    (SchedulerMode.SERIAL, 1, 16),
    (SchedulerMode.SERIAL, 4, 64),
    (SchedulerMode.SERIAL, 8, WHOLE),
    (SchedulerMode.COOPERATIVE, 1, 64),
    (SchedulerMode.COOPERATIVE, 4, WHOLE),
    (SchedulerMode.COOPERATIVE, 8, 16),
    (SchedulerMode.AR_BATCH, 1, WHOLE),
    (SchedulerMode.AR_BATCH, 4, 16),
    (SchedulerMode.AR_BATCH, 8, 64),
)
PENALISED = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5, "repetition_penalty": 1.2}


def submits(prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Submit]:
    """Every prompt greedy, seeded at temperature 0.8, and seeded with filters and penalties."""
    wishes = ({"temperature": 0.0}, {"temperature": 0.8}, PENALISED)
    return [
        Submit(
            0,
            tuple(prompt),
            SamplingParams(max_tokens=max_tokens, **wish),
            seed=7 + k,
            choice=0,
            stops=StopRules(max_tokens),
        )
        for wish in wishes
        for k, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), request.param)
    runner = load_torch_runner(
        folder, device="cpu", dtype="float64", kv_cache_tokens=1024, max_model_len=128, threads=1
    )
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def tiny_oracle(tiny: Runner) -> list[tuple[int, ...]]:
    return run_closed_loop(tiny, tiny_submits(), mode=SchedulerMode.SERIAL, concurrency=1, chunk=WHOLE)


def tiny_submits() -> list[Submit]:
    prompts = [[(7 * k + 5 * i * i) % VOCAB_SIZE for i in range(3 + 9 * k)] for k in range(8)]
    return submits(prompts, max_tokens=10)


@pytest.mark.parametrize(("mode", "concurrency", "chunk"), COVERING)
def test_tiny_models_agree_always(
    tiny: Runner, tiny_oracle: list[tuple[int, ...]], mode: SchedulerMode, concurrency: int, chunk: int
) -> None:
    assert run_closed_loop(tiny, tiny_submits(), mode=mode, concurrency=concurrency, chunk=chunk) == tiny_oracle


@pytest.mark.real_model
def test_the_real_model_agrees_in_exact_mode(default_model_folder: Path) -> None:
    """A covering subset; benchmarks/identity.py runs the whole matrix.

    On one thread: where other tests have left teams of OpenMP, two threads can take ten times as long for each layer.
    """
    tokenizer = Tokenizer.load(default_model_folder)
    runner = load_torch_runner(default_model_folder, device="cpu", threads=1, kv_cache_tokens=4096, max_model_len=512)
    assert runner.info.exact, runner.info.exact_note
    todo = submits([tokenizer.encode(text, add_special_tokens=False) for text in EIGHT_PROMPTS[:4]], max_tokens=5)
    oracle = run_closed_loop(runner, todo, mode=SchedulerMode.AR_BATCH, concurrency=8, chunk=64)
    cooperative = run_closed_loop(runner, todo, mode=SchedulerMode.COOPERATIVE, concurrency=4, chunk=16)
    serial = run_closed_loop(runner, todo[::3], mode=SchedulerMode.SERIAL, concurrency=1, chunk=WHOLE)
    runner.close()
    assert cooperative == oracle
    assert serial == oracle[::3]
