"""Measures the native kernels: linears by format and number of rows, attention at 1k and 4k, and whole decode steps.

Linears and attention are of SmolLM2-135M's shapes, for K formats with rows filled up to whole blocks. The matrices of
ten layers are stacked into one, since a call from Python costs what a small matrix does; a step is one call and shows
what really comes out: `step` is a model's decode step with so many rows at a context of one block, where attention is
next to nothing.

Everything is shown beside what this machine can do in the same run: the bandwidth of reading 256 MiB with the same
threads, and PyTorch's best rate, that of dynamic int8 linears for quantised weights, of float32 for the others. Every
pass goes through all widths of a format in turn, each right after its yardsticks; ratios are taken within a pass, and
their medians count. torch-int8 is PyTorch on the same shapes, for comparison.

Run: python -m benchmarks.native_kernels --models smollm2-135m-instruct Q8_0.gguf
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.plots import Plot
from benchmarks.report import Row, criterion, median_and_spread, publish
from benchmarks.ways import bits_of
from benchmarks.yardsticks import (
    TORCH_LIMITS,
    Call,
    Yardsticks,
    int8_product,
    limit_torch,
    make_yardsticks,
    steady_seconds,
)
from mtplx.batching.state import Row as PlanRow
from mtplx.batching.state import StepPlan
from mtplx.model.machine import physical_cores
from mtplx.model.native.binding import Floats, NativeLibrary, Pool
from mtplx.model.native.formats import BLOCK_FORMATS, Format
from mtplx.model.native.library import load_library
from mtplx.model.native.loader import load_native_runner
from mtplx.model.native.operations import (
    FlatRows,
    LayerCache,
    PackedMatrix,
    attention,
    empty_cache,
    linear,
    pack_matrix,
)
from mtplx.model.native.runner import NativeRunner
from mtplx.model.native.self_test import random_source
from mtplx.model.weights import resolve_model

NUM_LAYERS, HIDDEN, VOCAB = 30, 576, 49_152
LAYER_SHAPES = ((960, HIDDEN), (HIDDEN, HIDDEN), (3072, HIDDEN), (HIDDEN, 1536))  # qkv, o, gate and up, down
STACKED_LAYERS = 10
SHAPES = (
    *((STACKED_LAYERS * num_rows, num_cols) for num_rows, num_cols in LAYER_SHAPES * (NUM_LAYERS // STACKED_LAYERS)),
    (VOCAB, HIDDEN),
)
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_TOKENS = 9, 3, 64, 16
FORMATS = tuple(Format.__members__)
HEADS = {"Q4_0": "Q8_0", "Q4_1": "Q8_0", "Q4_K": "Q6_K", "Q5_K": "Q6_K"}  # as public files have it; others: the same
TORCH_INT8 = "torch-int8"
DEFAULT_FORMATS = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0", TORCH_INT8)
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
TORCH_WIDTHS = (1, 4, 16, 64)

# What is aimed at. `FLAT_UP_TO` rows by bits of a weight should cost hardly more than one: speculation lives on it.
LEAST_OF_BANDWIDTH, LEAST_OF_PEAK, LEAST_OF_BANDWIDTH_IN_ATTENTION, MOST_GROWTH = 0.7, 0.6, 0.6, 1.35
FLAT_UP_TO = {4: 4, 8: 6}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    num_rows: int
    call: Call
    num_bytes: int  # weights or cache, once a call
    num_ops: float
    peak_kind: str = "int8"


@dataclass(frozen=True, slots=True)
class Pass:
    """The time of a call of a case, and the yardsticks just before it in bytes and operations a second."""

    seconds: float
    bandwidth: float
    peak: float


@dataclass(frozen=True, slots=True)
class Measured:
    case: Case
    passes: Sequence[Pass]

    def of_bandwidth(self) -> list[float]:
        return [self.case.num_bytes / each.seconds / each.bandwidth for each in self.passes]

    def of_peak(self) -> list[float]:
        return [self.case.num_ops / each.seconds / each.peak for each in self.passes]

    def row(self) -> Row:
        median_s, (least_s, most_s) = median_and_spread([each.seconds for each in self.passes])
        return {
            "case": self.case.name,
            "rows": self.case.num_rows,
            "ms": median_s * 1e3,
            "ms spread": (least_s * 1e3, most_s * 1e3),
            "GB/s": self.case.num_bytes / median_s / 1e9,
            "bandwidth GB/s": statistics.median(each.bandwidth for each in self.passes) / 1e9,
            "of bandwidth": statistics.median(self.of_bandwidth()),
            "GOP/s": self.case.num_ops / median_s / 1e9,
            "peak GOP/s": statistics.median(each.peak for each in self.passes) / 1e9,
            "of peak": statistics.median(self.of_peak()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    parser.add_argument("--build", help="avx512, avx2, neon or portable; default: the best")
    parser.add_argument("--limit-torch", choices=TORCH_LIMITS, help="hold PyTorch to the instructions of this build")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--passes", type=int, default=7, help="timed passes a case")
    parser.add_argument("--models", nargs="*", default=["smollm2-135m-instruct"], help="whose steps are measured")
    parser.add_argument("--formats", nargs="*", choices=[*FORMATS, TORCH_INT8], default=DEFAULT_FORMATS)
    arguments = parser.parse_args()
    if arguments.limit_torch:
        limit_torch(arguments.limit_torch)
    library = load_library(arguments.build)
    with library.open_pool(arguments.threads) as pool:
        yardsticks = make_yardsticks(library, pool, arguments.threads)
        linears: list[Measured] = []
        for name in arguments.formats:
            cases = torch_cases(yardsticks.int8_engine) if name == TORCH_INT8 else linear_cases(library, pool, name)
            linears += measure(cases, yardsticks, arguments.passes)
        attentions = measure(attention_cases(library, pool), yardsticks, arguments.passes)
        steps: list[Measured] = []
        for name in arguments.models:
            runner = load_native_runner(
                resolve_model(name, with_weights=False),
                threads=arguments.threads,
                kv_cache_tokens=WIDTHS[-1] * BLOCK_TOKENS,
                max_model_len=BLOCK_TOKENS,
                build=arguments.build,
            )
            steps += measure(step_cases(runner), yardsticks, arguments.passes)
            runner.close()
    names = ", ".join(Path(name).name for name in arguments.models)
    publish(
        "native_kernels",
        [measured.row() for measured in (*linears, *attentions, *steps)],
        model=f"{names}, {library.build} build, {arguments.threads} threads",
        output=arguments.output,
        tables={"criteria": [*step_criteria(steps), *linear_criteria(linears), *attention_criteria(attentions)]},
        plot=Plot("rows", ("ms", "GB/s", "GOP/s"), "case", limits=("bandwidth", "peak"), has_log_y=True),
    )


def linear_cases(library: NativeLibrary, pool: Pool, name: str) -> list[Case]:
    """Every matrix of the model once a call."""
    rng = np.random.default_rng(0)
    matrices = [_matrix(rng, library, name, *shape) for shape in SHAPES[:-1]]
    matrices.append(_matrix(rng, library, HEADS.get(name, name), *SHAPES[-1]))
    num_weights = sum(matrix.num_rows * matrix.num_cols for matrix in matrices)
    num_bytes = sum(matrix.data.nbytes for matrix in matrices)
    peak_kind = "int8" if name.startswith("Q") else "float32"
    cases = []
    for width in WIDTHS:
        sizes = {matrix.num_cols for matrix in matrices}
        inputs = {size: rng.normal(size=(width, size)).astype(np.float32) for size in sorted(sizes)}
        call = _linear_call(library, pool, matrices, inputs)
        cases.append(Case(name, width, call, num_bytes, 2.0 * num_weights * width, peak_kind))
    return cases


def torch_cases(engine: str) -> list[Case]:
    """PyTorch's dynamic int8 linears on the same shapes."""
    num_weights = sum(num_rows * num_cols for num_rows, num_cols in SHAPES)
    cases = []
    for width in TORCH_WIDTHS:
        products = [int8_product(engine, width, *shape) for shape in SHAPES]
        cases.append(Case(TORCH_INT8, width, _all_of(products), num_weights, 2.0 * num_weights * width))
    return cases


