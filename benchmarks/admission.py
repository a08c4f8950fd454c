"""How long short requests wait beside a long answer: steps and milliseconds to the first token, and from end to answer.

A long answer runs; eight held-out prompts arrive at once. Counted from the first step that could take them in.

Run: python -m benchmarks.admission [--draft-head FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.engines import (
    AUTO,
    add_model_arguments,
    costs_of,
    engine_of,
    open_with_head,
    read_prompts,
    submit_of,
)
from benchmarks.report import Row, criterion, median_and_spread, publish
from mtplx.batching.state import SchedulerMode
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import Assembly
from mtplx.server.engine import Cancel, EngineCore

NUM_SHORT, WIDTH = 8, 16
MODES = (SchedulerMode.MTP_BATCH, SchedulerMode.COOPERATIVE, SchedulerMode.AR_BATCH)
LONG_TOKENS, STEPS_ALONE = 400, 10
MOST_STEPS = 5.0  # the median


@dataclass(slots=True)
class Round:
    """What the short requests and the long one saw; waits are from the arrival, in steps and in seconds."""

    wait_steps: list[int] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)  # between two steps that brought tokens of the long answer
    num_ended: int = 0
    num_ended_at_once: int = 0  # short answers whose end came with their last tokens, while the long one ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--draft-head", default="auto", help="a head file; auto is the one that a server would use")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new", type=int, default=16, help="most tokens of a short answer")
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    assembly = open_with_head(options, options.draft_head, width=WIDTH, max_tokens=LONG_TOKENS)
    rounds: dict[SchedulerMode, list[Round]] = {mode: [] for mode in MODES}
    for turn in range(options.rounds):
        for mode in MODES:
            rounds[mode].append(run_round(assembly, mode, turn, options.new))
    assembly.core.runner.close()
    publish(
        "admission",
        [row_of(mode, of_mode) for mode, of_mode in rounds.items()],
        model=f"{options.model}, a long answer and {NUM_SHORT} of at most {options.new} tokens",
        output=options.output,
        tables={"criteria": [row for mode, of_mode in rounds.items() for row in criteria(mode, of_mode)]},
    )


def run_round(assembly: Assembly, mode: SchedulerMode, turn: int, max_tokens: int) -> Round:
    """One long answer of a fixed length; the short ones arrive together once it is well on its way."""
    runner, prompts = assembly.core.runner, read_prompts(assembly)
    is_drafting = mode is not SchedulerMode.AR_BATCH
    costs = costs_of(runner, WIDTH) if is_drafting else None
    core = engine_of(runner, mode, AUTO if is_drafting else 0, width=WIDTH, costs=costs)
    greedy, eos_ids = SamplingParams(temperature=0), assembly.limits.eos_ids
    core.add(submit_of(prompts[0].token_ids, greedy, max_tokens=LONG_TOKENS, seed=0, eos_ids=frozenset()))
    while core.counters.num_decode_tokens < STEPS_ALONE:
        core.step()
    for number in range(1, 1 + NUM_SHORT):
        prompt = prompts[(turn * NUM_SHORT + number) % len(prompts)]
        submit = submit_of(prompt.token_ids, greedy, max_tokens=max_tokens, seed=0, eos_ids=eos_ids)
        core.add(replace(submit, seq_id=number))
    return watch(core)


def watch(core: EngineCore) -> Round:
    """Steps until all short ones have ended, then ends the long one."""
    found, waiting = Round(), set(range(1, 1 + NUM_SHORT))
    start_s = last_s = time.perf_counter()
    step = 0
    while found.num_ended < NUM_SHORT:
        step += 1
        outputs = core.step()
        now_s = time.perf_counter()
        for output in outputs:
            if output.seq_id == 0:
                assert output.finish_reason is None, "the long answer was too short"
                found.gaps_s.append(now_s - last_s)
                last_s = now_s
                continue
            if output.seq_id in waiting:
                waiting.remove(output.seq_id)
                found.wait_steps.append(step)
                found.wait_s.append(now_s - start_s)
            found.num_ended += output.finish_reason is not None
            found.num_ended_at_once += output.finish_reason is not None and bool(output.token_ids)
    core.cancel(Cancel(0))
    return found


def row_of(mode: SchedulerMode, rounds: Sequence[Round]) -> Row:
    steps, steps_spread = median_and_spread([steps for one in rounds for steps in one.wait_steps])
    wait, wait_spread = median_and_spread([1000 * wait_s for one in rounds for wait_s in one.wait_s])
    gap, gap_spread = median_and_spread([1000 * max(one.gaps_s) for one in rounds])
    return {
        "mode": mode.value,
        "steps to the first token": steps,
        "steps spread": steps_spread,
        "ms to the first token": wait,
        "ms spread": wait_spread,
        "ms, longest gap of the long answer": gap,
        "gap spread": gap_spread,
        "ended with their last token": f"{sum(one.num_ended_at_once for one in rounds)} of {NUM_SHORT * len(rounds)}",
    }


def criteria(mode: SchedulerMode, rounds: Sequence[Round]) -> Iterator[Row]:
    if mode is SchedulerMode.MTP_BATCH:  # ar_batch takes turns between prompts and decoding, so twice the steps
        steps = [float(steps) for one in rounds for steps in one.wait_steps]
        yield criterion(f"{mode}: steps to the first token", steps, most=MOST_STEPS)
    shares = [one.num_ended_at_once / NUM_SHORT for one in rounds]
    yield criterion(f"{mode}: share that ended with their last token", shares, least=1.0)


if __name__ == "__main__":
    main()
