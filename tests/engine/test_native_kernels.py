"""The kernels against float64 numpy, and their promise: a row's bits depend on nothing but the row.

Every build that runs on this machine is tested; builds may differ from each other in bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.errors import MtplxError
from mtplx.model.native.binding import NativeCallError, NativeLibrary, Pool, open_build
from mtplx.model.native.builds import LIBRARIES, builds_here, find_compiler, source_hash
from mtplx.model.native.formats import BLOCK_FORMATS, Format, to_floats
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
from tests.engine.native_kernels import (
    FORMATS,
    expected_attention,
    expected_linear,
    lay_out_rows,
    libraries_here,
    random_matrix,
    whole_blocks,
)

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler, so no kernels")

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(params=list(libraries_here()), ids=lambda library: library.build, scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    found: NativeLibrary = request.param
    return found


@pytest.fixture(scope="module")
def pools(library: NativeLibrary) -> Iterator[tuple[Pool, Pool]]:
    """One thread and two."""
    with library.open_pool(1) as one, library.open_pool(2) as two:
        yield one, two


def test_builds_are_of_these_sources() -> None:
    stale = [
        build.name for build in builds_here() if open_build(LIBRARIES / build.file_name).source_hash != source_hash()
    ]
    assert stale == [], "run: python -m mtplx.model.native.builds"


@pytest.mark.parametrize("kind", FORMATS)
def test_unpacking_gives_back_the_exact_values(library: NativeLibrary, kind: Format) -> None:
    shape = (37, whole_blocks(kind, 96))
    source, values = random_matrix(np.random.default_rng(1), kind, *shape)
    matrix = pack_matrix(library, kind, shape, source)
    row_ids = [36, 0, 15, 16, 0]
    np.testing.assert_array_equal(unpack_rows(library, matrix, row_ids), values[row_ids].astype(np.float32))


def test_rows_can_be_reordered_while_packing(library: NativeLibrary) -> None:
    source, values = random_matrix(np.random.default_rng(2), Format.Q8_0, 20, 64)
    order = np.random.default_rng(3).permutation(20).astype(np.int32)
    matrix = pack_matrix(library, Format.Q8_0, (20, 64), source, order)
    np.testing.assert_array_equal(unpack_rows(library, matrix, range(20)), values[order].astype(np.float32))


def test_what_cannot_be_packed_is_refused(library: NativeLibrary) -> None:
    assert library.packed_bytes(Format.Q8_0, 16, 40) == 0  # no multiple of 32
    assert library.packed_bytes(Format.Q4_K, 16, 288) == 0  # of 32, but not of 256
    assert library.packed_bytes(10, 16, 256) == 0  # Q2_K
    assert library.packed_bytes(99, 16, 64) == 0
    source, _ = random_matrix(np.random.default_rng(4), Format.Q8_0, 4, 32)
    with pytest.raises(NativeCallError, match="shapes"):
        pack_matrix(library, Format.Q8_0, (4, 32), source, np.array([0, 1, 2, 4], dtype=np.int32))


@pytest.mark.parametrize("num_rows", [1, 2, 5, 8, 16, 33])
@pytest.mark.parametrize("kind", FORMATS)
def test_linear_agrees_with_float64(
    library: NativeLibrary, pools: tuple[Pool, Pool], kind: Format, num_rows: int
) -> None:
    rng = np.random.default_rng(kind * 100 + num_rows)
    shape = (75, whole_blocks(kind, 576))
    source, weights = random_matrix(rng, kind, *shape)
    x = rng.normal(size=(num_rows, shape[1])).astype(np.float32)
    bias = rng.normal(size=75).astype(np.float32)
    result = linear(library, pools[1], pack_matrix(library, kind, shape, source), x, bias)
    expected = expected_linear(x, kind, weights) + bias
    largest_terms = np.abs(x).astype(np.float64) @ np.abs(weights).T
    assert (np.abs(result - expected) <= 2e-6 * largest_terms).all()


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(1, 70), st.integers(1, 8), st.integers(1, 40), st.data())
def test_a_row_is_the_same_with_any_neighbours_and_threads(
    library: NativeLibrary, pools: tuple[Pool, Pool], kind: Format, seed: int, num_outputs: int, num_groups: int,
    num_rows: int, data: st.DataObject,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    shape = (num_outputs, whole_blocks(kind, 32 * num_groups))
    matrix = pack_matrix(library, kind, shape, random_matrix(rng, kind, *shape)[0])
    x = rng.normal(size=(num_rows, shape[1])).astype(np.float32)
    together = linear(library, pools[1], matrix, x)
    some = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=20))
    np.testing.assert_array_equal(linear(library, pools[0], matrix, x[some]), together[some])
    alone = linear(library, pools[1], matrix, x[some[:1]])
    np.testing.assert_array_equal(alone, together[some[:1]])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_broken_row_says_so_and_stays_alone(
    library: NativeLibrary, pools: tuple[Pool, Pool], kind: Format, poison: float
) -> None:
    rng = np.random.default_rng(5)
    shape = (32, whole_blocks(kind, 64))
    matrix = pack_matrix(library, kind, shape, random_matrix(rng, kind, *shape)[0])
    x = rng.normal(size=(3, shape[1])).astype(np.float32)
    whole = linear(library, pools[0], matrix, x)
    x[1, 40] = poison
    result = linear(library, pools[0], matrix, x)
    assert not np.isfinite(result[1]).any()
    np.testing.assert_array_equal(result[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize("kind", FORMATS)
def test_zeros_stay_zeros(library: NativeLibrary, pools: tuple[Pool, Pool], kind: Format) -> None:
    matrix = pack_matrix(library, kind, (16, 256), random_matrix(np.random.default_rng(6), kind, 16, 256)[0])
    np.testing.assert_array_equal(linear(library, pools[0], matrix, np.zeros((2, 256), np.float32)), 0)


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
def test_extreme_codes_do_not_overflow(
    library: NativeLibrary, pools: tuple[Pool, Pool], kind: Format, fill: int
) -> None:
    """The largest products that a group can hold, of either sign."""
    block = BLOCK_FORMATS[kind]
    blocks = np.full((16 * 256 // block.num_weights, block.num_bytes), fill, dtype=np.uint8)
    for at, value in zip(block.float16_at, (1.0, 0.0), strict=False):
        blocks[:, at : at + 2] = np.array([value], dtype=np.float16).view(np.uint8)
    x = np.ones((2, 256), dtype=np.float32) * np.array([[1], [-1]], dtype=np.float32)
    result = linear(library, pools[0], pack_matrix(library, kind, (16, 256), blocks.reshape(-1)), x)
    expected = x @ to_floats(blocks.reshape(-1), kind.name, 256).T
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-3)


def test_rms_norm_agrees_with_float64(library: NativeLibrary, pools: tuple[Pool, Pool]) -> None:
    rng = np.random.default_rng(7)
    x, weight = rng.normal(size=(5, 576)).astype(np.float32), rng.normal(size=576).astype(np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(rms_norm(library, pools[1], weight, 1e-5, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("head_dim", "num_heads", "num_kv_heads", "window"),
    [(64, 9, 3, 0), (64, 14, 2, 100), (80, 4, 4, 0), (96, 5, 1, 270), (128, 4, 2, 0), (256, 2, 1, 17)],
)
def test_attention_agrees_with_float64(
    library: NativeLibrary, pools: tuple[Pool, Pool], dtype: type[np.float16] | type[np.float32], head_dim: int,
    num_heads: int, num_kv_heads: int, window: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(8)
    num_tokens = 300  # more than one segment
    rows = lay_out_rows([(0, num_tokens)], rng)
    keys, values = rng.normal(size=(2, num_tokens, num_kv_heads, head_dim)).astype(dtype).astype(np.float32)
    queries = rng.normal(size=(num_tokens, num_heads, head_dim)).astype(np.float32)
    cache = empty_cache(19, num_kv_heads, head_dim, dtype)
    cache_write(library, pools[1], cache, rows, keys, values)
    result = attention(library, pools[1], cache, rows, queries, window)
    np.testing.assert_allclose(result, expected_attention(queries, keys, values, window), atol=2e-5)


def test_half_precision_rounds_to_nearest_even(library: NativeLibrary, pools: tuple[Pool, Pool]) -> None:
    """Subnormals, halfway cases, the largest number and what overflows, as numpy rounds them."""
    bits = np.arange(0, 2**32, 262_147, dtype=np.uint64).astype(np.uint32)
    edges = np.array([65519.9, 65520.0, 2**-25, 2**-24, 1.5 * 2**-24, 1 + 2**-11, 1 + 3 * 2**-11], dtype=np.float32)
    floats = np.concatenate([edges, -edges, bits.view(np.float32)])
    floats = np.resize(floats[~np.isnan(floats)], (1024, 1, 16))
    rows = lay_out_rows([(0, 1024)], np.random.default_rng(9))
    cache = empty_cache(64, 1, 16, np.float16)
    cache_write(library, pools[0], cache, rows, floats, floats)
    with np.errstate(over="ignore"):
        expected = floats.reshape(64, 16, 16).astype(np.float16)
    np.testing.assert_array_equal(cache.values[rows.block_ids, 0], expected)
    np.testing.assert_array_equal(cache.keys[rows.block_ids, 0], expected.transpose(0, 2, 1))


@settings(max_examples=25, deadline=None)
@given(seeds, st.lists(st.integers(1, 600), min_size=1, max_size=3), st.sampled_from([0, 7, 100, 300]), st.data())
def test_attention_is_the_same_in_any_chunks_blocks_and_company(
    library: NativeLibrary, pools: tuple[Pool, Pool], seed: int, lengths: list[int], window: int, data: st.DataObject
) -> None:
    """Each sequence whole beside the others, against the same tokens in chunks, alone, in other blocks."""
    rng = np.random.default_rng(seed)
    rows = lay_out_rows([(0, length) for length in lengths], rng)
    total = sum(lengths)
    keys, values = rng.normal(size=(2, total, 2, 32)).astype(np.float32)
    queries = rng.normal(size=(total, 6, 32)).astype(np.float32)
    cache = empty_cache(len(rows.block_ids), 2, 32, np.float16)
    cache_write(library, pools[1], cache, rows, keys, values)
    together = attention(library, pools[1], cache, rows, queries, window)

    chosen = data.draw(st.integers(0, len(lengths) - 1))
    first, length = sum(lengths[:chosen]), lengths[chosen]
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=4))})
    other_cache = empty_cache(50, 2, 32, np.float16)
    other_cache.keys[:], other_cache.values[:] = np.nan, np.nan  # what isn't a row's own may hold anything
    table = rng.permutation(50)[: -(-length // 16)].astype(np.int32)
    for begin, end in pairwise(cuts):
        chunk = slice(first + begin, first + end)
        positions = np.arange(begin, end, dtype=np.int32)
        chunk_rows = FlatRows(positions, np.zeros_like(positions), np.array([0, len(table)], np.int32), table)
        cache_write(library, pools[0], other_cache, chunk_rows, keys[chunk], values[chunk])
        result = attention(library, pools[0], other_cache, chunk_rows, queries[chunk], window)
        np.testing.assert_array_equal(result, together[chunk])


def test_indices_out_of_range_are_refused(library: NativeLibrary, pools: tuple[Pool, Pool]) -> None:
    cache = empty_cache(2, 1, 16, np.float32)
    queries = np.zeros((1, 1, 16), dtype=np.float32)
    good = FlatRows(*(np.array(ints, dtype=np.int32) for ints in ([17], [0], [0, 2], [1, 0])))
    assert attention(library, pools[0], cache, good, queries).shape == (1, 1, 16)
    for positions, sequences, begin, ids in (
        ([32], [0], [0, 2], [1, 0]),  # beyond the table
        ([-1], [0], [0, 2], [1, 0]),
        ([17], [1], [0, 2], [1, 0]),
        ([17], [0], [0, 2], [1, 2]),  # no such block
    ):
        rows = FlatRows(*(np.array(ints, dtype=np.int32) for ints in (positions, sequences, begin, ids)))
        with pytest.raises(NativeCallError):
            attention(library, pools[0], cache, rows, queries)


def test_a_pool_needs_a_thread(library: NativeLibrary) -> None:
    with pytest.raises(MtplxError, match="threads"):
        library.open_pool(0)


def test_float_weights_round_no_activations(library: NativeLibrary, pools: tuple[Pool, Pool]) -> None:
    matrix = pack_matrix(library, Format.F32, (16, 32), np.eye(16, 32, dtype=np.float32).reshape(-1).view(np.uint8))
    x = np.random.default_rng(10).normal(size=(3, 32)).astype(np.float32)
    np.testing.assert_array_equal(linear(library, pools[0], matrix, x), x[:, :16])
