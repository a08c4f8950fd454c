"""Makes a runner from a model folder: reads weights, refuses what isn't whole, sizes the cache, checks exactness."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from mtplx.errors import ModelError
from mtplx.model.cache import CacheLayout, choose_num_blocks
from mtplx.model.checkpoint import read_header, weight_files
from mtplx.model.folder import read_config, read_spec
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.model.torch.attention import ATTENTION_NAME, register_attention
from mtplx.model.torch.device import free_bytes, resolve_device, resolve_dtype, resolve_threads
from mtplx.model.torch.exact import CHECK_BLOCKS, find_difference
from mtplx.model.torch.paged import PagedCache
from mtplx.model.torch.runner import TILE_ROWS, TorchRunner

# Buffers that old checkpoints carry and every model now computes for itself.
_HARMLESS_TENSOR = re.compile(r"rotary_emb\.inv_freq$")


def load_torch_runner(
    folder: Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    exact: bool = True,
    threads: int | None = None,
    kv_cache_tokens: int | None = None,
    max_model_len: int,
    max_running: int = 16,
) -> TorchRunner:
    """Returns a runner for the model in `folder`, a local folder in Hugging Face layout; code in it is never run.

    `exact` counts on cpu alone. `max_running` only sizes the cache where `kv_cache_tokens` is None. Sets PyTorch's
    number of threads for the whole process.

    Raises:
        ConfigError: a device, number format or cache size that this machine hasn't got.
        ModelError: the folder is incomplete or damaged, or its model isn't supported.
    """
    spec = read_spec(folder)
    for path in weight_files(folder):
        read_header(path)  # a damaged file is named before any memory is taken
    target = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, target, _checkpoint_dtype(folder))
    tiled = exact and target.type == "cpu"
    if target.type == "cpu":
        torch.set_num_threads(resolve_threads(threads, exact=tiled))
    model = load_model(folder, spec, torch_dtype).to(target)
    layout = CacheLayout(spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.head_dim, torch_dtype.itemsize)
    num_blocks = choose_num_blocks(
        layout,
        kv_cache_tokens=kv_cache_tokens,
        max_model_len=max_model_len,
        max_running=max_running,
        free_bytes=free_bytes(target),
    )
    cache = PagedCache(layout, num_blocks, torch_dtype, target)
    info = _info(target, torch_dtype, exact=False, note=_why_not_exact(exact, target))
    if tiled:
        check_cache = PagedCache(layout, CHECK_BLOCKS, torch_dtype, target)
        info = _checked(TorchRunner(model, spec, info, check_cache, tiled=True))
    return TorchRunner(model, spec, info, cache, tiled=tiled)


def load_model(folder: Path, spec: ModelSpec, dtype: torch.dtype) -> Any:
    """Returns transformers' model with every weight read from the folder's safetensors, on the CPU, ready to infer.

    Raises:
        ModelError: a weight is missing, has another shape, or has no place in the model; or the folder can't be read.
    """
    register_attention()
    model_class = getattr(transformers, spec.architecture)
    try:
        with _quiet_transformers():
            config = model_class.config_class.from_pretrained(folder, local_files_only=True)
            _check_agreement(spec, config)
            model, found = model_class.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # so that they are reported, and refused below
                output_loading_info=True,
            )
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder} can't be loaded as {spec.architecture}: {_first_line(error)}") from error
    _refuse_incomplete(folder, spec, found)
    return model.eval().requires_grad_(False)


def _refuse_incomplete(folder: Path, spec: ModelSpec, found: dict[str, Any]) -> None:
    """Transformers only warns, and fills what is missing with random numbers."""
    strange = [name for name in found["unexpected_keys"] if not _HARMLESS_TENSOR.search(name)]
    for what, names in (
        ("lacks weights", found["missing_keys"]),
        ("has weights of another shape than config.json says", [name for name, *_ in found["mismatched_keys"]]),
        ("has weights that the model has no place for", strange),
    ):
        if names:
            raise ModelError(f"{folder} {what} ({spec.architecture}): {_some(names)}")


def _check_agreement(spec: ModelSpec, config: Any) -> None:
    """The cache is sized from the spec and filled by the model, so that both must read config.json alike."""
    for name, ours, theirs in (
        ("layers", spec.num_layers, config.num_hidden_layers),
        ("heads", spec.num_heads, config.num_attention_heads),
        ("key/value heads", spec.num_kv_heads, config.num_key_value_heads),
        ("values in a head", spec.head_dim, getattr(config, "head_dim", None) or spec.head_dim),
        ("tokens in the vocabulary", spec.vocab_size, config.vocab_size),
        ("tokens in the sliding window", spec.sliding_window, getattr(config, "sliding_window", None)),
    ):
        if ours != theirs:
            raise ValueError(f"config.json is read as {ours} {name}, transformers reads {theirs}")


def _checked(runner: TorchRunner) -> RunnerInfo:
    exact, note = _exactness(runner, torch.get_num_threads())
    return RunnerInfo(runner.info.runner, runner.info.device, runner.info.dtype, exact, note)


def _exactness(runner: TorchRunner, threads: int) -> tuple[bool, str]:
    """Threads that cut through a row are refused unseen: random tokens show that difference only most of the time."""
    ways = f"tiles of {TILE_ROWS} rows on {threads} thread{'s' if threads > 1 else ''}"
    if TILE_ROWS % threads:
        return False, f"{ways} are cut through a row; 1, 2, 4, 8 or 16 threads are not"
    difference = find_difference(runner)
    if difference is not None:
        return False, f"bits differ {difference} in {ways} on this machine"
    return True, f"{ways} gave the same bits alone, with neighbours and in a chunk when checked at start-up"


def _info(device: torch.device, dtype: torch.dtype, *, exact: bool, note: str) -> RunnerInfo:
    return RunnerInfo("torch", str(device), str(dtype).removeprefix("torch."), exact, note)


def _why_not_exact(exact: bool, device: torch.device) -> str:
    if device.type == "cpu":
        return "not checked" if exact else "switched off by --no-exact"
    return f"on {device.type} the libraries choose other kernels for other batch shapes"


def _checkpoint_dtype(folder: Path) -> str | None:
    config = read_config(folder)
    return config.get("dtype") or config.get("torch_dtype")


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings from transformers meanwhile; what they would say becomes a ModelError here."""
    logging = transformers.utils.logging
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
