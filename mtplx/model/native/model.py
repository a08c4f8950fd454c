"""A decoder in the library: its structs, the memory that they point into, and one call a step."""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass

import numpy as np

from mtplx.model.cache import CacheLayout
from mtplx.model.native.formats import Bytes, Floats
from mtplx.model.native.library import Config, Layer, NativeCallError, NativeLibrary, Rows, Step, Weight
from mtplx.model.native.memory import zeroed_bytes
from mtplx.model.native.packed import PackedWeights
from mtplx.model.native.rope import rope_tables
from mtplx.model.native.shape import NativeShape
from mtplx.model.native.slots import LAYER_MATRICES, LAYER_VECTORS
from mtplx.model.native.step import StepArrays

CACHE_DTYPES = {"float32": 0, "float16": 1}  # the library's numbers


@dataclass(frozen=True, slots=True)
class CacheShape:
    """`num_blocks` blocks for every layer, with numbers of type `dtype`, float16 or float32."""

    layout: CacheLayout
    num_blocks: int
    dtype: str


class NativeModel:
    """One decoder with its cache, for one thread at a time.

    Invariant: whatever the library points at (weights, tables, cache) is held here until it has let go of the model.
    """

    def __init__(
        self,
        library: NativeLibrary,
        shape: NativeShape,
        weights: PackedWeights,
        cache: CacheShape,
        *,
        num_positions: int,
        threads: int,
    ) -> None:
        self._library = library
        self._vocab, self._hidden = shape.vocab, shape.hidden
        self._weights = weights
        self._tables = rope_tables(shape.rope, shape.head_dim, num_positions)
        num_bytes = cache.num_blocks * cache.layout.bytes_per_block // 2
        self._cache: tuple[Bytes, Bytes] = zeroed_bytes(num_bytes), zeroed_bytes(num_bytes)
        config = self._config(shape, cache, num_positions)
        self._pool = library.open_pool(threads)
        handle = ctypes.c_void_p()
        try:
            library.check(library.functions.mtplx_model_create(config, self._pool.address, handle))
        except NativeCallError:
            self._pool.close()
            raise
        self._model: int | None = handle.value

    def step(self, arrays: StepArrays, *, with_hidden: bool = False) -> tuple[Floats, Floats | None]:
        """Computes a step; returns logits_WV of the wanted tokens and, if asked for, hidden_ND of all tokens.

        Hidden states are those after the final norm. Both arrays are the caller's: no later step touches them.

        Raises:
            NativeCallError: the step names a token, position or block that isn't there; nothing was written.
        """
        assert self._model is not None, "the model is closed"
        logits_WV = np.empty((len(arrays.wanted), self._vocab), dtype=np.float32)
        hidden_ND = np.empty((len(arrays.token_ids), self._hidden), dtype=np.float32) if with_hidden else None
        step = Step(
            rows=Rows(
                num_tokens=len(arrays.token_ids),
                num_sequences=len(arrays.block_begin) - 1,
                positions=_address(arrays.positions),
                sequence_of=_address(arrays.sequence_of),
                block_begin=_address(arrays.block_begin),
                block_ids=_address(arrays.block_ids),
            ),
            num_wanted=len(arrays.wanted),
            token_ids=_address(arrays.token_ids),
            wanted=_address(arrays.wanted),
            logits=logits_WV.ctypes.data if len(logits_WV) else None,
            hidden=None if hidden_ND is None else hidden_ND.ctypes.data,
        )
        self._library.check(self._library.functions.mtplx_model_step(self._model, step))
        return logits_WV, hidden_ND

    def close(self) -> None:
        """Ends the threads and lets go of weights and cache; `step` may not be called again."""
        if self._model is not None:
            self._library.functions.mtplx_model_destroy(self._model)
            self._pool.close()
            self._model = None
            del self._weights, self._tables, self._cache

    def _config(self, shape: NativeShape, cache: CacheShape, num_positions: int) -> Config:
        embedding = self._weight("embedding")
        layers = (Layer * shape.num_layers)(*(self._layer(index) for index in range(shape.num_layers)))
        return Config(
            num_layers=shape.num_layers,
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            vocab=shape.vocab,
            window=shape.window or 0,
            cache_dtype=CACHE_DTYPES[cache.dtype],
            num_cache_blocks=cache.num_blocks,
            num_positions=num_positions,
            norm_eps=shape.norm_eps,
            layers=layers,
            embedding=embedding,
            head=embedding if shape.is_tied else self._weight("head"),
            final_norm=self._weights.address("final_norm"),
            rope_cos=self._tables[0].ctypes.data,
            rope_sin=self._tables[1].ctypes.data,
            keys=self._cache[0].ctypes.data,
            values=self._cache[1].ctypes.data,
        )

    def _layer(self, index: int) -> Layer:
        matrices = {part: self._weight(f"{index}.{part}") for part in LAYER_MATRICES}
        names = {part: f"{index}.{part}" for part in LAYER_VECTORS}
        vectors = {part: self._weights.address(name) for part, name in names.items() if name in self._weights}
        return Layer(**matrices, **vectors)

    def _weight(self, name: str) -> Weight:
        tensor = self._weights.index.tensors[name]
        rows, cols = tensor.shape
        return Weight(format=tensor.format, num_rows=rows, num_cols=cols, data=self._weights.address(name))


def _address(ints: array[int]) -> int:
    return ints.buffer_info()[0]