def attention_cases(library: NativeLibrary, pool: Pool) -> list[Case]:
    return [_attention_case(library, pool, num_tokens, width) for num_tokens in (1024, 4096) for width in (1, 8)]


def step_cases(runner: NativeRunner) -> list[Case]:
    """Steps of a real model, every row a sequence of its own with its last place in its only block."""
    index = runner._model._weights.index
    num_weights = sum(math.prod(tensor.shape) for tensor in index.tensors.values() if len(tensor.shape) == 2)
    name = f"step {index.formats()}"
    cases = []
    for width in WIDTHS:
        rows = (PlanRow(seq_id, BLOCK_TOKENS - 1, (100 + seq_id,), (seq_id,), num_logits=1) for seq_id in range(width))
        call = partial(runner.run, StepPlan(tuple(rows)))
        cases.append(Case(name, width, call, index.num_bytes, 2.0 * num_weights * width))
    return cases


def measure(cases: Sequence[Case], yardsticks: Yardsticks, passes: int) -> list[Measured]:
    """Times the cases in turns, `passes` times, after one call of each that doesn't count."""
    for case in cases:
        case.call()
    timed: list[list[Pass]] = [[] for _ in cases]
    for _ in range(passes):
        for case, times in zip(cases, timed, strict=True):
            peak = yardsticks.peak(case.peak_kind)
            bandwidth = yardsticks.bandwidth()
            times.append(Pass(steady_seconds(case.call), bandwidth, peak))
    return [Measured(case, times) for case, times in zip(cases, timed, strict=True)]


