"""What shared drafts gain: mtp_cohort_experimental beside mtp_batch with its prefix cache, by the load.

For each width so many clients keep sending the requests of one load; every way answers the same ones in each round, and
each round has documents of its own. Ways are whole engines as a server starts them, one runner each, and live for all
rounds of a load. `tokens/s` counts all steps while all clients are there; a ratio is the median over rounds of two ways
of one round.

Run: python -m benchmarks.cohort [--quick] [--draft-head FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from benchmarks.engines import MAX_MODEL_LEN, add_model_arguments, submit_of
from benchmarks.loads import LOADS
from benchmarks.plots import Plot
from benchmarks.report import Row, criterion, median_and_spread, publish
from benchmarks.speculation import Sample, Samples, Way, pairwise_ratios, run_block
from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import SchedulerMode
from mtplx.batching.suffix_index import CAPACITY, MAX_MATCH, SuffixIndex
from mtplx.config import load_settings
from mtplx.model.machine import physical_cores
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import Assembly, assemble
from mtplx.server.engine import Submit

BASE, COHORT = "mtp_batch", "cohort"
SAMPLED = 0.7  # the temperature of samples; the other loads are greedy
LEAST_SHARED = {1: 1.5, 2: 1.2}  # cohort over mtp_batch on edits and filled templates, by width
LEAST_ELSEWHERE = 0.97
LEAST_TOKENS = {"edits": 1.5, "samples": 1.15}  # tokens a row, cohort over mtp_batch at one fixed depth
MOST_LOOKUP_US = 20.0

Measured = dict[tuple[int, str], Samples]  # by width and load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--draft-head", default="auto", help="a head file, or none; auto: the one of a server")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument(
        "--depth", type=int, default=MAX_DEPTH, help="the fixed depth at which tokens a row are compared"
    )
    parser.add_argument("--pairs", type=int, default=5, help="rounds; in each every way runs once")
    parser.add_argument("--new", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--requests", type=int, default=8, help="requests of a block, and two more for each client")
    parser.add_argument("--quick", action="store_true", help="one short round at widths 1 and 4, to see that it runs")
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    if options.quick:
        options.widths, options.pairs, options.new, options.requests = [1, 4], 1, 48, 4
    measured: Measured = {}
    for width in options.widths:
        for load, samples in measure(width, options):
            measured[width, load] = samples
        report(measured, options)  # of all widths so far: the whole takes half an hour


def report(measured: Measured, options: argparse.Namespace) -> None:
    publish(
        "cohort",
        [row for (width, load), samples in measured.items() for row in rows_of(width, load, samples)],
        model=f"{options.model}, at most {options.new} tokens an answer, {options.threads or physical_cores()} threads",
        output=options.output,
        tables={
            "ratios": [ratios(width, load, samples) for (width, load), samples in measured.items()],
            "criteria": [
                *(row for (width, load), samples in measured.items() for row in criteria(width, load, samples)),
                criterion("one lookup in the index, microseconds", lookup_us(), most=MOST_LOOKUP_US),
            ],
        },
        plot=Plot("width", ("tokens/s", "tokens a row"), "load and way"),
    )


def measure(width: int, options: argparse.Namespace) -> Iterator[tuple[str, Samples]]:
    """Every load in turn. Within one each way runs once a round, each round from another way on; the first is for all
    to learn what their drafts are worth, and isn't counted."""
    for load in options.loads:
        assemblies = assemblies_of(width, load, options)
        ways = [Way(name, assembly.core, count()) for name, assembly in assemblies.items()]
        samples: dict[str, list[Sample]] = {way.name: [] for way in ways}
        for turn in range(-1, options.pairs):
            submits = requests_of(next(iter(assemblies.values())), load, turn, width, options)
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                sample = run_block(way, submits, width)
                if turn >= 0:
                    samples[way.name].append(sample)
        for assembly in assemblies.values():
            assembly.core.runner.close()
        print(f"width {width}, {load} is measured", flush=True)
        yield load, samples


