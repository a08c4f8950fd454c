"""From settings to the parts of a running engine: model folder, runner, scheduler, engine, text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import takewhile
from pathlib import Path

from pydantic import SecretStr

from mtplx import __version__
from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import SchedulerMode
from mtplx.config import AUTO, Settings, read_api_keys
from mtplx.errors import ConfigError, RequestError
from mtplx.model.checkpoint import weight_files
from mtplx.model.choice import RunnerChoice, Wishes, choose_runner
from mtplx.model.cost_cache import load_costs
from mtplx.model.folder import read_spec
from mtplx.model.head_file import HeadFile, load_head, warn_of_other_weights
from mtplx.model.native.pack import joined_sha256
from mtplx.model.runner import Runner, drafting_runner
from mtplx.model.spec import HeadInfo, ModelSpec, RunnerInfo
from mtplx.model.store import cache_root, stamp_file
from mtplx.model.weights import ModelFolder, resolve_model, with_safetensors
from mtplx.server.admission import Limits
from mtplx.server.engine import EngineCore
from mtplx.server.modes import decode_width, make_scheduler, make_speculator, resolve_depth, resolve_mode
from mtplx.telemetry.stages import StepRecorder
from mtplx.text.answer_format import AnswerFormat, resolve_answer_format
from mtplx.text.chat import ChatTemplate
from mtplx.text.grammar import GrammarCompiler
from mtplx.text.tokenizer import Tokenizer

DEFAULT_CHUNK_TOKENS_CPU = 64  # bounds the gap of running streams where a token costs milliseconds
DEFAULT_CHUNK_TOKENS_GPU = 512
_OPEN_TO_ALL = "whoever reaches {host} may use this server: it has no API key (--api-key, --api-keys-file)"


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
    answer_format: AnswerFormat
    grammars: GrammarCompiler
    limits: Limits
    fingerprint: str
    runner_reason: str  # why it is this runner, one sentence


def assemble(settings: Settings) -> Assembly:
    """Resolves, loads and wires.

    Raises:
        ConfigError: the settings contradict each other or this machine.
        ModelError: the model can't be found, read or served.
    """
    resolve_mode(settings, max_draft_depth=0 if settings.draft_head == "none" else MAX_DEPTH)  # before anything slow
    api_keys = read_api_keys(settings)
    model = resolve_model(settings.model, with_weights=False)
    spec = read_spec(model.path)
    choice = choose_runner(model, _wishes(settings))
    head = load_head(settings.draft_head, model, spec)
    resolve_mode(settings, max_draft_depth=_depth_in_sight(settings, choice, spec, head))  # before weights are read
    tokenizer = Tokenizer.load(model.path)
    chat_template = ChatTemplate.load(model.path, is_trusted=False)
    answer_format = resolve_answer_format(chat_template, settings.tool_parser, settings.reasoning_parser)
    max_model_len = _max_model_len(settings, spec)
    runner = _load_runner(choice, model, settings, max_model_len, head)
    weights_sha256 = _weights_sha256(model, runner.info)
    if head is not None:
        warn_of_other_weights(head, weights_sha256)
    fingerprint = _fingerprint(runner.info, weights_sha256)
    core = build_core(settings, runner, fingerprint, cache_root(), template_ids=_template_ids(tokenizer, chat_template))
    cache_tokens = runner.num_blocks * runner.block_size
    if settings.max_model_len is None:
        max_model_len = min(max_model_len, cache_tokens)
    limits = Limits(
        max_model_len=max_model_len,
        cache_tokens=cache_tokens,
        max_live=core.scheduler.max_running + settings.max_queue,
        max_live_per_tenant=settings.max_requests_per_key,
        eos_ids=spec.eos_ids,
        max_request_s=settings.request_timeout_s,
    )
    return Assembly(
        settings=settings,
        api_keys=api_keys,
        model=model,
        model_name=settings.served_model_name or model.name,
        core=core,
        tokenizer=tokenizer,
        chat_template=chat_template,
        answer_format=answer_format,
        grammars=GrammarCompiler(tokenizer, vocab_size=spec.vocab_size, eos_ids=spec.eos_ids),
        limits=limits,
        fingerprint=fingerprint,
        runner_reason=choice.why,
    )


def build_core(
    settings: Settings,
    runner: Runner,
    fingerprint: str = "",
    costs_root: Path | None = None,
    template_ids: Sequence[int] = (),
) -> EngineCore:
    """The engine around a loaded runner; measures the machine's costs where the draft depth follows them.

    `fingerprint` names the model in the prefix cache's keys and in the costs that are kept under `costs_root`;
    `template_ids` as for `make_scheduler`.

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
        max_depth = MAX_DEPTH if mode is SchedulerMode.MTP_COHORT_EXPERIMENTAL else max_draft_depth
        max_tokens, threads = width * (1 + max_depth) + chunk, settings.threads
        costs = load_costs(runner, fingerprint=fingerprint, threads=threads, max_tokens=max_tokens, root=costs_root)
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=settings.decode_batch_max,
        prefill_chunk_tokens=chunk,
        speculator=make_speculator(depth, costs, prefill_chunk_tokens=chunk, max_draft_depth=max_draft_depth),
        prefix_salt=f"{fingerprint} {runner.info.head}".encode() if settings.prefix_cache == "on" else None,
        template_ids=template_ids,
    )
    return EngineCore(runner, scheduler, recorder=StepRecorder() if mode is SchedulerMode.HYPER else None)


