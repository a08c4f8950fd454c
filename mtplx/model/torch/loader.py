"""Makes a runner from a model folder: reads weights and a head, sizes the cache, checks exactness."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from mtplx.model.cache import CacheLayout, choose_num_blocks
from mtplx.model.checkpoint import read_header, weight_files
from mtplx.model.folder import read_config, read_spec
from mtplx.model.head_file import HeadFile
from mtplx.model.spec import RunnerInfo
from mtplx.model.torch.definition import load_model
from mtplx.model.torch.device import free_bytes, resolve_device, resolve_dtype, resolve_threads
from mtplx.model.torch.exact import CHECK_BLOCKS, find_difference
from mtplx.model.torch.head_loader import head_info, load_modules, make_head
from mtplx.model.torch.paged import PagedCache
from mtplx.model.torch.runner import TILE_ROWS, TorchRunner


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
    head: HeadFile | None = None,
    use_head: bool = True,
) -> TorchRunner:
    """Returns a runner for the model in `folder`, a local folder in Hugging Face layout; code in it is never run.

    `exact` counts on cpu alone. `max_running` only sizes the cache where `kv_cache_tokens` is None. It drafts with
    `head`, or if that is None with the checkpoint's own multi-token-prediction layers where it has any; without
    `use_head` not at all. Sets PyTorch's number of threads for the whole process.

    Raises:
        ConfigError: a device, number format or cache size that this machine hasn't got.
        ModelError: the folder is incomplete or damaged, its model isn't supported, or the head is for another model.
    """
    spec = read_spec(folder)
    for path in weight_files(folder):
        read_header(path)  # a damaged file is named before any memory is taken
    target = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, target, _checkpoint_dtype(folder))
    tiled = exact and target.type == "cpu"
    if target.type == "cpu":
        torch.set_num_threads(resolve_threads(threads, exact=tiled))
    model = load_model(folder, spec, torch_dtype, tiled=tiled).to(target)
    modules = load_modules(model, folder, spec, head) if use_head else None
    value_width = spec.value_head_dim or spec.head_dim
    layout = CacheLayout(spec.num_layers, spec.num_kv_heads, spec.head_dim, value_width, torch_dtype.itemsize)
    head_layout = replace(layout, num_layers=0 if modules is None else modules.num_layers)
    hidden_bytes = 0 if modules is None else modules.num_modules * modules.hidden_size * torch_dtype.itemsize
    num_blocks = choose_num_blocks(
        replace(layout, other_bytes=head_layout.bytes_per_token + hidden_bytes),
        kv_cache_tokens=kv_cache_tokens,
        max_model_len=max_model_len,
        max_running=max_running,
        free_bytes=free_bytes(target),
    )
    cache = PagedCache(layout, num_blocks, torch_dtype, target)
    info = RunnerInfo(
        "torch",
        str(target),
        str(torch_dtype).removeprefix("torch."),
        exact=False,
        exact_note=_why_not_exact(exact, target),
        head=None if modules is None else head_info(modules, head, spec),
    )
    if tiled:
        check_cache = PagedCache(layout, CHECK_BLOCKS, torch_dtype, target)
        info = _checked(TorchRunner(model, spec, info, check_cache, tiled=True))
    draft_head = None
    if modules is not None:
        head_cache = PagedCache(head_layout, num_blocks, torch_dtype, target)
        draft_head = make_head(modules, head, model, head_cache)
    return TorchRunner(model, spec, info, cache, tiled=tiled, draft_head=draft_head)


def _checked(runner: TorchRunner) -> RunnerInfo:
    exact, note = _exactness(runner, torch.get_num_threads())
    return replace(runner.info, exact=exact, exact_note=note)


def _exactness(runner: TorchRunner, threads: int) -> tuple[bool, str]:
    """Threads that cut through a row are refused unseen: random tokens show that difference only most of the time."""
    ways = f"tiles of {TILE_ROWS} rows on {threads} thread{'s' if threads > 1 else ''}"
    if TILE_ROWS % threads:
        return False, f"{ways} are cut through a row; 1, 2, 4, 8 or 16 threads are not"
    difference = find_difference(runner)
    if difference is not None:
        return False, f"bits differ {difference} in {ways} on this machine"
    return True, f"{ways} gave the same bits alone, with neighbours and in a chunk when checked at start-up"


def _why_not_exact(exact: bool, device: torch.device) -> str:
    if device.type == "cpu":
        return "not checked" if exact else "switched off by --no-exact"
    return f"on {device.type} the libraries choose other kernels for other batch shapes"


def _checkpoint_dtype(folder: Path) -> str | None:
    config = read_config(folder)
    return config.get("dtype") or config.get("torch_dtype")