def step_criteria(steps: Sequence[Measured]) -> Iterator[Row]:
    found = {(measured.case.name, measured.case.num_rows): measured for measured in steps}
    for name in dict.fromkeys(measured.case.name for measured in steps):
        bits = bits_of(name.removeprefix("step "))
        yield criterion(f"{name}, 1 row, of bandwidth", found[name, 1].of_bandwidth(), least=LEAST_OF_BANDWIDTH)
        if bits in FLAT_UP_TO:
            what = f"{name}, t({FLAT_UP_TO[bits]}) / max(t(1), bytes / (0.7 bandwidth))"
            yield criterion(what, growth(found[name, 1], found[name, FLAT_UP_TO[bits]]), most=MOST_GROWTH)


def linear_criteria(linears: Sequence[Measured]) -> Iterator[Row]:
    quantised = [measured for measured in linears if measured.case.peak_kind == "int8"]
    best = max((each.peak for measured in quantised for each in measured.passes), default=0.0)  # of the whole run
    for measured in quantised:
        if measured.case.num_rows == 16:
            shares = [measured.case.num_ops / each.seconds / best for each in measured.passes]
            yield criterion(f"{measured.case.name}, 16 rows, of torch's best int8", shares, least=LEAST_OF_PEAK)


def attention_criteria(attentions: Sequence[Measured]) -> Iterator[Row]:
    for measured in attentions:
        what = f"{measured.case.name}, width {measured.case.num_rows}, of bandwidth"
        if "4096" in measured.case.name:
            yield criterion(what, measured.of_bandwidth(), least=LEAST_OF_BANDWIDTH_IN_ATTENTION)


def growth(one: Measured, flat: Measured) -> list[float]:
    """Time of the rows that should be nearly free over that of one row, or over what one row may take if it is less."""
    return [
        wide.seconds / max(narrow.seconds, one.case.num_bytes / (LEAST_OF_BANDWIDTH * narrow.bandwidth))
        for narrow, wide in zip(one.passes, flat.passes, strict=True)
    ]


def _attention_case(library: NativeLibrary, pool: Pool, num_tokens: int, width: int) -> Case:
    """One decoded token for each of `width` sequences, through all layers' float16 caches."""
    rng = np.random.default_rng(0)
    blocks_each = num_tokens // BLOCK_TOKENS
    caches = [_filled_cache(rng, width * blocks_each) for _ in range(NUM_LAYERS)]
    rows = FlatRows(
        np.full(width, num_tokens - 1, dtype=np.int32),
        np.arange(width, dtype=np.int32),
        np.arange(width + 1, dtype=np.int32) * np.int32(blocks_each),
        rng.permutation(width * blocks_each).astype(np.int32),
    )
    queries = rng.normal(size=(width, NUM_HEADS, HEAD_DIM)).astype(np.float32)

    def call() -> None:
        for cache in caches:
            attention(library, pool, cache, rows, queries)

    num_bytes = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)
    num_ops = 4.0 * NUM_LAYERS * width * NUM_HEADS * HEAD_DIM * num_tokens
    return Case(f"attention over {num_tokens}", width, call, num_bytes, num_ops, "float32")


def _linear_call(
    library: NativeLibrary, pool: Pool, matrices: Sequence[PackedMatrix], inputs: dict[int, Floats]
) -> Call:
    def call() -> None:
        for matrix in matrices:
            linear(library, pool, matrix, inputs[matrix.num_cols])

    return call


def _all_of(calls: Sequence[Call]) -> Call:
    def call() -> None:
        for each in calls:
            each()

    return call


def _matrix(rng: np.random.Generator, library: NativeLibrary, name: str, num_rows: int, num_cols: int) -> PackedMatrix:
    kind = Format[name]
    block = BLOCK_FORMATS.get(kind)
    num_cols += 0 if block is None else -num_cols % block.num_weights
    return pack_matrix(library, kind, (num_rows, num_cols), random_source(rng, kind, num_rows * num_cols))


def _filled_cache(rng: np.random.Generator, num_blocks: int) -> LayerCache:
    cache = empty_cache(num_blocks, NUM_KV_HEADS, HEAD_DIM, np.float16)
    cache.keys[:] = rng.normal(size=cache.keys.shape[1:])
    cache.values[:] = rng.normal(size=cache.values.shape[1:])
    return cache


if __name__ == "__main__":
    main()
