"""Makes a native runner from a model: packs or maps its weights, sizes the cache, wires library and memory together."""

from __future__ import annotations

from pathlib import Path

from mtplx.errors import ModelError
from mtplx.model.cache import BLOCK_SIZE, CacheLayout, choose_num_blocks
from mtplx.model.folder import read_spec
from mtplx.model.machine import available_memory_bytes, physical_cores
from mtplx.model.native.formats import Quantization, resolve_quantization
from mtplx.model.native.library import NativeUnavailableError, load_library
from mtplx.model.native.model import CacheShape, NativeModel
from mtplx.model.native.pack import packed_weights
from mtplx.model.native.runner import NativeRunner
from mtplx.model.native.shape import read_shape
from mtplx.model.progress import say_on_stderr
from mtplx.model.spec import RunnerInfo
from mtplx.model.store import Say, cache_root
from mtplx.model.weights import ModelFolder

CACHE_BYTES = {"float16": 2, "float32": 4}  # of one element


def load_native_runner(
    model: ModelFolder,
    *,
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    threads: int | None = None,
    kv_cache_tokens: int | None = None,
    max_model_len: int,
    max_running: int = 16,
    root: Path | None = None,
    say: Say = say_on_stderr,
) -> NativeRunner:
    """Returns a runner for the model. `max_running` only sizes the cache where `kv_cache_tokens` is None.

    `root` is the cache folder that packed weights are kept in, by default the user's.

    Raises:
        ConfigError: a cache that this machine has no memory for, or a quantisation that would round a second time.
        ModelError: the model is damaged, or can't be served natively; one sentence says why.
    """
    try:
        library = load_library()
    except NativeUnavailableError as error:
        raise ModelError(f"the native runner isn't available: {error}") from error
    spec, shape = read_spec(model.path), read_shape(model.path)
    resolved = resolve_quantization(quantization, from_gguf=model.gguf_path is not None)
    weights, digest = packed_weights(model, shape, resolved, library, root or cache_root(), say)
    cache_dtype = _cache_dtype(kv_cache_dtype, resolved)
    layout = CacheLayout(spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.head_dim, CACHE_BYTES[cache_dtype])
    num_blocks = choose_num_blocks(
        layout,
        kv_cache_tokens=kv_cache_tokens,
        max_model_len=max_model_len,
        max_running=max_running,
        free_bytes=available_memory_bytes(),
    )
    native = NativeModel(
        library,
        shape,
        weights,
        CacheShape(layout, num_blocks, cache_dtype),
        num_positions=min(max_model_len, num_blocks * BLOCK_SIZE),
        threads=threads or physical_cores(),
    )
    info = RunnerInfo(
        runner="native",
        device="cpu",
        dtype="float32",
        exact=True,
        exact_note="every kernel adds in an order that no other row can change",
        build=library.build,
        quantization=weights.index.formats(),
        kv_cache_dtype=cache_dtype,
        weights_sha256=digest,
    )
    return NativeRunner(native, spec, info, num_blocks)


def _cache_dtype(setting: str, quantization: Quantization) -> str:
    """`auto` is float32 where nothing else is rounded."""
    if setting == "auto":
        return "float32" if quantization == "none" else "float16"
    return setting
