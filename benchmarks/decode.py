"""Measures the engine: tokens a second and time to first token by concurrency, beside transformers and llama.cpp.

Every request has a prompt of --prompt tokens and --new new ones; all of a width start together, prompts differ. The
ways take turns within one run, so that a busy machine hurts them alike; medians are shown with their spread.

Run: python -m benchmarks.decode --ways native torch generate --repeats 5
With a built llama.cpp: --llama-bench build/bin/llama-batched-bench --llama-models a-Q4_0.gguf a-Q4_1.gguf
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import median_and_spread, publish
from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import SchedulerMode, StopRules
from mtplx.model.cache import blocks_for_tokens
from mtplx.model.machine import physical_cores
from mtplx.model.runner import Runner
from mtplx.model.weights import ModelFolder, resolve_model, with_safetensors
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import EngineCore, Submit
from mtplx.server.modes import make_scheduler

Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: seconds to each request's first token, and decoded tokens a second after the last of those."""

    first_token_s: float  # mean over the requests
    tokens_per_s: float
    total_s: float


Way = Callable[[Prompts, int], Sample]


def run_engine(runner: Runner, prompts: Prompts, num_new: int) -> Sample:
    """Decodes all prompts together, in ar_batch at exactly their number."""
    scheduler = make_scheduler(
        SchedulerMode.AR_BATCH,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=len(prompts),
        prefill_chunk_tokens=64,
    )
    core = EngineCore(runner, scheduler)
    start_s = time.perf_counter()
    for seq_id, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=num_new)
        core.add(Submit(seq_id, prompt, params, seed=1, choice=0, stops=StopRules(num_new)))
    first_s: dict[int, float] = {}
    decode_begin_s, num_decoded = start_s, 0
    while core.has_work:
        outputs = core.step()
        now_s = time.perf_counter()
        if len(first_s) == len(prompts):
            num_decoded += sum(len(output.token_ids) for output in outputs)
        for output in outputs:
            first_s.setdefault(output.seq_id, now_s - start_s)
            decode_begin_s = now_s if num_decoded == 0 else decode_begin_s
    return Sample(
        statistics.mean(first_s.values()), num_decoded / (now_s - decode_begin_s), time.perf_counter() - start_s
    )


def native_way(model: ModelFolder, options: argparse.Namespace, num_tokens: int) -> Way:
    from mtplx.model.native.loader import load_native_runner

    runner = load_native_runner(
        model,
        quantization=options.quantization,
        threads=options.threads,
        kv_cache_tokens=num_tokens,
        max_model_len=4096,
    )
    return lambda prompts, num_new: run_engine(runner, prompts, num_new)


def torch_way(model: ModelFolder, options: argparse.Namespace, num_tokens: int) -> Way:
    from mtplx.model.torch.loader import load_torch_runner

    folder = with_safetensors(model).path
    runner = load_torch_runner(
        folder, device="cpu", threads=options.threads, kv_cache_tokens=num_tokens, max_model_len=4096
    )
    return lambda prompts, num_new: run_engine(runner, prompts, num_new)


def generate_way(model: ModelFolder, options: argparse.Namespace, num_tokens: int) -> Way:
    """transformers' own `generate` in float32 on one padded batch, called once for the first token and once for all."""
    import torch
    from transformers import AutoModelForCausalLM

    if options.threads:
        torch.set_num_threads(options.threads)
    trunk = AutoModelForCausalLM.from_pretrained(with_safetensors(model).path, dtype=torch.float32)

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
        first_s, total_s = seconds(prompts, 1), seconds(prompts, num_new)
        return Sample(first_s, len(prompts) * (num_new - 1) / (total_s - first_s), total_s)

    return measure


def llama_way(bench: Path, gguf: Path, threads: int) -> Way:
    """llama.cpp's own llama-batched-bench on a GGUF: prompts of its own, of one length, all in one batch."""

    def measure(prompts: Prompts, num_new: int) -> Sample:
        width, prompt_len = len(prompts), len(prompts[0])
        flags = {
            "-m": gguf,
            "-c": 16 * blocks_for_tokens(width * (prompt_len + num_new)) + 256,
            "-npp": prompt_len,
            "-ntg": num_new,
            "-npl": width,
            "-t": threads,
            "--output-format": "jsonl",
        }
        command = [str(bench), *(str(word) for pair in flags.items() for word in pair)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.strip().splitlines()[-1])
        return Sample(row["t_pp"], row["speed_tg"], row["t"])

    return measure


WAYS: Mapping[str, Callable[[ModelFolder, argparse.Namespace, int], Way]] = {
    "native": native_way,
    "torch": torch_way,
    "generate": generate_way,
}


def summary(width: int, name: str, samples: Sequence[Sample], first: Sequence[Sample]) -> dict[str, float | int | str]:
    """One line of the table; `ratio` is the median over the rounds of the first way's speed over this one's."""
    speed, speed_spread = median_and_spread([sample.tokens_per_s for sample in samples])
    wait, wait_spread = median_and_spread([sample.first_token_s * 1000 for sample in samples])
    ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(first, samples, strict=True)]
    return {
        "width": width,
        "way": name,
        "tokens/s": speed,
        "tokens/s spread": speed_spread,
        "ttft_ms": wait,
        "ttft_ms spread": wait_spread,
        "first way / this": statistics.median(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["native", "torch"])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens decoded for each")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; in each every way runs once")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's llama-batched-bench")
    parser.add_argument("--llama-models", nargs="*", type=Path, default=[], help="GGUF files for it, each a way")
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    model = resolve_model(options.model, with_weights=False)
    num_tokens = max(options.widths) * 16 * blocks_for_tokens(options.prompt + options.new)
    ways = {name: WAYS[name](model, options, num_tokens) for name in options.ways}
    threads = options.threads or physical_cores()
    ways |= {f"llama.cpp {gguf.stem}": llama_way(options.llama_bench, gguf, threads) for gguf in options.llama_models}
    ids = np.random.default_rng(0).integers(100, 1000, (max(options.widths), options.prompt)).tolist()
    rows = []
    for width in options.widths:
        prompts = [tuple(prompt) for prompt in ids[:width]]
        samples: dict[str, list[Sample]] = {name: [] for name in ways}
        for _ in range(options.repeats):
            for name, way in ways.items():
                samples[name].append(way(prompts, options.new))
        rows += [summary(width, name, samples[name], samples[options.ways[0]]) for name in ways]
    publish("decode", rows, model=model.name, output=options.output)


if __name__ == "__main__":
    main()
