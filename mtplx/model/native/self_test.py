"""Whether a build computes what the portable one does: every format and both cache types, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mtplx.model.native.binding import Bytes, Floats, NativeLibrary
from mtplx.model.native.formats import BLOCK_FORMATS, Format
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
NUM_OUTPUTS, NUM_INPUTS = 40, 256  # a whole pair of panels and a part of one; a block of every format
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
        for kind in Format:
            source = random_source(rng, kind, NUM_OUTPUTS * NUM_INPUTS)
            matrix = pack_matrix(library, kind, (NUM_OUTPUTS, NUM_INPUTS), source)
            yield f"unpacking {kind.name}", unpack_rows(library, matrix, range(NUM_OUTPUTS))
            for num_rows in (1, 7, 17):
                yield f"{kind.name}, {num_rows} rows", linear(library, pool, matrix, x[:num_rows])
        rows = FlatRows(*(np.array(ints, dtype=np.int32) for ints in (range(300), [0] * 300, (0, 19), range(19))))
        keys, values = rng.normal(size=(2, 300, 1, HEAD_DIM)).astype(np.float32)
        queries = rng.normal(size=(300, 2, HEAD_DIM)).astype(np.float32)
        for dtype in (np.float16, np.float32):
            cache = empty_cache(19, 1, HEAD_DIM, dtype)
            cache_write(library, pool, cache, rows, keys, values)
            yield f"attention in {dtype.__name__}", attention(library, pool, cache, rows, queries, window=100)


def random_source(rng: np.random.Generator, kind: Format, num_weights: int, scale: float = 0.01) -> Bytes:
    """A matrix as GGUF holds it: any bits, with the blocks' scales and minima about `scale`."""
    if kind in (Format.F32, Format.F16):
        return rng.normal(size=num_weights).astype(np.float32 if kind is Format.F32 else np.float16).view(np.uint8)
    block = BLOCK_FORMATS[kind]
    blocks = rng.integers(0, 256, (num_weights // block.num_weights, block.num_bytes), dtype=np.uint8)
    for at in block.float16_at:
        scales = (scale * rng.normal(size=(len(blocks), 1))).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(-1)
