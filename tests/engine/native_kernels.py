"""What the kernel tests share: the builds that run here, random GGUF blocks, and numpy references in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.native.binding import Bytes, Floats, NativeLibrary, NativeUnavailableError
from mtplx.model.native.builds import builds_here
from mtplx.model.native.library import load_library
from mtplx.model.native.operations import FlatRows

Doubles = npt.NDArray[np.float64]

F32, F16, Q4_0, Q4_1, Q8_0 = FORMATS = (0, 1, 2, 3, 8)


def libraries_here() -> Iterator[NativeLibrary]:
    """Every build that was made and runs on this machine."""
    for build in builds_here():
        try:
            yield load_library(build.name)
        except NativeUnavailableError:
            continue


def random_matrix(rng: np.random.Generator, kind: int, num_rows: int, num_cols: int) -> tuple[Bytes, Doubles]:
    """Returns a matrix as GGUF holds it, and the values it stands for."""
    if kind in (F32, F16):
        floats = (rng.normal(size=(num_rows, num_cols)) / 8).astype(np.float32 if kind == F32 else np.float16)
        return floats.reshape(-1).view(np.uint8), floats.astype(np.float64)
    shape = (num_rows, num_cols // 32)
    scales = (rng.normal(size=(*shape, 1)) / 64).astype(np.float16)
    if kind == Q8_0:
        codes = rng.integers(-128, 128, (*shape, 32)).astype(np.int8)
        return _join(scales, codes), (scales.astype(np.float64) * codes).reshape(num_rows, num_cols)
    codes = rng.integers(0, 16, (*shape, 32)).astype(np.uint8)
    nibbles = codes[..., :16] | codes[..., 16:] << 4
    if kind == Q4_0:
        return _join(scales, nibbles), (scales.astype(np.float64) * (codes.astype(int) - 8)).reshape(num_rows, num_cols)
    minima = rng.normal(size=(*shape, 1)).astype(np.float16)
    values = scales.astype(np.float64) * codes + minima
    return _join(scales, minima, nibbles), values.reshape(num_rows, num_cols)


def round_activations(x: Floats) -> Doubles:
    """The values that int8 codes by groups of 32 stand for: scale = largest / 127, codes nearest, halves to even."""
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(groups * inverse)
    return (codes.astype(np.float64) * (largest / np.float32(127))).reshape(x.shape)


def expected_linear(x: Floats, kind: int, weights: Doubles) -> Doubles:
    return (x.astype(np.float64) if kind in (F32, F16) else round_activations(x)) @ weights.T


def lay_out_rows(
    starts_and_lengths: Sequence[tuple[int, int]], rng: np.random.Generator, num_blocks: int | None = None
) -> FlatRows:
    """Rows of one sequence each: `length` tokens from position `start`, in random blocks that nobody else has."""
    needed = [-(-(start + length) // BLOCK_SIZE) for start, length in starts_and_lengths]
    ids = rng.permutation(num_blocks or sum(needed))[: sum(needed)]
    positions = np.concatenate([np.arange(start, start + length) for start, length in starts_and_lengths])
    sequence_of = np.repeat(np.arange(len(needed)), [length for _, length in starts_and_lengths])
    begin = np.concatenate([[0], np.cumsum(needed)])
    return FlatRows(*(array.astype(np.int32) for array in (positions, sequence_of, begin, ids)))


def expected_attention(queries: Floats, keys: Floats, values: Floats, window: int) -> Doubles:
    """Causal attention of one sequence; queries [N, H, D], keys and values [N, KV, D]."""
    group = queries.shape[1] // keys.shape[1]
    k, v = (np.repeat(part.astype(np.float64), group, axis=1) for part in (keys, values))
    scores = np.einsum("nhd,mhd->hnm", queries.astype(np.float64), k) / np.sqrt(queries.shape[2])
    distance = np.arange(len(queries))[:, None] - np.arange(len(keys))[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else False)
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)


def _join(*parts: npt.NDArray[np.generic]) -> Bytes:
    return np.concatenate([part.view(np.uint8) for part in parts], axis=2).reshape(-1)
