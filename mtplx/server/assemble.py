"""From settings to the parts of a running engine: model folder, runner, scheduler, engine, text."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from mtplx import __version__
from mtplx.batching.blocks import BlockAllocator
from mtplx.config import Settings, read_api_keys
from mtplx.errors import ConfigError
from mtplx.model.folder import read_spec
from mtplx.model.runner import Runner
from mtplx.model.spec import ModelSpec
from mtplx.model.torch.loader import load_torch_runner
from mtplx.model.weights import ModelFolder, resolve_model
from mtplx.server.admission import Limits
from mtplx.server.engine import EngineCore
from mtplx.server.modes import make_scheduler, resolve_mode
from mtplx.text.chat import ChatTemplate
from mtplx.text.tokenizer import Tokenizer

DEFAULT_CHUNK_TOKENS_CPU = 64  # bounds the gap of running streams where a token costs milliseconds
DEFAULT_CHUNK_TOKENS_GPU = 512

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything but threads and sockets."""

    settings: Settings
    api_keys: tuple[SecretStr, ...]
    model: ModelFolder
    model_name: str
    core: EngineCore
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    limits: Limits
    fingerprint: str


def assemble(settings: Settings) -> Assembly:
    """Resolves, loads and wires.

    Raises:
        ConfigError: the settings contradict each other or this machine.
        ModelError: the model can't be found, read or served.
    """
    mode = resolve_mode(settings)  # before anything slow
    api_keys = read_api_keys(settings)
    if settings.runner == "native":
        raise ConfigError("--runner native is not available yet: use torch or auto", "--runner")
    model = resolve_model(settings.model)
    spec = read_spec(model.path)
    tokenizer = Tokenizer.load(model.path)
    chat_template = ChatTemplate.load(model.path)
    max_model_len = _max_model_len(settings, spec)
    runner = load_torch_runner(
        model.path,
        device=settings.device,
        dtype=settings.dtype,
        exact=settings.exact,
        threads=settings.threads,
        kv_cache_tokens=settings.kv_cache_tokens,
        max_model_len=max_model_len,
    )
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=settings.decode_batch_max,
        prefill_chunk_tokens=settings.prefill_chunk_tokens or _default_chunk_tokens(runner),
    )
    cache_tokens = runner.num_blocks * runner.block_size
    if settings.max_model_len is None:
        max_model_len = min(max_model_len, cache_tokens)
    limits = Limits(
        max_model_len=max_model_len,
        cache_tokens=cache_tokens,
        max_live=scheduler.max_running + settings.max_queue,
        eos_ids=spec.eos_ids,
    )
    return Assembly(
        settings=settings,
        api_keys=api_keys,
        model=model,
        model_name=settings.served_model_name or model.name,
        core=EngineCore(runner, scheduler),
        tokenizer=tokenizer,
        chat_template=chat_template,
        limits=limits,
        fingerprint=_fingerprint(model, runner),
    )


def start_up_lines(assembly: Assembly) -> list[str]:
    """What a person wants to know of a server that has just started."""
    runner, scheduler = assembly.core.runner, assembly.core.scheduler
    info, limits = runner.info, assembly.limits
    exactness = "exact" if info.exact else "not exact"
    why = "asked for" if assembly.settings.scheduler_mode else "default for a model without a draft head"
    return [
        f"model   {assembly.model_name} ({assembly.model.source})",
        f"runner  {info.runner} on {info.device}, {info.dtype}, {exactness}: {info.exact_note}",
        f"mode    {scheduler.mode} ({why}), at most {scheduler.max_running} running and "
        f"{limits.max_live - scheduler.max_running} waiting",
        f"cache   {limits.cache_tokens} tokens, at most {limits.max_model_len} a request",
    ]


def _max_model_len(settings: Settings, spec: ModelSpec) -> int:
    if settings.max_model_len is None:
        return spec.max_position
    if settings.max_model_len > spec.max_position:
        raise ConfigError(
            f"--max-model-len {settings.max_model_len} is over the {spec.max_position} tokens this model was made for",
            "--max-model-len",
        )
    return settings.max_model_len


def _default_chunk_tokens(runner: Runner) -> int:
    return DEFAULT_CHUNK_TOKENS_CPU if runner.info.device == "cpu" else DEFAULT_CHUNK_TOKENS_GPU


def _fingerprint(model: ModelFolder, runner: Runner) -> str:
    """Names version, runner, number format and weights: answers can be replayed where it is equal."""
    weights = model.gguf_sha256 or _hash_of_weights(model.path)
    info = runner.info
    exactness = "exact" if info.exact else "inexact"
    parts = ("mtplx", __version__, info.runner, info.device, info.dtype, exactness, weights[:12])
    return "-".join(parts)


def _hash_of_weights(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted((*folder.glob("*.safetensors"), folder / "config.json")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
