"""What drafts gain and cost: fixed depths, auto and a head that is always wrong, in turns within one run.

For each width so many clients keep sending held-out prompts, greedy, and every way answers the same requests in each
round. `tokens/s` counts all steps while all clients are there, `decode tokens/s` only those that computed no prompt.
The engines live for the whole run, as a server would; a ratio is the median over rounds of two ways of one round.

Run: python -m benchmarks.speculation [--quick] [--draft-head FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from benchmarks.draft_levels import WrongHead, measure_levels
from benchmarks.engines import (
    AUTO,
    Prompt,
    add_model_arguments,
    costs_of,
    engine_of,
    open_with_head,
    read_prompts,
    submit_of,
)
from benchmarks.plots import Plot
from benchmarks.report import Row, criterion, median_and_spread, publish
from mtplx.batching.state import SchedulerMode
from mtplx.model.machine import physical_cores
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import Assembly
from mtplx.server.engine import EngineCore, Submit

PLAIN, ADAPTIVE, WRONG = "ar_batch", "auto", "auto, wrong head"
SERIAL, HYPER = "serial depth 3", "hyper depth 3"
FIXED_DEPTHS = (1, 2, 3, 4)
LEAST_GAIN = {1: 1.3, 2: 1.2}  # auto over ar_batch, by width
LEAST_OF_BEST, LEAST_WRONG, LEAST_HYPER, MOST_LEVEL_SHARE = 0.97, 0.95, 0.95, 0.08


@dataclass(frozen=True, slots=True)
class Sample:
    """One block of one way. `tokens_a_row` counts what a decode row emits, 1 without drafts.

    It and `decode_tokens_per_s` are 0 where every step had some prompt to compute.
    """

    tokens_per_s: float
    decode_tokens_per_s: float
    tokens_a_row: float


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    core: EngineCore
    numbers: Iterator[int]  # of its sequences


Samples = Mapping[str, Sequence[Sample]]  # by way, one a round
Rate = Callable[[Sample], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--draft-head", default="auto", help="a head file; auto is the one that a server would use")
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--pairs", type=int, default=7, help="rounds; in each every way runs once")
    parser.add_argument("--new", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--requests", type=int, default=4, help="requests of a block, and two more for each client")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--quick", action="store_true", help="two short rounds at widths 1 and 4, to see that it runs")
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    if options.quick:
        options.widths, options.pairs, options.new, options.requests = [1, 4], 2, 24, 2
    assembly = open_with_head(options, options.draft_head, width=max(options.widths), max_tokens=options.new)
    measured = {width: measure(assembly, width, options) for width in options.widths}
    levels = measure_levels(assembly.core.runner, repeats=30 if options.quick else 300)
    publish(
        "speculation",
        [row for width, samples in measured.items() for row in rows_of(width, samples)],
        model=f"{options.model}, answers of at most {options.new} tokens at temperature {options.temperature:g}, "
        f"{options.threads or physical_cores()} threads",
        output=options.output,
        tables={
            "ratios": [row for width, samples in measured.items() for row in ratios(width, samples)],
            "draft levels": levels.rows(),
            "criteria": [
                *(row for width, samples in measured.items() for row in criteria(width, samples)),
                criterion("a first draft / t(1)", levels.first_shares, most=MOST_LEVEL_SHARE),
                criterion("each further draft / t(1)", levels.further_shares, most=MOST_LEVEL_SHARE),
            ],
        },
        plot=Plot("width", ("decode tokens/s", "tokens/s"), "way"),
    )
    assembly.core.runner.close()


def measure(assembly: Assembly, width: int, options: argparse.Namespace) -> Samples:
    """Runs every way once a round, each round from another way on; a round before them isn't counted."""
    ways = ways_of(assembly, width)
    samples: dict[str, list[Sample]] = {way.name: [] for way in ways}
    prompts = read_prompts(assembly)
    for turn in range(-1, options.pairs):
        submits = requests_of(assembly, prompts, turn, width, options)
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            sample = run_block(way, submits, width)
            if turn >= 0:
                samples[way.name].append(sample)
    print(f"width {width} is measured", flush=True)
    return samples


def ways_of(assembly: Assembly, width: int) -> list[Way]:
    """The engines that are compared at a width, all around one runner."""
    runner = assembly.core.runner
    costs = costs_of(runner, width)
    mtp = SchedulerMode.MTP_BATCH
    cores = {PLAIN: engine_of(runner, SchedulerMode.AR_BATCH, 0, width=width)}
    cores |= {f"depth {depth}": engine_of(runner, mtp, depth, width=width) for depth in FIXED_DEPTHS}
    cores[ADAPTIVE] = engine_of(runner, mtp, AUTO, width=width, costs=costs)
    cores[WRONG] = engine_of(WrongHead(runner), mtp, AUTO, width=width, costs=costs)
    if width == 1:
        cores[SERIAL] = engine_of(runner, SchedulerMode.SERIAL, 3, width=1)
        cores[HYPER] = engine_of(runner, SchedulerMode.HYPER, 3, width=1)
    return [Way(name, core, count()) for name, core in cores.items()]


