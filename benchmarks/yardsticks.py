"""What this machine can do, measured in turns with whatever is compared with it: memory bandwidth and matrix rates."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mtplx.model.native.binding import NativeLibrary, Pool
from mtplx.model.native.operations import read_sum

READ_BYTES = 256 << 20
PEAK_ROWS, PEAK_OUTPUTS, PEAK_INPUTS = 256, 3072, 576  # gate and up projection of SmolLM2-135M, on many rows
TORCH_LIMITS = {  # by a build of ours: the instructions that its machine has at most, in the words of fbgemm and oneDNN
    "avx2": ("AVX2", "AVX2"),
    "avx512": ("AVX512_VNNI", "AVX512_CORE_VNNI"),
}
SPIN_S = 0.01  # longer than PyTorch's threads go on spinning, on cores that others need, after their work

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """`peaks` are PyTorch's matrix products by number type, of int8 with the fastest engine."""

    read: Call
    peaks: Mapping[str, Call]
    int8_engine: str

    def bandwidth(self) -> float:
        """Bytes a second of one reading of 256 MiB."""
        return READ_BYTES / seconds(self.read)

    def peak(self, kind: str) -> float:
        """Operations a second of a product, a multiplication and an addition being two."""
        elapsed_s = steady_seconds(self.peaks[kind])
        time.sleep(SPIN_S)
        return 2.0 * PEAK_ROWS * PEAK_OUTPUTS * PEAK_INPUTS / elapsed_s


def limit_torch(build: str) -> None:
    """Holds PyTorch, not loaded yet, to the instructions that a build of ours uses, so that both do with the same."""
    if "torch" in sys.modules:
        raise RuntimeError("PyTorch is loaded already, and has chosen its instructions")
    os.environ["FBGEMM_ENABLE_INSTRUCTIONS"], os.environ["ONEDNN_MAX_CPU_ISA"] = TORCH_LIMITS[build]


def make_yardsticks(library: NativeLibrary, pool: Pool, threads: int) -> Yardsticks:
    import torch

    torch.set_num_threads(threads)
    data = np.ones(READ_BYTES, dtype=np.uint8)
    x, weights = torch.randn(PEAK_ROWS, PEAK_INPUTS), torch.randn(PEAK_OUTPUTS, PEAK_INPUTS)
    engine = best_int8_engine()
    peaks = {
        "int8": int8_product(engine, PEAK_ROWS, PEAK_OUTPUTS, PEAK_INPUTS),
        "float32": lambda: torch.nn.functional.linear(x, weights),
    }
    return Yardsticks(lambda: read_sum(library, pool, data), peaks, engine)


def best_int8_engine() -> str:
    """The fastest of PyTorch's engines for dynamically quantised linears on many rows."""
    import torch

    engines = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    calls = {engine: int8_product(engine, PEAK_ROWS, PEAK_OUTPUTS, PEAK_INPUTS) for engine in engines}
    return min(engines, key=lambda engine: min(steady_seconds(calls[engine]) for _ in range(3)))


def int8_product(engine: str, num_rows: int, num_outputs: int, num_inputs: int) -> Call:
    """A call of PyTorch's dynamic int8 linear: one scale for all rows, found in the call."""
    import torch

    torch.backends.quantized.engine = engine
    x = torch.randn(num_rows, num_inputs)
    weights = torch.quantize_per_tensor(torch.randn(num_outputs, num_inputs) / 50, 0.001, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weights, None)

    def call() -> None:
        torch.backends.quantized.engine = engine
        torch.ops.quantized.linear_dynamic(x, packed, False)

    return call


def steady_seconds(call: Call, repeats: int = 3) -> float:
    """The median time of a few calls in a row, after one that finds caches and threads as others left them."""
    call()
    return statistics.median(seconds(call) for _ in range(repeats))


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
