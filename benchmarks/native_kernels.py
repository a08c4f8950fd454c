"""Measures the native kernels: all linears of SmolLM2-135M by format and number of rows, attention at 1k and 4k.

Everything is shown beside what this machine can do in the same run: the bandwidth of reading 256 MiB with the same
threads, and the best rate of PyTorch's dynamic int8 linears. Passes of the ways alternate, the median of each counts;
`of_bandwidth` and `of_peak` are medians of ratios between passes next to each other in time.

Run: python -m benchmarks.native_kernels --threads 2
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import publish
from mtplx.model.machine import physical_cores
from mtplx.model.native.binding import Floats, NativeLibrary, Pool
from mtplx.model.native.library import load_library
from mtplx.model.native.operations import (
    FlatRows,
    LayerCache,
    PackedMatrix,
    attention,
    empty_cache,
    linear,
    pack_matrix,
    read_sum,
)

NUM_LAYERS, HIDDEN, VOCAB = 30, 576, 49_152
LAYER_SHAPES = ((960, HIDDEN), (HIDDEN, HIDDEN), (3072, HIDDEN), (HIDDEN, 1536))  # qkv, o, gate and up, down
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_TOKENS = 9, 3, 64, 16
FORMATS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8}
BLOCK_BYTES = {"F32": 128, "F16": 64, "Q4_0": 18, "Q4_1": 20, "Q8_0": 34}  # of 32 weights
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
PEAK_ROWS = 256
READ_BYTES = 256 << 20

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Result:
    case: str
    rows: int
    median_ms: float
    least_ms: float
    gb_per_s: float  # weights or cache, once a pass
    gop_per_s: float
    of_bandwidth: float
    of_peak: float


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """The machine's own measures, called before and after every pass."""

    read: Call
    peak: Call
    peak_ops: float

    def bandwidth(self) -> float:
        return READ_BYTES / seconds(self.read)

    def rate(self) -> float:
        return self.peak_ops / seconds(self.peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    parser.add_argument("--build", help="avx512, avx2, neon or portable; default: the best")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--passes", type=int, default=7, help="timed passes a case")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    arguments = parser.parse_args()
    library = load_library(arguments.build)
    with library.open_pool(arguments.threads) as pool:
        yardsticks = make_yardsticks(library, pool, arguments.threads)
        results = [
            result
            for name in arguments.formats
            for result in measure_linears(library, pool, yardsticks, name, arguments.passes)
        ]
        for num_tokens in (1024, 4096):
            for width in (1, 8):
                results.append(measure_attention(library, pool, yardsticks, num_tokens, width, arguments.passes))
    model = f"none: random weights of SmolLM2-135M's shapes, {library.build} build, {arguments.threads} threads"
    publish("native_kernels", [asdict(result) for result in results], model=model, output=arguments.output)


def make_yardsticks(library: NativeLibrary, pool: Pool, threads: int) -> Yardsticks:
    """Reading memory, and PyTorch's fastest int8 engine on many rows of the gate and up projections."""
    import torch

    torch.set_num_threads(threads)
    data = np.ones(READ_BYTES, dtype=np.uint8)
    num_outputs, num_inputs = LAYER_SHAPES[2]
    x = torch.randn(PEAK_ROWS, num_inputs)
    calls = [
        _int8_call(engine, x, num_outputs) for engine in torch.backends.quantized.supported_engines if engine != "none"
    ]
    best = min(calls, key=lambda call: min(seconds(call) for _ in range(5)))
    return Yardsticks(lambda: read_sum(library, pool, data), best, 2.0 * PEAK_ROWS * num_outputs * num_inputs)


def measure_linears(
    library: NativeLibrary, pool: Pool, yardsticks: Yardsticks, name: str, passes: int
) -> Sequence[Result]:
    """Every matrix of the model once a pass; the output head of the 4-bit formats is Q8_0, as in the public file."""
    rng = np.random.default_rng(0)
    head = "Q8_0" if name.startswith("Q4") else name
    matrices = [_matrix(rng, library, name, *shape) for _ in range(NUM_LAYERS) for shape in LAYER_SHAPES]
    matrices.append(_matrix(rng, library, head, VOCAB, HIDDEN))
    num_bytes = sum(matrix.data.nbytes for matrix in matrices)
    num_weights = sum(matrix.num_rows * matrix.num_cols for matrix in matrices)
    results = []
    for width in WIDTHS:
        inputs = {size: rng.normal(size=(width, size)).astype(np.float32) for size in (HIDDEN, 1536)}
        call = _linear_pass(library, pool, matrices, inputs)
        results.append(
            measure(f"linears {name}", width, call, num_bytes, 2.0 * num_weights * width, yardsticks, passes)
        )
    return results


def measure_attention(
    library: NativeLibrary, pool: Pool, yardsticks: Yardsticks, num_tokens: int, width: int, passes: int
) -> Result:
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
    return measure(f"attention over {num_tokens}", width, call, num_bytes, num_ops, yardsticks, passes)


def measure(
    case: str, rows: int, call: Call, num_bytes: int, num_ops: float, yardsticks: Yardsticks, passes: int
) -> Result:
    call()
    times, of_bandwidth, of_peak = [], [], []
    for _ in range(passes):
        bandwidth, rate = yardsticks.bandwidth(), yardsticks.rate()
        elapsed = seconds(call)
        times.append(elapsed)
        of_bandwidth.append(num_bytes / elapsed / bandwidth)
        of_peak.append(num_ops / elapsed / rate)
    median = statistics.median(times)
    return Result(
        case,
        rows,
        median * 1e3,
        min(times) * 1e3,
        num_bytes / median / 1e9,
        num_ops / median / 1e9,
        statistics.median(of_bandwidth),
        statistics.median(of_peak),
    )


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _linear_pass(
    library: NativeLibrary, pool: Pool, matrices: Sequence[PackedMatrix], inputs: dict[int, Floats]
) -> Call:
    def call() -> None:
        for matrix in matrices:
            linear(library, pool, matrix, inputs[matrix.num_cols])

    return call


def _matrix(rng: np.random.Generator, library: NativeLibrary, name: str, num_rows: int, num_cols: int) -> PackedMatrix:
    blocks = rng.integers(0, 256, (num_rows * num_cols // 32, BLOCK_BYTES[name]), dtype=np.uint8)
    if name in ("F32", "F16"):
        blocks[:] = 0
    else:
        blocks[:, 1:4:2] = 0x20  # the upper bytes of scale and minimum: about one hundredth
    return pack_matrix(library, FORMATS[name], (num_rows, num_cols), blocks.reshape(-1))


def _filled_cache(rng: np.random.Generator, num_blocks: int) -> LayerCache:
    cache = empty_cache(num_blocks, NUM_KV_HEADS, HEAD_DIM, np.float16)
    cache.keys[:] = rng.normal(size=cache.keys.shape[1:])
    cache.values[:] = rng.normal(size=cache.values.shape[1:])
    return cache


def _int8_call(engine: str, x: object, num_outputs: int) -> Call:
    import torch

    torch.backends.quantized.engine = engine
    assert isinstance(x, torch.Tensor)
    weights = torch.quantize_per_tensor(torch.randn(num_outputs, x.shape[1]) / 50, 0.001, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weights, None)

    def call() -> None:
        torch.backends.quantized.engine = engine
        torch.ops.quantized.linear_dynamic(x, packed, False)

    return call


if __name__ == "__main__":
    main()
