"""Measures a decode step of the native runner by context: milliseconds, growth, and how fast attention reads its cache.

The time of attention is a step's less that of the same step at a context of one block. The cache is filled by computing
chunks, each as if it were a beginning: what it holds doesn't matter, that it is really there does. In every round all
contexts have their turn, and the bandwidth is measured beside each.

Run: python -m benchmarks.long_context
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.plots import Plot
from benchmarks.report import Row, criterion, median_and_spread, publish
from benchmarks.yardsticks import READ_BYTES, seconds, steady_seconds
from mtplx.batching.state import Row as PlanRow
from mtplx.batching.state import StepPlan
from mtplx.model.cache import BLOCK_SIZE, CacheLayout
from mtplx.model.machine import physical_cores
from mtplx.model.native.library import load_library
from mtplx.model.native.loader import CACHE_BYTES, load_native_runner
from mtplx.model.native.operations import read_sum
from mtplx.model.runner import Runner
from mtplx.model.spec import ModelSpec
from mtplx.model.weights import resolve_model

BASE, SHORT, LONG = BLOCK_SIZE, 128, 4096  # contexts: without attention to speak of; and the two that are compared
CHUNK_BLOCKS = 4
MOST_GROWTH, LEAST_OF_BANDWIDTH = 2.2, 0.6


@dataclass(frozen=True, slots=True)
class Turn:
    step_s: float
    bandwidth: float  # bytes a second


Turns = Mapping[int, Sequence[Turn]]  # by context, one a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--contexts", nargs="+", type=int, default=[SHORT, 1024, LONG, 8192])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    contexts = sorted({BASE, *options.contexts})
    runner = load_native_runner(
        resolve_model(options.model, with_weights=False),
        threads=options.threads,
        kv_cache_tokens=max(options.widths) * contexts[-1],
        max_model_len=contexts[-1],
    )
    tables = shuffled_tables(runner, max(options.widths))
    fill(runner, tables)
    measured = {width: measure(runner, tables[:width], contexts, options) for width in options.widths}
    bytes_per_token = cache_bytes_per_token(runner.spec, str(runner.info.kv_cache_dtype))
    publish(
        "long_context",
        [row for width, turns in measured.items() for row in rows(width, turns, bytes_per_token)],
        model=", ".join(
            (
                options.model,
                f"{runner.info.kv_cache_dtype} cache",
                f"{runner.info.build} build",
                f"{options.threads} threads",
            )
        ),
        output=options.output,
        tables={
            "criteria": [row for width, turns in measured.items() for row in criteria(width, turns, bytes_per_token)]
        },
        plot=Plot("context", ("ms", "GB/s"), "width", limits=("bandwidth",)),
    )
    runner.close()


def shuffled_tables(runner: Runner, width: int) -> list[tuple[int, ...]]:
    """All of the runner's blocks in random order, dealt to `width` sequences."""
    ids = np.random.default_rng(0).permutation(runner.num_blocks).tolist()
    each = runner.num_blocks // width
    return [tuple(ids[index * each : (index + 1) * each]) for index in range(width)]


def fill(runner: Runner, tables: Sequence[tuple[int, ...]]) -> None:
    """Writes keys and values of some text into every block."""
    token_ids = tuple(range(100, 100 + CHUNK_BLOCKS * BLOCK_SIZE))
    for table in tables:
        for begin in range(0, len(table), CHUNK_BLOCKS):
            blocks = table[begin : begin + CHUNK_BLOCKS]
            runner.run(StepPlan((PlanRow(0, 0, token_ids[: len(blocks) * BLOCK_SIZE], blocks, num_logits=0),)))


def measure(
    runner: Runner, tables: Sequence[tuple[int, ...]], contexts: Sequence[int], options: argparse.Namespace
) -> Turns:
    """Rounds of one turn at every context: each sequence's token is its last of `context`."""
    library, data = load_library(), np.ones(READ_BYTES, dtype=np.uint8)
    plans = {
        context: StepPlan(
            tuple(
                PlanRow(seq_id, context - 1, (100 + seq_id,), table[: -(-context // BLOCK_SIZE)], num_logits=1)
                for seq_id, table in enumerate(tables)
            )
        )
        for context in contexts
    }
    turns: dict[int, list[Turn]] = {context: [] for context in contexts}
    with library.open_pool(options.threads) as pool:
        for _ in range(options.rounds):
            for context, plan in plans.items():
                bandwidth = READ_BYTES / seconds(partial(read_sum, library, pool, data))
                turns[context].append(Turn(steady_seconds(partial(runner.run, plan)), bandwidth))
    return turns


def rows(width: int, turns: Turns, bytes_per_token: int) -> Iterator[Row]:
    for context in (context for context in turns if context != BASE):
        step, (least, most) = median_and_spread([turn.step_s for turn in turns[context]])
        growth, growth_spread = median_and_spread(_growth(turns, SHORT if SHORT in turns else BASE, context))
        speeds = cache_speeds(width, turns, context, bytes_per_token)
        bandwidth = statistics.median(turn.bandwidth for turn in turns[context])
        yield {
            "width": width,
            "context": context,
            "ms": step * 1e3,
            "ms spread": (least * 1e3, most * 1e3),
            f"over {SHORT if SHORT in turns else BASE}": growth,
            "growth spread": growth_spread,
            # At the shortest context attention is lost in the noise of the two steps whose difference it is.
            "attention's share": None if context == SHORT else statistics.median(_attention_shares(turns, context)),
            "GB/s": None if context == SHORT else statistics.median(speeds) / 1e9,
            "bandwidth GB/s": bandwidth / 1e9,
        }


def criteria(width: int, turns: Turns, bytes_per_token: int) -> Iterator[Row]:
    if SHORT in turns and LONG in turns:
        what = f"width {width}, step at {LONG} / step at {SHORT}"
        yield criterion(what, _growth(turns, SHORT, LONG), most=MOST_GROWTH)
    if LONG in turns:
        speeds = cache_speeds(width, turns, LONG, bytes_per_token)
        shares = [speed / turn.bandwidth for speed, turn in zip(speeds, turns[LONG], strict=True)]
        yield criterion(f"width {width}, cache read at {LONG}, of bandwidth", shares, least=LEAST_OF_BANDWIDTH)


def cache_bytes_per_token(spec: ModelSpec, kv_cache_dtype: str) -> int:
    """What one token takes in the native runner's cache, all layers."""
    width, element_bytes = spec.head_dim, CACHE_BYTES[kv_cache_dtype]
    return CacheLayout(spec.num_layers, spec.num_kv_heads, width, width, element_bytes).bytes_per_token


def cache_speeds(width: int, turns: Turns, context: int, bytes_per_token: int) -> list[float]:
    """Bytes a second of the cache beyond the base context, in the time that a step takes beyond the base step."""
    num_bytes = width * (context - BASE) * bytes_per_token
    return [
        num_bytes / max(turn.step_s - base.step_s, 1e-9) for turn, base in zip(turns[context], turns[BASE], strict=True)
    ]


def _growth(turns: Turns, short: int, long: int) -> list[float]:
    return [after.step_s / before.step_s for after, before in zip(turns[long], turns[short], strict=True)]


def _attention_shares(turns: Turns, context: int) -> list[float]:
    return [1 - base.step_s / turn.step_s for turn, base in zip(turns[context], turns[BASE], strict=True)]


if __name__ == "__main__":
    main()
