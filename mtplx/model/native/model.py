"""A decoder in the library, the model itself or its draft head: its structs, their memory, and one call a step."""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass

import numpy as np

from mtplx.model.cache import BLOCK_SIZE, CacheLayout
from mtplx.model.native.formats import Bytes, Floats
from mtplx.model.native.library import Config, Layer, NativeLibrary, Pool, Rows, Step
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


@dataclass(slots=True)  # one a step, as `Row`
class Computed:
    """What a step has computed. The arrays are the caller's: no later step touches them.

    `logits` [W, vocabulary] of the wanted tokens; `argmax` [W] where each has its largest, the first on ties, -1 with
    a NaN or no finite one; `hidden` [N, size] of all tokens after the final norm, None if nobody asked.
    """

    logits: Floats
    argmax: array[int]
    hidden: Floats | None


@dataclass(frozen=True, slots=True)
class Shared:
    """What a model and its draft head have in common; `hidden_states` only where there is a head.

    `hidden_states` is float32 [num_blocks * 16, hidden], after the final norm, by cache slot.
    """

    library: NativeLibrary
    pool: Pool
    rope_cos: Floats
    rope_sin: Floats
    hidden_states: Bytes | None

    def close(self) -> None:
        """Ends the threads; the models must be closed by then."""
        self.pool.close()


def open_shared(
    library: NativeLibrary,
    shape: NativeShape,
    *,
    num_blocks: int,
    num_positions: int,
    threads: int,
    keeps_hidden: bool,
) -> Shared:
    """Raises: MtplxError: threads can't be had."""
    cos, sin = rope_tables(shape.rope, shape.head_dim, num_positions)
    hidden_states = zeroed_bytes(num_blocks * BLOCK_SIZE * shape.hidden * 4) if keeps_hidden else None
    return Shared(library, library.open_pool(threads), cos, sin, hidden_states)


class NativeModel:
    """One decoder with its cache, for one thread at a time.

    Weights with `eh_proj` make it the draft head of the model that `trunk` are the weights of: embedding, and output
    head where it has none of its own, are then the trunk's.

    Invariant: whatever the library points at (weights, tables, cache) is held here until it has let go of the model.
    """

    def __init__(
        self,
        shape: NativeShape,
        weights: PackedWeights,
        cache: CacheShape,
        shared: Shared,
        trunk: PackedWeights | None = None,
    ) -> None:
        self.num_blocks = cache.num_blocks
        self._shared = shared
        self._weights, self._trunk = weights, trunk or weights
        num_bytes = cache.num_blocks * cache.layout.bytes_per_block // 2
        self._cache: tuple[Bytes, Bytes] = zeroed_bytes(num_bytes), zeroed_bytes(num_bytes)
        config = self._config(shape, cache)
        self._vocab, self._hidden = config.vocab, config.hidden
        handle = ctypes.c_void_p()
        library = shared.library
        library.check(library.functions.mtplx_model_create(config, shared.pool.address, handle))
        self._model: int | None = handle.value

    def step(self, arrays: StepArrays, *, with_hidden: bool = False, inputs: Floats | None = None) -> Computed:
        """Computes a step. `inputs` [N, hidden] stand in for the trunk's hidden states in a draft head.

        Raises:
            NativeCallError: the step names a token, position or block that isn't there; nothing was written.
        """
        assert self._model is not None, "the model is closed"
        assert inputs is None or inputs.flags.c_contiguous
        logits_WV = np.empty((len(arrays.wanted), self._vocab), dtype=np.float32)
        argmax_W = array("i", arrays.wanted)
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
            inputs=None if inputs is None else inputs.ctypes.data,
            wanted=_address(arrays.wanted),
            logits=logits_WV.ctypes.data if len(logits_WV) else None,
            argmax=_address(argmax_W),
            hidden=None if hidden_ND is None else hidden_ND.ctypes.data,
        )
        self._shared.library.check(self._shared.library.functions.mtplx_model_step(self._model, step))
        return Computed(logits_WV, argmax_W, hidden_ND)

    def close(self) -> None:
        """Lets go of weights and cache; `step` may not be called again."""
        if self._model is not None:
            self._shared.library.functions.mtplx_model_destroy(self._model)
            self._model = None
            del self._weights, self._trunk, self._cache

    def _config(self, shape: NativeShape, cache: CacheShape) -> Config:
        shared, weights, trunk = self._shared, self._weights, self._trunk
        embedding = trunk.matrix("embedding")
        own_head = next((source.matrix("head") for source in (weights, trunk) if "head" in source), embedding)
        config = Config(
            num_layers=shape.num_layers,
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            vocab=own_head.num_rows,
            window=shape.window or 0,
            cache_dtype=CACHE_DTYPES[cache.dtype],
            num_cache_blocks=cache.num_blocks,
            num_positions=len(shared.rope_cos),
            norm_eps=shape.norm_eps,
            layers=(Layer * shape.num_layers)(*(self._layer(index) for index in range(shape.num_layers))),
            embedding=embedding,
            head=own_head,
            final_norm=weights.address("final_norm"),
            rope_cos=shared.rope_cos.ctypes.data,
            rope_sin=shared.rope_sin.ctypes.data,
            keys=self._cache[0].ctypes.data,
            values=self._cache[1].ctypes.data,
            hidden_states=None if shared.hidden_states is None else shared.hidden_states.ctypes.data,
        )
        if "eh_proj" in weights:
            config.eh_proj = weights.matrix("eh_proj")
            config.enorm, config.hnorm = weights.address("enorm"), weights.address("hnorm")
        return config

    def _layer(self, index: int) -> Layer:
        matrices = {part: self._weights.matrix(f"{index}.{part}") for part in LAYER_MATRICES}
        names = {part: f"{index}.{part}" for part in LAYER_VECTORS}
        vectors = {part: self._weights.address(name) for part, name in names.items() if name in self._weights}
        return Layer(**matrices, **vectors)


def _address(ints: array[int]) -> int:
    return ints.buffer_info()[0]