def requests_of(
    assembly: Assembly, prompts: Sequence[Prompt], turn: int, width: int, options: argparse.Namespace
) -> list[Submit]:
    """The requests of one round: the next so many prompts."""
    num_requests = options.requests + 2 * width
    first = (turn + 1) * num_requests
    params = SamplingParams(temperature=options.temperature)
    return [
        submit_of(
            prompts[index % len(prompts)].token_ids,
            params,
            max_tokens=options.new,
            seed=index,
            eos_ids=assembly.limits.eos_ids,
        )
        for index in range(first, first + num_requests)
    ]


def run_block(way: Way, submits: Sequence[Submit], width: int) -> Sample:
    """Keeps `width` requests live until there are too few to go on; what is left then ends uncounted."""
    core, todo = way.core, list(submits)
    counters = core.counters
    num_live, num_tokens, num_decoded, num_rows = 0, 0, 0, 0
    total_s = decode_s = 0.0
    while num_live + len(todo) >= width:
        while num_live < width:
            core.add(replace(todo.pop(0), seq_id=next(way.numbers)))
            num_live += 1
        num_prompt_before, num_rows_before = counters.num_prefill_tokens, counters.num_decode_tokens
        start_s = time.perf_counter()
        outputs = core.step()
        step_s = time.perf_counter() - start_s
        emitted = sum(len(output.token_ids) for output in outputs)
        num_live -= sum(output.finish_reason is not None for output in outputs)
        total_s += step_s
        num_tokens += emitted
        if counters.num_prefill_tokens == num_prompt_before:
            decode_s += step_s
            num_decoded += emitted
            num_rows += counters.num_decode_tokens - num_rows_before
    while core.has_work:
        core.step()
    if num_rows == 0:
        return Sample(num_tokens / total_s, 0.0, 0.0)
    return Sample(num_tokens / total_s, num_decoded / decode_s, num_decoded / num_rows)


def rows_of(width: int, samples: Samples) -> Iterator[Row]:
    for name, of_way in samples.items():
        decode, decode_spread = median_and_spread([sample.decode_tokens_per_s for sample in of_way])
        whole, whole_spread = median_and_spread([sample.tokens_per_s for sample in of_way])
        yield {
            "width": width,
            "way": name,
            "decode tokens/s": decode,
            "decode tokens/s spread": decode_spread,
            "tokens/s": whole,
            "tokens/s spread": whole_spread,
            "tokens a row": statistics.median(sample.tokens_a_row for sample in of_way),
        }


def ratios(width: int, samples: Samples) -> Iterator[Row]:
    """What is asked of each width, by both rates."""
    pairs = [(ADAPTIVE, PLAIN), (ADAPTIVE, best_of_fixed(samples, _decode_rate)), (WRONG, PLAIN)]
    pairs += [(HYPER, SERIAL)] if HYPER in samples else []
    for one, other in pairs:
        decode, decode_spread = median_and_spread(pairwise_ratios(samples, one, other, _decode_rate))
        whole, whole_spread = median_and_spread(pairwise_ratios(samples, one, other, _whole_rate))
        yield {
            "width": width,
            "ratio": f"{one} / {other}",
            "decode tokens/s": decode,
            "decode tokens/s spread": decode_spread,
            "tokens/s": whole,
            "tokens/s spread": whole_spread,
        }


def criteria(width: int, samples: Samples) -> Iterator[Row]:
    if width in LEAST_GAIN:
        gains = pairwise_ratios(samples, ADAPTIVE, PLAIN, _decode_rate)
        yield criterion(f"width {width}, decode, auto / ar_batch", gains, least=LEAST_GAIN[width])
    for name, rate in (("decode", _decode_rate), ("all", _whole_rate)):
        best = best_of_fixed(samples, rate)
        of_best = pairwise_ratios(samples, ADAPTIVE, best, rate)
        yield criterion(f"width {width}, {name}, auto / {best}, the best", of_best, least=LEAST_OF_BEST)
        of_wrong = pairwise_ratios(samples, WRONG, PLAIN, rate)
        yield criterion(f"width {width}, {name}, {WRONG} / ar_batch", of_wrong, least=LEAST_WRONG)
    if HYPER in samples:
        of_hyper = pairwise_ratios(samples, HYPER, SERIAL, _whole_rate)
        yield criterion("all, hyper / serial at depth 3", of_hyper, least=LEAST_HYPER)


def best_of_fixed(samples: Samples, rate: Rate) -> str:
    """The best of ar_batch and the fixed depths by its median: the best of each round would be the luckiest."""
    fixed = [PLAIN, *(f"depth {depth}" for depth in FIXED_DEPTHS)]
    return max(fixed, key=lambda name: statistics.median(map(rate, samples[name])))


def pairwise_ratios(samples: Samples, one: str, other: str, rate: Rate) -> list[float]:
    return [rate(ours) / rate(theirs) for ours, theirs in zip(samples[one], samples[other], strict=True)]


def _decode_rate(sample: Sample) -> float:
    return sample.decode_tokens_per_s


def _whole_rate(sample: Sample) -> float:
    return sample.tokens_per_s


if __name__ == "__main__":
    main()
