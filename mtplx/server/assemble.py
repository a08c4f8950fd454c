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
from mtplx.model.choice import RunnerChoice, Wishes, choose_runner
from mtplx.model.costs import measure_costs
from mtplx.model.folder import read_spec
from mtplx.model.runner import MAX_LOADED_DRAFT_DEPTH, Runner, drafting_runner
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.model.weights import ModelFolder, resolve_model, with_safetensors
from mtplx.server.admission import Limits
from mtplx.server.engine import EngineCore
from mtplx.server.modes import decode_width, make_scheduler, make_speculator, resolve_depth, resolve_mode
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
    runner_reason: str  # why it is this runner, one sentence


def assemble(settings: Settings) -> Assembly:
    """Resolves, loads and wires.

    Raises:
        ConfigError: the settings contradict each other or this machine.
        ModelError: the model can't be found, read or served.
    """
    resolve_mode(settings, max_draft_depth=MAX_LOADED_DRAFT_DEPTH)  # before anything slow
    api_keys = read_api_keys(settings)
    model = resolve_model(settings.model, with_weights=False)
    spec = read_spec(model.path)
    choice = choose_runner(model, _wishes(settings))
    tokenizer = Tokenizer.load(model.path)
    chat_template = ChatTemplate.load(model.path)
    max_model_len = _max_model_len(settings, spec)
    runner = _load_runner(choice, model, settings, max_model_len)
    core = build_core(settings, runner)
    cache_tokens = runner.num_blocks * runner.block_size
    if settings.max_model_len is None:
        max_model_len = min(max_model_len, cache_tokens)
    limits = Limits(
        max_model_len=max_model_len,
        cache_tokens=cache_tokens,
        max_live=core.scheduler.max_running + settings.max_queue,
        eos_ids=spec.eos_ids,
    )
    return Assembly(
        settings=settings,
        api_keys=api_keys,
        model=model,
        model_name=settings.served_model_name or model.name,
        core=core,
        tokenizer=tokenizer,
        chat_template=chat_template,
        limits=limits,
        fingerprint=_fingerprint(model, runner.info),
        runner_reason=choice.why,
    )


def build_core(settings: Settings, runner: Runner) -> EngineCore:
    """The engine around a loaded runner; measures the machine's costs where the draft depth follows them.

    Raises:
        ConfigError: the mode or the draft depth is not for this runner.
    """
    drafting = drafting_runner(runner)
    max_draft_depth = drafting.max_draft_depth if drafting else 0
    mode = resolve_mode(settings, max_draft_depth=max_draft_depth)
    depth = resolve_depth(settings, mode, max_draft_depth=max_draft_depth)
    chunk = settings.prefill_chunk_tokens or _default_chunk_tokens(runner)
    width = decode_width(mode, settings.decode_batch_max, chunk)
    costs = None
    if depth is None:
        assert drafting is not None, "without a head the depth is 0"
        costs = measure_costs(drafting, max_tokens=width * (1 + max_draft_depth) + chunk)
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=settings.decode_batch_max,
        prefill_chunk_tokens=chunk,
        speculator=make_speculator(depth, costs, prefill_chunk_tokens=chunk, max_draft_depth=max_draft_depth),
    )
    return EngineCore(runner, scheduler)


def start_up_lines(assembly: Assembly) -> list[str]:
    """What a person wants to know of a server that has just started."""
    runner, scheduler = assembly.core.runner, assembly.core.scheduler
    info, limits = runner.info, assembly.limits
    exactness = "exact" if info.exact else "not exact"
    head = "with" if drafting_runner(runner) else "without"
    why = "asked for" if assembly.settings.scheduler_mode else f"default for a model {head} a draft head"
    return [
        f"model   {assembly.model_name} ({assembly.model.source})",
        f"runner  {_described(info)} ({assembly.runner_reason}); {exactness}: {info.exact_note}",
        f"mode    {scheduler.mode} ({why}), at most {scheduler.max_running} running and "
        f"{limits.max_live - scheduler.max_running} waiting",
        f"cache   {limits.cache_tokens} tokens, at most {limits.max_model_len} a request",
    ]


def _wishes(settings: Settings) -> Wishes:
    return Wishes(settings.runner, settings.device, settings.dtype, settings.quantization, settings.kv_cache_dtype)


def _load_runner(choice: RunnerChoice, model: ModelFolder, settings: Settings, max_model_len: int) -> Runner:
    """Imports the runner that was chosen, and not the other: PyTorch and transformers take seconds."""
    if choice.name == "native":
        from mtplx.model.native.loader import load_native_runner

        return load_native_runner(
            model,
            quantization=settings.quantization,
            kv_cache_dtype=settings.kv_cache_dtype,
            threads=settings.threads,
            kv_cache_tokens=settings.kv_cache_tokens,
            max_model_len=max_model_len,
        )
    from mtplx.model.torch.loader import load_torch_runner

    return load_torch_runner(
        with_safetensors(model).path,
        device=settings.device,
        dtype=settings.dtype,
        exact=settings.exact,
        threads=settings.threads,
        kv_cache_tokens=settings.kv_cache_tokens,
        max_model_len=max_model_len,
    )


def _described(info: RunnerInfo) -> str:
    """`native (avx2) on cpu, q4_1+q8_0 weights, float16 cache`, or `torch on cpu, float32`."""
    if info.build is None:
        return f"{info.runner} on {info.device}, {info.dtype}"
    return f"{info.runner} ({info.build}) on {info.device}, {info.quantization} weights, {info.kv_cache_dtype} cache"


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


def _fingerprint(model: ModelFolder, info: RunnerInfo) -> str:
    """Names version, runner, build, number formats and weights: answers can be replayed where it is equal."""
    weights = info.weights_sha256 or model.gguf_sha256 or _hash_of_weights(model.path)
    exactness = "exact" if info.exact else "inexact"
    formats = (info.build, info.quantization, info.kv_cache_dtype) if info.build else (info.device, info.dtype)
    return "-".join(("mtplx", __version__, info.runner, *map(str, formats), exactness, weights[:12]))


def _hash_of_weights(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted((*folder.glob("*.safetensors"), folder / "config.json")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
