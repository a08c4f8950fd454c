"""Measures the next-token function on one row of a 49,152-token vocabulary, and the sampler on steps of plain rows.

Run: python -m benchmarks.next_token --output next_token.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.report import publish
from mtplx.batching.state import Row, StepPlan
from mtplx.decode.history import History
from mtplx.decode.logprobs import token_logprobs
from mtplx.decode.next_token import next_token
from mtplx.decode.noise import NoiseKey
from mtplx.decode.noisy_argmax import fastest_noisy_argmax
from mtplx.decode.sampler import Sampler
from mtplx.sampling_params import SamplingParams

VOCAB_SIZE = 49_152
PROMPT_IDS = range(200)

# Spreads of normal logits: the first is about that of a small chat model, the second leaves top-p a huge nucleus.
PEAKED, FLAT = 5.0, 0.5


@dataclass(frozen=True, slots=True)
class Result:
    case: str
    median_ms: float  # of one row
    p90_ms: float
    limit_ms: float | None  # what the median must not pass, None where nothing is promised


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    params: SamplingParams
    spread: float
    limit_ms: float | None


CASES = (
    Case("greedy with penalties", SamplingParams(temperature=0.0, repetition_penalty=1.3), PEAKED, None),
    Case("temperature 1", SamplingParams(), PEAKED, 0.4),
    Case("temperature 1, flat row", SamplingParams(), FLAT, 0.4),
    Case("top_k 50", SamplingParams(top_k=50), PEAKED, 0.4),
    Case("top_p 0.9", SamplingParams(top_p=0.9), PEAKED, 0.4),
    Case("top_p 0.9, flat row", SamplingParams(top_p=0.9), FLAT, None),
    Case("top_k 50, top_p 0.9", SamplingParams(top_k=50, top_p=0.9), PEAKED, 0.4),
    Case("min_p 0.05", SamplingParams(min_p=0.05), PEAKED, 0.4),
    Case("all penalties", SamplingParams(repetition_penalty=1.3, frequency_penalty=1.0), PEAKED, 0.4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    parser.add_argument("--repeats", type=int, default=100, help="timed calls a case")
    arguments = parser.parse_args()
    results = [measure_greedy(width, arguments.repeats) for width in (1, 8, 32)]
    results += [measure_case(case, arguments.repeats) for case in CASES]
    results.append(measure_logprobs(arguments.repeats))
    model = f"none: normal float32 logits, vocabulary of {VOCAB_SIZE}"
    publish("next_token", [asdict(result) for result in results], model=model, output=arguments.output)


def measure_greedy(width: int, repeats: int) -> Result:
    """A step of `width` plain greedy rows through the sampler."""
    sampler = Sampler(VOCAB_SIZE)
    for seq_id in range(width):
        params = SamplingParams(temperature=0.0)
        sampler.add(seq_id, params, seed=0, choice=0, prompt_ids=PROMPT_IDS, stop_ids=frozenset({0}))
    logits_WV = rows(width, PEAKED)
    plans = [
        StepPlan(tuple(Row(seq_id, len(PROMPT_IDS) - 1 + step, (0,), (), num_logits=1) for seq_id in range(width)))
        for step in range(repeats + 1)  # the last plan is the one unmeasured call's
    ]
    remaining = iter(plans)
    times_ms = time_calls(lambda _: sampler.decode(next(remaining), logits_WV), repeats)
    return summary(f"greedy, step of {width}", [time_ms / width for time_ms in times_ms], 0.2)


def measure_case(case: Case, repeats: int) -> Result:
    """One row through the function, at a new position every time."""
    history = History.of_prompt(PROMPT_IDS, case.params, VOCAB_SIZE)
    for token_id in range(500, 700):
        history.append(token_id)
    noisy_argmax = fastest_noisy_argmax()
    logits_NV = rows(16, case.spread)

    def call(index: int) -> None:
        noise_key = NoiseKey(seed=7, position=index)
        next_token(logits_NV[index % 16], case.params, history, noise_key, None, noisy_argmax)

    return summary(case.name, time_calls(call, repeats), case.limit_ms)


def measure_logprobs(repeats: int) -> Result:
    logits_NV = rows(16, PEAKED)
    times_ms = time_calls(lambda index: token_logprobs(logits_NV[index % 16], 5, 5), repeats)
    return summary("logprobs 5, in addition", times_ms, None)


def rows(count: int, spread: float) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(0.0, spread, (count, VOCAB_SIZE)).astype(np.float32)


def time_calls(call: Callable[[int], object], repeats: int) -> list[float]:
    call(0)
    times_ms = []
    for index in range(repeats):
        start = time.perf_counter()
        call(index)
        times_ms.append((time.perf_counter() - start) * 1e3)
    return times_ms


def summary(name: str, times_ms: list[float], limit_ms: float | None) -> Result:
    return Result(name, statistics.median(times_ms), statistics.quantiles(times_ms, n=10)[-1], limit_ms)


if __name__ == "__main__":
    main()
