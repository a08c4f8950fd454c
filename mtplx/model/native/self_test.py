"""Whether a build computes what the portable one does: every format and both cache types, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mtplx.model.native.binding import Floats, NativeLibrary
from mtplx.model.native.operations import (
    FlatRows,
    attention,
    cache_write,
    empty_cache,
    linear,
    pack_matrix,
    rms_norm,
    unpack_rows,
)

TOLERANCE = 1e-4  # of the largest result: builds round in different places
BLOCK_BYTES = {0: 128, 1: 64, 2: 18, 3: 20, 8: 34}  # of 32 weights, by format
NUM_OUTPUTS, NUM_INPUTS = 40, 96  # a whole pair of panels and a part of one
HEAD_DIM = 80  # no multiple of 32


def difference(library: NativeLibrary, yardstick: NativeLibrary) -> str | None:
    """Returns what the two disagree on, None if nothing."""
    for (name, result), (_, expected) in zip(_results(library), _results(yardstick), strict=True):
        error = np.abs(result - expected).max()
        if not error <= TOLERANCE * np.abs(expected).max():  # NaN too
            return f"{name} is off by {error:.1e}"
    return None


def _results(library: NativeLibrary) -> Iterator[tuple[str, Floats]]:
    rng = np.random.default_rng(0)
    with library.open_pool(2) as pool:
        x = rng.normal(size=(17, NUM_INPUTS)).astype(np.float32)
        yield "rms_norm", rms_norm(library, pool, x[0], 1e-5, x)
        for format_number, block_bytes in BLOCK_BYTES.items():
            matrix = pack_matrix(
                library, format_number, (NUM_OUTPUTS, NUM_INPUTS), random_blocks(rng, format_number, block_bytes)
            )
            yield f"unpacking format {format_number}", unpack_rows(library, matrix, range(NUM_OUTPUTS))
            for num_rows in (1, 7, 17):
                yield f"format {format_number}, {num_rows} rows", linear(library, pool, matrix, x[:num_rows])
        rows = FlatRows(*(np.array(ints, dtype=np.int32) for ints in (range(300), [0] * 300, (0, 19), range(19))))
        keys, values = rng.normal(size=(2, 300, 1, HEAD_DIM)).astype(np.float32)
        queries = rng.normal(size=(300, 2, HEAD_DIM)).astype(np.float32)
        for dtype in (np.float16, np.float32):
            cache = empty_cache(19, 1, HEAD_DIM, dtype)
            cache_write(library, pool, cache, rows, keys, values)
            yield f"attention in {dtype.__name__}", attention(library, pool, cache, rows, queries, window=100)


def random_blocks(
    rng: np.random.Generator, format_number: int, block_bytes: int
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A matrix of the test's shape in GGUF's blocks: any bits, with scales about one hundredth."""
    num_blocks = NUM_OUTPUTS * NUM_INPUTS // 32
    if format_number in (0, 1):
        floats = rng.normal(size=num_blocks * 32).astype(np.float16 if format_number else np.float32)
        return floats.view(np.uint8)
    blocks = rng.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
    num_scales = 2 if format_number == 3 else 1
    scales = (0.01 * rng.normal(size=(num_blocks, num_scales))).astype(np.float16)
    blocks[:, : 2 * num_scales] = scales.view(np.uint8)
    return blocks.reshape(-1)