def assemblies_of(width: int, load: str, options: argparse.Namespace) -> dict[str, Assembly]:
    """Both modes, each with depths of its own and, where tokens a row have a limit, at one fixed depth for all."""
    modes = {BASE: SchedulerMode.MTP_BATCH, COHORT: SchedulerMode.MTP_COHORT_EXPERIMENTAL}
    given = {
        "model": options.model,
        "threads": options.threads,
        "draft_head": options.draft_head,
        "decode_batch_max": width,
        "experimental_mtp_cohorts": True,
        "max_model_len": MAX_MODEL_LEN,
        "kv_cache_tokens": (width + 4) * MAX_MODEL_LEN,  # so that what was shared is still there
    }
    given = {name: value for name, value in given.items() if value is not None}
    return {
        name if depth == "auto" else f"{name} depth {depth}": assemble(
            load_settings(given | {"scheduler_mode": mode, "draft_depth": depth})
        )
        for depth in ("auto", *([options.depth] if load in LEAST_TOKENS else []))
        for name, mode in modes.items()
    }


def requests_of(assembly: Assembly, load: str, turn: int, width: int, options: argparse.Namespace) -> list[Submit]:
    """The requests of one round of a load."""
    params = SamplingParams(temperature=SAMPLED if load == "samples" else 0.0)
    return [
        submit_of(
            tuple(assembly.tokenizer.encode(assembly.chat_template.render(one.messages), add_special_tokens=False)),
            params,
            max_tokens=options.new,
            seed=turn + 1,
            eos_ids=assembly.limits.eos_ids,
            choice=one.choice,
        )
        for one in LOADS[load](options.requests + 2 * width, turn + 1)
    ]


def rows_of(width: int, load: str, samples: Samples) -> Iterator[Row]:
    for name, of_way in samples.items():
        whole, whole_spread = median_and_spread([sample.tokens_per_s for sample in of_way])
        yield {
            "width": width,
            "load and way": f"{load}, {name}",
            "tokens/s": whole,
            "tokens/s spread": whole_spread,
            "tokens a row": statistics.median(sample.tokens_a_row for sample in of_way),
        }


def ratios(width: int, load: str, samples: Samples) -> Row:
    whole, spread = median_and_spread(pairwise_ratios(samples, COHORT, BASE, _whole_rate))
    return {"width": width, "load": load, f"tokens/s, {COHORT} / {BASE}": whole, "spread": spread}


def criteria(width: int, load: str, samples: Samples) -> Iterator[Row]:
    least = LEAST_SHARED.get(width, LEAST_ELSEWHERE) if load in ("edits", "template") else LEAST_ELSEWHERE
    gains = pairwise_ratios(samples, COHORT, BASE, _whole_rate)
    yield criterion(f"width {width}, {load}, tokens/s, {COHORT} / {BASE}", gains, least=least)
    if load in LEAST_TOKENS:
        tokens = pairwise_ratios(samples, *fixed_ways(samples), _tokens_a_row)
        yield criterion(f"width {width}, {load}, tokens a row at one depth", tokens, least=LEAST_TOKENS[load])


def fixed_ways(samples: Samples) -> tuple[str, str]:
    """The names of the cohorts' and of mtp_batch's way at the fixed depth."""
    one, other = (next(name for name in samples if name.startswith(f"{mode} depth")) for mode in (COHORT, BASE))
    return one, other


def lookup_us(num_tokens: int = 2 * CAPACITY) -> list[float]:
    """Mean microseconds of a lookup in a full index of text that repeats with changes, and of text that doesn't."""
    rng = random.Random(0)
    page = [rng.randrange(50_000) for _ in range(300)]
    pages = [
        [token if rng.random() < 0.95 else rng.randrange(50_000) for token in page] for _ in range(num_tokens // 300)
    ]
    return [
        _mean_lookup_us([token for one in pages for token in one]),
        _mean_lookup_us(rng.choices(range(50_000), k=num_tokens)),
    ]


def _mean_lookup_us(token_ids: Sequence[int]) -> float:
    index, half, total_s = SuffixIndex(), len(token_ids) // 2, 0.0
    end = index.append(0, token_ids[:half])
    for place in range(half, len(token_ids)):
        tail = token_ids[place - MAX_MATCH : place]
        start_s = time.perf_counter()
        index.find(tail, MAX_DEPTH)
        total_s += time.perf_counter() - start_s
        end = index.append(end, token_ids[place : place + 1])
    return 1e6 * total_s / (len(token_ids) - half)


def _whole_rate(sample: Sample) -> float:
    return sample.tokens_per_s


def _tokens_a_row(sample: Sample) -> float:
    return sample.tokens_a_row


if __name__ == "__main__":
    main()
