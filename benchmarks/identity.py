"""Does an answer depend on mode, drafts, concurrency, chunks or threads? The whole matrix on the real model, resumable.

Held-out prompts, each greedy, seeded at a temperature of 0.7, and seeded at 1.0 with top_p and penalties, all with
logprobs; every request joins at a random moment. The first cell is the oracle: serial, without drafts. Ids and logprobs
of every other cell must be its own. Without a draft head the matrix has the cells that need none.

Run: python -m benchmarks.identity --runner native --output benchmarks/results/<date>-identity.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import (
    AUTO,
    Answer,
    WrappedRunner,
    answer_all,
    costs_of,
    engine_of,
    open_model,
    read_prompts,
    submit_of,
)
from benchmarks.report import environment
from mtplx.batching.speculation import Costs
from mtplx.batching.state import SchedulerMode, StepPlan
from mtplx.model.runner import Logits, Runner, drafting_runner
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import Assembly
from mtplx.server.engine import Submit

SERIAL, COOPERATIVE, AR_BATCH = SchedulerMode.SERIAL, SchedulerMode.COOPERATIVE, SchedulerMode.AR_BATCH
MTP_BATCH, HYPER = SchedulerMode.MTP_BATCH, SchedulerMode.HYPER
COHORT = SchedulerMode.MTP_COHORT_EXPERIMENTAL
CONCURRENCIES = (1, 2, 8, 16)
CHUNKS = (64, 16, 512)  # 512 holds every prompt whole; all but the first only with --chunks
TOP_LOGPROBS = 2
WISHES: tuple[dict[str, float], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5, "repetition_penalty": 1.2},
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of computing all answers; depth None is auto."""

    mode: SchedulerMode
    depth: int | None
    concurrency: int
    chunk: int

    def __str__(self) -> str:
        depth = "auto" if self.depth is None else self.depth
        return f"{self.mode} depth {depth} concurrency {self.concurrency} chunk {self.chunk}"


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer as the report keeps it: its ids, and a hash of its logprobs."""

    ids: str
    logprobs_sha256: str


class MarginRecorder(WrappedRunner):
    """Remembers, for each (sequence, history length), how far the best logit led the second."""

    def __init__(self, inner: Runner) -> None:
        super().__init__(inner)
        self.margins: dict[tuple[int, int], float] = {}

    def run(self, plan: StepPlan) -> Logits:
        """Lines after a wrong draft are of a history that never was; the next step writes over them."""
        logits_WV = self.inner.run(plan)
        seconds_and_bests = np.partition(logits_WV, -2, axis=1)[:, -2:]
        ends = [(row.seq_id, row.end - back) for row in plan.rows for back in reversed(range(row.num_logits))]
        for key, (second, best) in zip(ends, seconds_and_bests.tolist(), strict=True):
            self.margins[key] = best - second
        return logits_WV


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="kept after every cell; run again to go on")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-head", default="auto", help="a head file, or none; auto: the one of a server")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--runner", choices=["torch", "native"], default="native")
    parser.add_argument("--chunks", nargs="+", type=int, choices=CHUNKS, default=CHUNKS[:1])
    parser.add_argument("--threads", nargs="+", type=int, default=[None], help="the matrix once for each number")
    parser.add_argument("--no-exact", dest="exact", action="store_false", help="of the torch runner")
    options = parser.parse_args()
    report = json.loads(options.output.read_text()) if options.output.exists() else {"cells": {}}
    for threads in options.threads:
        assembly = open_model(
            options.model,
            options.draft_head,
            width=max(CONCURRENCIES),
            max_tokens=options.max_tokens,
            threads=threads,
            runner=options.runner,
            exact=options.exact,
        )
        runner = assembly.core.runner
        asked = {"model": options.model, "prompts": options.prompts, "max_tokens": options.max_tokens}
        if report.get("asked", asked) != asked:
            parser.error(f"{options.output} holds the answers to other requests: {report['asked']}")
        report |= {"asked": asked, "runner": asdict(runner.info), **environment()}
        todo = submits(assembly, options.prompts, options.max_tokens)
        has_head = drafting_runner(runner) is not None
        costs = costs_of(runner, max(CONCURRENCIES)) if has_head else None
        for cell in cells(options.chunks, has_head=has_head):
            name = f"{cell} threads {threads or 'default'}"
            if name not in report["cells"]:
                report["cells"][name] = run_cell(runner, todo, report, cell, costs)
                options.output.write_text(json.dumps(report, indent=1) + "\n")
                print(name, report["cells"][name], flush=True)
        runner.close()


def cells(chunks: Sequence[int], *, has_head: bool) -> Iterator[Cell]:
    """The oracle first. The width of serial and hyper is one, whatever the concurrency."""
    for chunk in chunks:
        yield Cell(SERIAL, 0, 1, chunk)
        if has_head:
            yield Cell(SERIAL, 3, 1, chunk)
            yield from (Cell(HYPER, depth, 1, chunk) for depth in (3, AUTO))
        for concurrency in CONCURRENCIES:
            yield Cell(COOPERATIVE, 0, concurrency, chunk)
            yield Cell(AR_BATCH, 0, concurrency, chunk)
            if has_head:
                yield Cell(COOPERATIVE, AUTO, concurrency, chunk)
                yield from (Cell(MTP_BATCH, depth, concurrency, chunk) for depth in (1, 2, 4, 8, AUTO))
                yield from (Cell(COHORT, depth, concurrency, chunk) for depth in (4, AUTO))


def submits(assembly: Assembly, num_prompts: int, max_tokens: int) -> list[Submit]:
    """Every prompt under every wish; prompts evenly taken over all kinds."""
    prompts = read_prompts(assembly)
    some = [prompts[index * len(prompts) // num_prompts] for index in range(num_prompts)]
    return [
        submit_of(
            prompt.token_ids,
            SamplingParams(logprobs=TOP_LOGPROBS, **wish),
            max_tokens=max_tokens,
            seed=11 + index,
            eos_ids=assembly.limits.eos_ids,
        )
        for wish in WISHES
        for index, prompt in enumerate(some)
    ]


def run_cell(
    runner: Runner, todo: Sequence[Submit], report: dict[str, Any], cell: Cell, costs: Costs | None = None
) -> dict[str, object]:
    """Runs one cell; the first one ever run is the oracle, whose answers are kept in the report."""
    recorder = MarginRecorder(runner)
    core = engine_of(
        recorder,
        cell.mode,
        cell.depth,
        width=cell.concurrency,
        costs=costs,
        chunk=cell.chunk,
        prefix_salt=b"identity" if cell.mode is COHORT else None,  # and so its prompts share their beginnings
    )
    rng = random.Random(str(cell))
    answers = answer_all(core, todo, concurrency=cell.concurrency, rng=rng)
    kept = [kept_of(answer) for answer in answers]
    oracle = [Kept(**one) for one in report.setdefault("oracle", [asdict(one) for one in kept])]
    drafts = core.counters.drafts
    return {
        "answers": len(kept),
        "tokens": sum(len(answer.token_ids) for answer in answers),
        "accepted_drafts": drafts.num_accepted_tokens,
        "refused_drafts": drafts.num_draft_tokens - drafts.num_accepted_tokens,
        **compare(oracle, kept, todo, recorder),
    }


def kept_of(answer: Answer) -> Kept:
    digest = hashlib.sha256(repr(answer.logprobs).encode()).hexdigest()
    return Kept(" ".join(map(str, answer.token_ids)), digest)


def compare(
    oracle: Sequence[Kept], kept: Sequence[Kept], todo: Sequence[Submit], recorder: MarginRecorder
) -> dict[str, object]:
    """Whether all are equal; if not, how many differ, and where ids first part, with the logits' margin."""
    if list(oracle) == list(kept):
        return {"identical": True}
    differing = [index for index, (one, other) in enumerate(zip(oracle, kept, strict=True)) if one != other]
    index = differing[0]
    found: dict[str, object] = {"identical": False, "differing_answers": len(differing), "first_request": index}
    place = first_difference(oracle[index].ids.split(), kept[index].ids.split())
    if place is not None:
        found["first_token"] = place
        found["logit_margin"] = recorder.margins.get((index, len(todo[index].prompt_ids) + place))
    return found


def first_difference(expected: Sequence[str], got: Sequence[str]) -> int | None:
    """The first place where two answers differ, their end included; None where only logprobs do."""
    if expected == got:
        return None
    same = (one == other for one, other in zip(expected, got, strict=False))
    return next((place for place, is_same in enumerate(same) if not is_same), min(len(expected), len(got)))


if __name__ == "__main__":
    main()
