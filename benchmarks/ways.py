"""The ways of decoding that `decode` compares: our engine on the native and torch runners, transformers, llama.cpp."""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.llama_cpp import batched_bench
from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import SchedulerMode, StopRules
from mtplx.model.cache import BLOCK_SIZE, blocks_for_tokens
from mtplx.model.machine import physical_cores
from mtplx.model.runner import Runner
from mtplx.model.weights import ModelFolder, resolve_model
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import EngineCore, Submit
from mtplx.server.modes import make_scheduler

CHUNK_TOKENS = 64  # what a server prefills in one step
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one way at one width."""

    first_token_s: float  # mean over the requests, all sent at once
    prompt_tokens_per_s: float  # all prompts and nothing else
    tokens_per_s: float  # while every request decodes


@dataclass(frozen=True, slots=True)
class Way:
    """`bits` is that of most weights; None where it isn't by blocks, as in float32."""

    name: str
    is_ours: bool
    bits: int | None
    run: Callable[[Prompts, int], Sample]  # prompts, and how many tokens each decodes


def make_ways(options: argparse.Namespace) -> list[Way]:
    """Everything the options of `decode` name, loaded."""
    num_tokens = max(options.widths) * _cache_tokens(max(options.widths), options.prompt, options.new)
    ways = []
    if "native" in options.ways:
        ways += [native_way(name, options, num_tokens) for name in options.native_models or [options.model]]
    if "torch" in options.ways:
        ways.append(torch_way(resolve_model(options.model), options, num_tokens))
    if "generate" in options.ways:
        ways.append(generate_way(resolve_model(options.model), options))
    return ways + [llama_way(options, gguf) for gguf in options.llama_models]


def native_way(name: str, options: argparse.Namespace, num_tokens: int) -> Way:
    from mtplx.model.native.loader import load_native_runner

    model = resolve_model(name, with_weights=False)
    runner = load_native_runner(
        model,
        quantization=options.quantization,
        threads=options.threads,
        kv_cache_tokens=num_tokens,
        max_model_len=4096,
    )
    formats = runner.info.quantization or ""
    return Way(
        f"native {formats.partition('+')[0].upper()}",
        True,
        bits_of(formats),
        lambda prompts, num_new: run_engine(runner, prompts, num_new),
    )


def torch_way(model: ModelFolder, options: argparse.Namespace, num_tokens: int) -> Way:
    from mtplx.model.torch.loader import load_torch_runner

    runner = load_torch_runner(
        model.path,
        device="cpu",
        threads=options.threads,
        kv_cache_tokens=num_tokens,
        max_model_len=4096,
    )
    return Way("torch", True, None, lambda prompts, num_new: run_engine(runner, prompts, num_new))


def generate_way(model: ModelFolder, options: argparse.Namespace) -> Way:
    """transformers' own `generate` in float32 on one padded batch, called once for the first token and once for all."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads or physical_cores())
    trunk = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)

    def seconds(prompts: Prompts, num_new: int) -> float:
        ids = torch.tensor(prompts)
        start_s = time.perf_counter()
        trunk.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=num_new,
            max_new_tokens=num_new,
            pad_token_id=0,
        )
        return time.perf_counter() - start_s

    def measure(prompts: Prompts, num_new: int) -> Sample:
        first_s, total_s = seconds(prompts, 1), seconds(prompts, num_new + 1)
        return Sample(first_s, _num_tokens(prompts) / first_s, len(prompts) * num_new / (total_s - first_s))

    return Way("transformers", False, None, measure)


def llama_way(options: argparse.Namespace, gguf: Path) -> Way:
    """llama.cpp on a GGUF file; its first tokens come when all prompts are done."""

    def measure(prompts: Prompts, num_new: int) -> Sample:
        row = batched_bench(
            options.llama_bench,
            gguf,
            width=len(prompts),
            prompt=len(prompts[0]),
            new=num_new,
            threads=options.threads or physical_cores(),
        )
        return Sample(row["t_pp"], row["speed_pp"], row["speed_tg"])

    main_format = _main_format(gguf)
    return Way(f"llama.cpp {main_format}", False, bits_of(main_format), measure)


def run_engine(runner: Runner, prompts: Prompts, num_new: int) -> Sample:
    """Decodes all prompts together, in ar_batch at exactly their number.

    Prompts alone first, in a run of their own. Then all again, decoding on: the first requests have their tokens while
    others' prompts are computed, so the rate is that of the `num_new` steps after the last first token.
    """
    start_s = time.perf_counter()
    core = _start(runner, prompts, max_tokens=1)
    while core.has_work:
        core.step()
    prefill_s = time.perf_counter() - start_s
    first_s: dict[int, float] = {}
    start_s = time.perf_counter()
    core = _start(runner, prompts, max_tokens=num_new + _most_prefill_steps(len(prompts), len(prompts[0])))
    while len(first_s) < len(prompts):
        for output in core.step():
            first_s.setdefault(output.seq_id, time.perf_counter() - start_s)
    begin_s = time.perf_counter()
    num_decoded = sum(len(output.token_ids) for _ in range(num_new) for output in core.step())
    decode_s = time.perf_counter() - begin_s
    assert num_decoded == num_new * len(prompts), "every request in every step"
    return Sample(statistics.mean(first_s.values()), _num_tokens(prompts) / prefill_s, num_decoded / decode_s)


def bits_of(formats: str) -> int | None:
    """Bits of a weight by its format's name: 4 for `q4_1+q8_0`; 5 counts as 4, None for floats."""
    found = re.match(r"I?Q(\d)_", formats.upper())
    return None if found is None else {5: 4}.get(int(found[1]), int(found[1]))


def _start(runner: Runner, prompts: Prompts, max_tokens: int) -> EngineCore:
    scheduler = make_scheduler(
        SchedulerMode.AR_BATCH,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=len(prompts),
        prefill_chunk_tokens=CHUNK_TOKENS,
    )
    core = EngineCore(runner, scheduler)
    for seq_id, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        core.add(Submit(seq_id, prompt, params, seed=1, choice=0, stops=StopRules(max_tokens)))
    return core


def _most_prefill_steps(width: int, prompt_len: int) -> int:
    return width * (1 + -(-prompt_len // CHUNK_TOKENS))


def _cache_tokens(width: int, prompt_len: int, num_new: int) -> int:
    """Of one request, in whole blocks."""
    return BLOCK_SIZE * blocks_for_tokens(prompt_len + num_new + _most_prefill_steps(width, prompt_len))


def _num_tokens(prompts: Prompts) -> int:
    return sum(map(len, prompts))


def _main_format(gguf: Path) -> str:
    """The format of most bytes in the file, such as Q4_0."""
    from gguf import GGUFReader

    sizes: dict[str, int] = {}
    for tensor in GGUFReader(gguf).tensors:
        sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    return max(sizes, key=lambda name: sizes[name])
