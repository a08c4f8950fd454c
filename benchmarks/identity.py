"""Does the answer depend on mode, concurrency, chunk size or threads? The whole matrix on the real model, resumable.

Run: python -m benchmarks.identity --output benchmarks/results/<date>-identity.json [--runner native] [--no-exact]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import environment
from mtplx.batching.state import SchedulerMode, StepPlan, StopRules
from mtplx.model.runner import Logits, Runner
from mtplx.model.weights import ModelFolder, resolve_model, with_safetensors
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Submit
from mtplx.text.tokenizer import Tokenizer
from tests.drivers import run_closed_loop
from tests.prompts import EIGHT_PROMPTS

MODEL = "smollm2-135m-instruct"
MODES = (SchedulerMode.SERIAL, SchedulerMode.COOPERATIVE, SchedulerMode.AR_BATCH)
CONCURRENCIES = (1, 2, 4, 8, 16)
CHUNKS = (16, 64, 512)  # 512 holds every prompt whole
TEMPERATURES = (0.0, 0.8)
Ids = list[list[int]]


@dataclass(slots=True)
class MarginRecorder:
    """A runner that remembers, for each (history length, chosen id), how far the best logit led the second."""

    inner: Runner
    margins: dict[tuple[int, int], float]

    @property
    def spec(self):  # type: ignore[no-untyped-def]
        return self.inner.spec

    @property
    def num_blocks(self) -> int:
        return self.inner.num_blocks

    @property
    def block_size(self) -> int:
        return self.inner.block_size

    def run(self, plan: StepPlan) -> Logits:
        logits_WV = self.inner.run(plan)
        wanting = (row for row in plan.rows if row.num_logits)
        for row, logits_V in zip(wanting, logits_WV, strict=True):
            second, best = np.partition(logits_V, -2)[-2:]
            self.margins[row.seq_id, row.end] = float(best - second)
        return logits_WV


def submits(tokenizer: Tokenizer, max_tokens: int) -> list[Submit]:
    prompts = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in EIGHT_PROMPTS]
    return [
        Submit(
            index,
            prompt,
            SamplingParams(max_tokens=max_tokens, temperature=temperature),
            seed=11 + index,
            choice=0,
            stops=StopRules(max_tokens),
        )
        for temperature in TEMPERATURES
        for index, prompt in enumerate(prompts)
    ]


def first_divergence(oracle: Ids, ids: Ids) -> tuple[int, int] | None:
    """The request and the place in its answer where `ids` first leaves the oracle; None if it never does."""
    for index, (expected, got) in enumerate(zip(oracle, ids, strict=True)):
        for place, (one, other) in enumerate(zip(expected, got, strict=True)):
            if one != other:
                return index, place
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="kept after every cell; run again to go on")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--runner", choices=["torch", "native"], default="torch")
    parser.add_argument("--threads", nargs="+", type=int, default=[None], help="the matrix once for each number")
    parser.add_argument("--no-exact", dest="exact", action="store_false")
    options = parser.parse_args()
    model = resolve_model(MODEL, with_weights=False)
    todo = submits(Tokenizer.load(model.path), options.max_tokens)
    report = json.loads(options.output.read_text()) if options.output.exists() else {"cells": {}}
    for threads in options.threads:
        runner = load(model, options, threads)
        report |= {"model": MODEL, "runner": asdict(runner.info), "max_tokens": options.max_tokens, **environment()}
        for mode, concurrency, chunk in cells():
            cell = f"{mode} concurrency {concurrency} chunk {chunk} threads {threads or 'default'}"
            if cell not in report["cells"]:
                report["cells"][cell] = run_cell(runner, todo, report, mode, concurrency, chunk)
                options.output.write_text(json.dumps(report, indent=1) + "\n")
                print(cell, report["cells"][cell], flush=True)
        runner.close()


def cells() -> Iterator[tuple[SchedulerMode, int, int]]:
    """Mode, concurrency and chunk size; serial's width is one at any concurrency."""
    for mode in MODES:
        for concurrency in CONCURRENCIES if mode is not SchedulerMode.SERIAL else (1,):
            yield from ((mode, concurrency, chunk) for chunk in CHUNKS)


def load(model: ModelFolder, options: argparse.Namespace, threads: int | None) -> Runner:
    if options.runner == "native":
        from mtplx.model.native.loader import load_native_runner

        return load_native_runner(model, threads=threads, kv_cache_tokens=8192, max_model_len=1024)
    from mtplx.model.torch.loader import load_torch_runner

    return load_torch_runner(
        with_safetensors(model).path,
        device="cpu",
        exact=options.exact,
        threads=threads,
        kv_cache_tokens=8192,
        max_model_len=1024,
    )


def run_cell(
    runner: Runner, todo: list[Submit], report: dict, mode: SchedulerMode, concurrency: int, chunk: int
) -> dict[str, object]:
    """Runs one cell; the first one ever run is the oracle, kept in the report."""
    recorder = MarginRecorder(runner, {})
    ids = [list(answer) for answer in run_closed_loop(recorder, todo, mode=mode, concurrency=concurrency, chunk=chunk)]
    oracle = report.setdefault("oracle_ids", ids)
    divergence = first_divergence(oracle, ids)
    if divergence is None:
        return {"identical": True, "answers": len(ids)}
    index, place = divergence
    margin = recorder.margins[index, len(todo[index].prompt_ids) + place]
    differing = sum(one != other for one, other in zip(oracle, ids, strict=True))
    return {
        "identical": False,
        "differing_answers": differing,
        "first": {"request": index, "token": place, "logit_margin": margin},
    }


if __name__ == "__main__":
    main()
