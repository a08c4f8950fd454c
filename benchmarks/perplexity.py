"""Measures what the kernels' rounding costs: perplexity of a novel's beginning, native and in float32 on equal weights.

Run: python -m benchmarks.perplexity --quantization auto none
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.report import publish
from mtplx.batching.state import Row, StepPlan
from mtplx.model.native.loader import load_native_runner
from mtplx.model.runner import Runner
from mtplx.model.weights import resolve_model
from mtplx.text.tokenizer import Tokenizer

TEXT = Path(__file__).parents[1] / "tests" / "data" / "pride_and_prejudice.txt"
CONTEXT = 1024  # tokens; each window starts from nothing
CHUNK = 64


def perplexity(runner: Runner, token_ids: Sequence[int], context: int = CONTEXT) -> float:
    """Returns exp of the mean negative log likelihood of every token but each window's first."""
    log_likelihoods = [
        value
        for start in range(0, len(token_ids), context)
        for value in _window_log_likelihoods(runner, token_ids[start : start + context])
    ]
    return math.exp(-math.fsum(log_likelihoods) / len(log_likelihoods))


def _window_log_likelihoods(runner: Runner, token_ids: Sequence[int]) -> list[float]:
    blocks = tuple(range(-(-len(token_ids) // runner.block_size)))
    found: list[float] = []
    for start in range(0, len(token_ids), CHUNK):
        piece = tuple(token_ids[start : start + CHUNK])
        logits_NV = runner.run(StepPlan((Row(0, start, piece, blocks, num_logits=len(piece)),)))
        for logits_V, next_id in zip(logits_NV, token_ids[start + 1 : start + 1 + len(piece)], strict=False):
            scores = logits_V.astype(np.float64)
            top = scores.max()
            found.append(float(scores[next_id] - top - np.log(np.exp(scores - top).sum())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--quantization", nargs="+", default=["auto", "none"], help="one run for each")
    parser.add_argument("--tokens", type=int, default=10**6, help="take only so many of the text")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    model = resolve_model(options.model, with_weights=False)
    tokenizer = Tokenizer.load(model.path)
    token_ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)[: options.tokens]
    rows: list[dict[str, float | int | str | None]] = []
    for quantization in options.quantization:
        runner = load_native_runner(
            model, quantization=quantization, threads=options.threads, kv_cache_tokens=CONTEXT, max_model_len=CONTEXT
        )
        start_s = time.perf_counter()
        found = perplexity(runner, token_ids)
        rows.append(
            {
                "build": runner.info.build,
                "weights": runner.info.quantization,
                "cache": runner.info.kv_cache_dtype,
                "tokens": len(token_ids),
                "perplexity": found,
                "over_last_%": None,
                "tokens/s": len(token_ids) / (time.perf_counter() - start_s),
            }
        )
        runner.close()
    for row in rows:
        row["over_last_%"] = 100 * (float(row["perplexity"] or 0) / float(rows[-1]["perplexity"] or 1) - 1)
    publish("perplexity", rows, model=f"{model.name}, {TEXT.name}, context {CONTEXT}", output=options.output)


if __name__ == "__main__":
    main()
