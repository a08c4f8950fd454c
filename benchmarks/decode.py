"""Measures the engine: tokens a second and time to first token by concurrency, beside transformers and llama.cpp.

Every request has a prompt of --prompt tokens and decodes --new more; all of a width start together, prompts differ. The
ways take turns within one run, so that a busy machine hurts them alike. Ratios are taken pair by pair, between runs of
the same round; medians are shown with their spread.

Run: python -m benchmarks.decode --ways native torch generate
With a built llama.cpp, the same files on both: python -m benchmarks.decode --native-models Q4_1.gguf Q8_0.gguf \\
    --llama-bench build/bin/llama-batched-bench --llama-models Q4_0.gguf Q4_1.gguf Q8_0.gguf
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.llama_cpp import describe
from benchmarks.plots import Plot
from benchmarks.report import Row, criterion, median_and_spread, publish
from benchmarks.ways import Sample, Way, make_ways
from mtplx.model.machine import physical_cores

LEAST_DECODE_RATIO, LEAST_PREFILL_RATIO = 1.5, 1.0  # native over llama.cpp's best format of as many bits
Samples = Mapping[str, Sequence[Sample]]  # by way, one a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="for torch and generate; and native by default"
    )
    parser.add_argument("--ways", nargs="*", choices=["native", "torch", "generate"], default=["native"])
    parser.add_argument("--native-models", nargs="+", help="models for native, each a way, such as GGUF files")
    parser.add_argument("--quantization", default="auto", help="native's")
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens decoded for each")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; in each every way runs once")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's llama-batched-bench")
    parser.add_argument("--llama-models", nargs="*", type=Path, default=[], help="GGUF files for it, each a way")
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    if options.llama_models and not options.llama_bench:
        parser.error("--llama-models needs --llama-bench")
    ways = make_ways(options)
    for way in ways:
        way.run([tuple(range(100, 100 + options.prompt))], 8)  # uncounted: weights come into memory, code gets ready
    measured = {width: measure(ways, width, options) for width in options.widths}
    threads = options.threads or physical_cores()
    publish(
        "decode",
        [summary(width, way, samples[way.name]) for width, samples in measured.items() for way in ways],
        model=f"{options.model}, {options.prompt} prompt and {options.new} new tokens, {threads} threads",
        output=options.output,
        tables={
            "ratios": [row for width, samples in measured.items() for row in ratios(width, ways, samples)],
            "criteria": [row for width, samples in measured.items() for row in criteria(width, ways, samples)],
        },
        details={"llama.cpp": describe(options.llama_bench, threads)} if options.llama_models else {},
        plot=Plot("width", ("tokens/s", "prompt tokens/s"), "way"),
    )


def measure(ways: Sequence[Way], width: int, options: argparse.Namespace) -> Samples:
    """Runs every way once a round."""
    ids = np.random.default_rng(0).integers(100, 1000, (max(options.widths), options.prompt)).tolist()
    prompts = [tuple(prompt) for prompt in ids[:width]]
    samples: dict[str, list[Sample]] = {way.name: [] for way in ways}
    for _ in range(options.repeats):
        for way in ways:
            samples[way.name].append(way.run(prompts, options.new))
    print(f"width {width} is measured", flush=True)
    return samples


def summary(width: int, way: Way, samples: Sequence[Sample]) -> Row:
    decode, decode_spread = median_and_spread([sample.tokens_per_s for sample in samples])
    prefill, prefill_spread = median_and_spread([sample.prompt_tokens_per_s for sample in samples])
    wait, wait_spread = median_and_spread([sample.first_token_s * 1000 for sample in samples])
    return {
        "width": width,
        "way": way.name,
        "tokens/s": decode,
        "tokens/s spread": decode_spread,
        "prompt tokens/s": prefill,
        "prompt tokens/s spread": prefill_spread,
        "ttft_ms": wait,
        "ttft_ms spread": wait_spread,
    }


def ratios(width: int, ways: Sequence[Way], samples: Samples) -> Iterator[Row]:
    """Each of our ways over each of the others."""
    for ours in (way for way in ways if way.is_ours):
        for other in (way for way in ways if not way.is_ours):
            decode, decode_spread = median_and_spread(decode_ratios(samples[ours.name], samples[other.name]))
            prefill, prefill_spread = median_and_spread(prefill_ratios(samples[ours.name], samples[other.name]))
            yield {
                "width": width,
                "ratio": f"{ours.name} / {other.name}",
                "decode": decode,
                "decode spread": decode_spread,
                "prefill": prefill,
                "prefill spread": prefill_spread,
            }


def criteria(width: int, ways: Sequence[Way], samples: Samples) -> Iterator[Row]:
    """Each quantised way of ours against the best of the others with as many bits, the best by its own median."""
    for ours in (way for way in ways if way.is_ours and way.bits):
        rivals = [samples[way.name] for way in ways if not way.is_ours and way.bits == ours.bits]
        if not rivals:
            continue
        decoder = max(rivals, key=lambda rival: statistics.median(sample.tokens_per_s for sample in rival))
        prefiller = max(rivals, key=lambda rival: statistics.median(sample.prompt_tokens_per_s for sample in rival))
        what = f"width {width}, {ours.name} / llama.cpp's best of {ours.bits} bits"
        yield criterion(f"decode, {what}", decode_ratios(samples[ours.name], decoder), least=LEAST_DECODE_RATIO)
        yield criterion(f"prefill, {what}", prefill_ratios(samples[ours.name], prefiller), least=LEAST_PREFILL_RATIO)


def decode_ratios(ours: Sequence[Sample], others: Sequence[Sample]) -> list[float]:
    return [one.tokens_per_s / other.tokens_per_s for one, other in zip(ours, others, strict=True)]


def prefill_ratios(ours: Sequence[Sample], others: Sequence[Sample]) -> list[float]:
    return [one.prompt_tokens_per_s / other.prompt_tokens_per_s for one, other in zip(ours, others, strict=True)]


if __name__ == "__main__":
    main()
