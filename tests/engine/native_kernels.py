"""What the kernel tests share: the builds that run here, random GGUF blocks, and numpy references in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.native.binding import Bytes, Floats, NativeLibrary, NativeUnavailableError
from mtplx.model.native.builds import builds_here
from mtplx.model.native.formats import BLOCK_FORMATS, Format, to_floats
from mtplx.model.native.library import load_library
from mtplx.model.native.operations import FlatRows
from mtplx.model.native.self_test import random_source

Doubles = npt.NDArray[np.float64]

FORMATS = tuple(Format)


def libraries_here() -> Iterator[NativeLibrary]:
    """Every build that was made and runs on this machine."""
    for build in builds_here():
        try:
            yield load_library(build.name)
        except NativeUnavailableError:
            continue


def whole_blocks(kind: Format, num_cols: int) -> int:
    """`num_cols`, or so many more that a row is a whole number of blocks."""
    block = BLOCK_FORMATS.get(kind)
    return num_cols if block is None else -(-num_cols // block.num_weights) * block.num_weights


def random_matrix(rng: np.random.Generator, kind: Format, num_rows: int, num_cols: int) -> tuple[Bytes, Doubles]:
    """Returns a matrix as GGUF holds it, and the values it stands for by the GGUF package's own reading."""
    source = random_source(rng, kind, num_rows * num_cols)
    return source, to_floats(source, kind.name, num_cols).astype(np.float64)


def round_activations(x: Floats) -> Doubles:
    """The values that int8 codes by groups of 32 stand for: scale = largest / 127, codes nearest, halves to even."""
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(groups * inverse)
    return (codes.astype(np.float64) * (largest / np.float32(127))).reshape(x.shape)


def expected_linear(x: Floats, kind: Format, weights: Doubles) -> Doubles:
    return (x.astype(np.float64) if kind in (Format.F32, Format.F16) else round_activations(x)) @ weights.T


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
