"""Makes a native runner from a model: packs or loads its weights, sizes the cache, wires library and memory up."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mtplx.errors import ModelError
from mtplx.model.cache import BLOCK_SIZE, CacheLayout, choose_num_blocks
from mtplx.model.folder import read_spec
from mtplx.model.head_file import HeadFile
from mtplx.model.machine import available_memory_bytes, physical_cores
from mtplx.model.native.formats import Format, Quantization, resolve_quantization
from mtplx.model.native.head import NativeHead
from mtplx.model.native.head_weights import head_shape, pack_head
from mtplx.model.native.library import NativeLibrary, NativeUnavailableError, load_library
from mtplx.model.native.model import CacheShape, NativeModel, open_shared
from mtplx.model.native.pack import packed_weights
from mtplx.model.native.packed import PackedWeights
from mtplx.model.native.runner import NativeRunner
from mtplx.model.native.shape import NativeShape, read_shape
from mtplx.model.progress import say_on_stderr
from mtplx.model.spec import RunnerInfo
from mtplx.model.store import Say, cache_root
from mtplx.model.weights import ModelFolder

CACHE_BYTES = {"float16": 2, "float32": 4}  # of one element
HIDDEN_BYTES = 4  # of one element of a hidden state
_FEW_BITS = (Format.Q4_0, Format.Q4_1, Format.Q5_0, Format.Q5_1, Format.Q4_K, Format.Q5_K)


def load_native_runner(
    model: ModelFolder,
    *,
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    threads: int | None = None,
    kv_cache_tokens: int | None = None,
    max_model_len: int,
    max_running: int = 16,
    head: HeadFile | None = None,
    head_quantization: Quantization | None = None,
    root: Path | None = None,
    build: str | None = None,
    say: Say = say_on_stderr,
) -> NativeRunner:
    """Returns a runner for the model, drafting where a head is given that `check_head` has passed.

    `max_running` only sizes the cache where `kv_cache_tokens` is None. `head_quantization` is a draft head's own, by
    default as many bits as the model's layers have: what it guesses is checked, so what counts is how soon it guesses.
    `root` is the cache folder that packed weights are kept in, by default the user's. `build` names the kernels' build,
    by default the best that this machine runs.

    Raises:
        ConfigError: a cache that this machine has no memory for, or a quantisation that would round a second time.
        ModelError: the model is damaged, or it or the head can't be served natively; one sentence says why.
    """
    try:
        library = load_library(build)
    except NativeUnavailableError as error:
        raise ModelError(f"the native runner isn't available: {error}") from error
    spec, shape = read_spec(model.path), read_shape(model.path)
    resolved = resolve_quantization(quantization, from_gguf=model.gguf_path is not None)
    weights, digest = packed_weights(model, shape, resolved, library, root or cache_root(), say)
    weights = weights.in_large_pages(available_memory_bytes())
    cache_dtype = _cache_dtype(kv_cache_dtype, resolved)
    num_blocks = choose_num_blocks(
        _layout(shape, cache_dtype, head),
        kv_cache_tokens=kv_cache_tokens,
        max_model_len=max_model_len,
        max_running=max_running,
        free_bytes=available_memory_bytes(),
    )
    info = _info(library, weights, cache_dtype, digest, head)
    with ExitStack() as undo:
        shared = open_shared(
            library,
            shape,
            num_blocks=num_blocks,
            num_positions=min(max_model_len, num_blocks * BLOCK_SIZE),
            threads=threads or physical_cores(),
            keeps_hidden=head is not None,
        )
        undo.callback(shared.close)
        native = NativeModel(shape, weights, CacheShape(_layout(shape, cache_dtype), num_blocks, cache_dtype), shared)
        undo.callback(native.close)
        native_head = None
        if head is not None:
            own_shape = head_shape(head, shape)
            own_weights = pack_head(head, own_shape, head_quantization or _head_bits(weights), weights, library)
            own_cache = CacheShape(_layout(own_shape, cache_dtype), num_blocks, cache_dtype)
            native_head = NativeHead(NativeModel(own_shape, own_weights, own_cache, shared, trunk=weights), head)
        undo.pop_all()
    return NativeRunner(native, native_head, shared, spec, info)


def _head_bits(trunk: PackedWeights) -> Quantization:
    """How a head of this model is kept: in 4 bits where the model's layers are near them, else in 8."""
    return "int4" if trunk.index.tensors["0.gate"].format in _FEW_BITS else "int8"


def _layout(shape: NativeShape, cache_dtype: str, head: HeadFile | None = None) -> CacheLayout:
    """The model's entries in the cache; with a head also its own, and the hidden states that it reads."""
    layout = CacheLayout(shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.head_dim, CACHE_BYTES[cache_dtype])
    if head is None:
        return layout
    own = replace(layout, num_layers=head.metadata.num_blocks)
    return replace(layout, other_bytes=own.bytes_per_token + HIDDEN_BYTES * shape.hidden)


def _info(
    library: NativeLibrary, weights: PackedWeights, cache_dtype: str, digest: str, head: HeadFile | None
) -> RunnerInfo:
    return RunnerInfo(
        runner="native",
        device="cpu",
        dtype="float32",
        exact=True,
        exact_note="every kernel adds in an order that no other row can change",
        build=library.build,
        quantization=weights.index.formats(),
        kv_cache_dtype=cache_dtype,
        weights_sha256=digest,
        head=head.info if head else None,
    )


def _cache_dtype(setting: str, quantization: Quantization) -> str:
    """`auto` is float32 where nothing else is rounded."""
    if setting == "auto":
        return "float32" if quantization == "none" else "float16"
    return setting