def start_up_lines(assembly: Assembly) -> list[str]:
    """What a person wants to know of a server that has just started."""
    runner, scheduler = assembly.core.runner, assembly.core.scheduler
    info, limits, answers = runner.info, assembly.limits, assembly.answer_format
    exactness = "exact" if info.exact else "not exact"
    head = "with" if drafting_runner(runner) else "without"
    why = "asked for" if assembly.settings.scheduler_mode else f"default for a model {head} a draft head"
    drafts = [f"drafts  {_described_head(info.head)}"] if info.head else []
    is_open = not assembly.api_keys and not _is_loopback(assembly.settings.host)
    warnings = [f"warning {_OPEN_TO_ALL.format(host=assembly.settings.host)}"] if is_open else []
    return [
        f"model   {assembly.model_name} ({assembly.model.source})",
        f"runner  {_described(info)} ({assembly.runner_reason}); {exactness}: {info.exact_note}",
        *drafts,
        f"mode    {scheduler.mode} ({why}), at most {scheduler.max_running} running and "
        f"{limits.max_live - scheduler.max_running} waiting",
        f"cache   {limits.cache_tokens} tokens, at most {limits.max_model_len} a request",
        f"chat    tool parser {answers.tool_parser}, reasoning parser {answers.reasoning_parser}",
        *warnings,
    ]


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address; of names nothing but localhost is known to be so."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wishes(settings: Settings) -> Wishes:
    return Wishes(settings.runner, settings.device, settings.dtype, settings.quantization, settings.kv_cache_dtype)


def _depth_in_sight(settings: Settings, choice: RunnerChoice, spec: ModelSpec, head: HeadFile | None) -> int:
    """The most drafts that the runner will make for a row, as far as shows before it is loaded."""
    if head is not None:
        return head.max_depth
    may_have_own = choice.name == "torch" and settings.draft_head == AUTO and spec.num_mtp_layers > 0
    return MAX_DEPTH if may_have_own else 0


def _load_runner(
    choice: RunnerChoice, model: ModelFolder, settings: Settings, max_model_len: int, head: HeadFile | None
) -> Runner:
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
            head=head,
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
        head=head,
        use_head=settings.draft_head != "none",
    )


def _described(info: RunnerInfo) -> str:
    """`native (avx2) on cpu, q4_1+q8_0 weights, float16 cache`, or `torch on cpu, float32`."""
    if info.build is None:
        return f"{info.runner} on {info.device}, {info.dtype}"
    return f"{info.runner} ({info.build}) on {info.device}, {info.quantization} weights, {info.kv_cache_dtype} cache"


def _described_head(head: HeadInfo) -> str:
    """`mtp_head.safetensors, 1 block, guesses 8192 ids; greedy acceptance when trained 0.61, 0.44`."""
    blocks = f"{head.num_blocks} block{'s' if head.num_blocks > 1 else ''}"
    rates = ", ".join(f"{rate:.2f}" for rate in head.greedy_acceptance)
    measured = f"; greedy acceptance when trained {rates}" if rates else ""
    return f"{head.name}, {blocks}, guesses {head.draft_vocab_size} ids{measured}"


def _max_model_len(settings: Settings, spec: ModelSpec) -> int:
    if settings.max_model_len is None:
        return spec.max_position
    if settings.max_model_len > spec.max_position:
        raise ConfigError(
            f"--max-model-len {settings.max_model_len} is over the {spec.max_position} tokens this model was made for",
            "--max-model-len",
        )
    return settings.max_model_len


def _template_ids(tokenizer: Tokenizer, chat_template: ChatTemplate) -> tuple[int, ...]:
    """What the chat template writes before a first message, found as what two conversations begin with."""
    try:
        texts = [chat_template.render([{"role": "user", "content": content}]) for content in ("a", "7")]
    except RequestError:  # there is none, or it takes no such conversation
        return ()
    one, other = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    return tuple(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _default_chunk_tokens(runner: Runner) -> int:
    return DEFAULT_CHUNK_TOKENS_CPU if runner.info.device == "cpu" else DEFAULT_CHUNK_TOKENS_GPU


def _fingerprint(info: RunnerInfo, weights_sha256: str) -> str:
    """Names version, runner, build, number formats and weights: answers can be replayed where it is equal."""
    exactness = "exact" if info.exact else "inexact"
    formats = (info.build, info.quantization, info.kv_cache_dtype) if info.build else (info.device, info.dtype)
    return "-".join(("mtplx", __version__, info.runner, *map(str, formats), exactness, weights_sha256[:12]))


def _weights_sha256(model: ModelFolder, info: RunnerInfo) -> str:
    known = info.weights_sha256 or model.gguf_sha256
    return known or joined_sha256(stamp_file(path) for path in weight_files(model.path))
