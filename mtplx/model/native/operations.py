"""The library's single operations on numpy arrays: what tests, benchmarks and the self-test call."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.native.abi import Cache, Rows, Weight
from mtplx.model.native.binding import (
    Bytes,
    Floats,
    Ints,
    NativeLibrary,
    Pool,
    address,
)

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A packed matrix [num_rows, num_cols] and its memory."""

    format: int
    num_rows: int
    num_cols: int
    data: Bytes

    def weight(self) -> Weight:
        return Weight(self.format, self.num_rows, self.num_cols, 0, address(self.data))


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys [blocks, heads, head_dim, 16] and values [blocks, heads, 16, head_dim], float16 or float32."""

    keys: npt.NDArray[np.generic]
    values: npt.NDArray[np.generic]

    def struct(self) -> Cache:
        num_blocks, num_heads, head_dim, _ = self.keys.shape
        dtype = 1 if self.keys.dtype == np.float16 else 0
        return Cache(dtype, num_blocks, num_heads, head_dim, address(self.keys), address(self.values))


@dataclass(frozen=True, slots=True)
class FlatRows:
    """Positions and sequences of N rows, and each sequence's blocks one after another."""

    positions: Ints
    sequence_of: Ints
    block_begin: Ints
    block_ids: Ints

    def struct(self) -> Rows:
        arrays = (self.positions, self.sequence_of, self.block_begin, self.block_ids)
        return Rows(len(self.positions), len(self.block_begin) - 1, *map(address, arrays))


def pack_matrix(
    library: NativeLibrary, format_number: int, shape: tuple[int, int], source: Bytes, row_order: Ints | None = None
) -> PackedMatrix:
    """Packs GGUF blocks, row after row."""
    size = library.packed_bytes(format_number, *shape)
    memory = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    packed = memory[begin : begin + size]
    library.pack(format_number, *shape, row_order, source, packed)
    return PackedMatrix(format_number, *shape, packed)


def unpack_rows(library: NativeLibrary, matrix: PackedMatrix, row_ids: Sequence[int]) -> Floats:
    """Returns the float32 values [len(row_ids), num_cols]."""
    return library.unpack_rows(matrix.weight(), np.array(row_ids, dtype=np.int32))


def linear(library: NativeLibrary, pool: Pool, matrix: PackedMatrix, x: Floats, bias: Floats | None = None) -> Floats:
    """Returns x [M, num_cols] W^T + bias, [M, num_rows]."""
    rows = np.ascontiguousarray(x)
    out = np.empty((len(rows), matrix.num_rows), dtype=np.float32)
    library.check(
        library.functions.mtplx_linear(
            pool.address, byref(matrix.weight()), address(bias), address(rows), len(rows), address(out)
        )
    )
    return out


def rms_norm(library: NativeLibrary, pool: Pool, weight: Floats, eps: float, x: Floats) -> Floats:
    """Returns x [M, size], each row over its root mean square, times weight [size]."""
    rows, out = np.ascontiguousarray(x), np.empty_like(x)
    library.check(
        library.functions.mtplx_rms_norm(pool.address, address(weight), eps, address(rows), *x.shape, address(out))
    )
    return out


def empty_cache(
    num_blocks: int, num_heads: int, head_dim: int, dtype: type[np.float16] | type[np.float32]
) -> LayerCache:
    keys = np.zeros((num_blocks, num_heads, head_dim, BLOCK_SIZE), dtype=dtype)
    return LayerCache(keys, np.zeros((num_blocks, num_heads, BLOCK_SIZE, head_dim), dtype=dtype))


def cache_write(
    library: NativeLibrary, pool: Pool, cache: LayerCache, rows: FlatRows, keys: Floats, values: Floats
) -> None:
    """Puts keys and values [N, heads, head_dim] at the rows' positions."""
    keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
    library.check(
        library.functions.mtplx_cache_write(
            pool.address, byref(cache.struct()), byref(rows.struct()), address(keys), address(values)
        )
    )


def attention(
    library: NativeLibrary,
    pool: Pool,
    cache: LayerCache,
    rows: FlatRows,
    queries: Floats,
    window: int = 0,
    scale: float = 0.0,
) -> Floats:
    """Returns what queries [N, num_heads, head_dim] attend to, of the same shape."""
    queries = np.ascontiguousarray(queries)
    out = np.empty_like(queries)
    library.check(
        library.functions.mtplx_attention(
            pool.address,
            byref(cache.struct()),
            byref(rows.struct()),
            queries.shape[1],
            window,
            scale,
            address(queries),
            address(out),
        )
    )
    return out


def read_sum(library: NativeLibrary, pool: Pool, data: Bytes) -> int:
    """Reads all of `data` once; its size is a multiple of 4096."""
    assert data.nbytes % 4096 == 0
    return int(library.functions.mtplx_read_sum(pool.address, address(data), data.nbytes))
