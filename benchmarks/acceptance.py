"""How often a head guesses right: acceptance by position on held-out prompts, greedy and sampled.

Counted over whole answers, and over what comes before an answer first repeats four tokens in a row: a small model that
has begun to repeat itself is easy to guess. Every step from the second token on counts, but for those so near to
max_tokens that they had to draft less. What a head does doesn't depend on the mode or on who else is there.

Run: python -m benchmarks.acceptance [--draft-head a.safetensors b.safetensors]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import (
    Answer,
    DraftStep,
    Prompt,
    add_model_arguments,
    answer_all,
    engine_of,
    open_with_head,
    read_prompts,
    submit_of,
)
from benchmarks.report import Row, criterion, publish
from mtplx.batching.state import SchedulerMode
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import Assembly

GRAM = 4
WIDTH = 16
WHOLE, BEFORE_REPEAT = "whole", "before a repeat"
LEAST_FIRST, LEAST_TOKENS = 0.55, 1.9  # greedy, at depth 3
MOST_LOSS = 0.12  # of the first position's acceptance, at a temperature of 0.7


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over steps; `tried[i]` are those in which draft i was made and all before it were accepted."""

    num_steps: int
    num_tokens: int
    tried: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def conditional(self) -> list[float]:
        """How often each position's draft is accepted when all before it were."""
        return [_share(accepted, tried) for accepted, tried in zip(self.accepted, self.tried, strict=True)]

    @property
    def unconditional(self) -> list[float]:
        """In which share of all steps each position's draft is accepted."""
        return [_share(accepted, self.num_steps) for accepted in self.accepted]

    @property
    def tokens_a_step(self) -> float:
        """The one that needs no draft included."""
        return _share(self.num_tokens, self.num_steps)


@dataclass(frozen=True, slots=True)
class Sampling:
    """A temperature, with every prompt once for each seed."""

    temperature: float
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"temperature {self.temperature:g}" if self.temperature else "greedy"


@dataclass(frozen=True, slots=True)
class Told:
    """An answer to a held-out prompt, which may have had `max_tokens`."""

    prompt: Prompt
    answer: Answer
    max_tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--draft-head", nargs="+", default=["auto"], help="head files to compare; auto: the server's")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.7, help="beside greedy")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--prompts", type=int, help="only so many, evenly taken")
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    samplings = [Sampling(0.0, (0,)), Sampling(options.temperature, tuple(options.seeds))]
    rows: list[Row] = []
    kinds: list[Row] = []
    criteria: list[Row] = []
    for head in options.draft_head:
        found = measure(head, samplings, options)
        name = Path(head).stem
        rows += [row for sampling in samplings for row in rows_of(name, sampling, found[sampling], options.depth)]
        kinds += rows_by_kind(name, found[samplings[0]], options.depth)
        criteria += criteria_of(name, [found[sampling] for sampling in samplings], options.depth)
        print(f"{name} is measured", flush=True)
    publish(
        "acceptance",
        rows,
        model=f"{options.model}, depth {options.depth}, answers of at most {options.max_tokens} tokens",
        output=options.output,
        tables={"greedy, by kind of prompt": kinds, "criteria": criteria},
    )


def measure(head: str, samplings: Sequence[Sampling], options: argparse.Namespace) -> dict[Sampling, list[Told]]:
    """Every prompt's answers by one head."""
    assembly = open_with_head(options, head, width=WIDTH, max_tokens=options.max_tokens)
    prompts = read_prompts(assembly)
    some = prompts[:: max(1, len(prompts) // options.prompts)][: options.prompts] if options.prompts else prompts
    found = {sampling: run(assembly, some, sampling, options) for sampling in samplings}
    assembly.core.runner.close()
    return found


def run(assembly: Assembly, prompts: Sequence[Prompt], sampling: Sampling, options: argparse.Namespace) -> list[Told]:
    asked = [(prompt, seed) for seed in sampling.seeds for prompt in prompts]
    params = SamplingParams(temperature=sampling.temperature)
    submits = [
        submit_of(
            prompt.token_ids,
            params,
            max_tokens=options.max_tokens,
            seed=seed,
            eos_ids=assembly.limits.eos_ids,
        )
        for prompt, seed in asked
    ]
    core = engine_of(assembly.core.runner, SchedulerMode.MTP_BATCH, options.depth, width=WIDTH)
    answers = answer_all(core, submits, concurrency=WIDTH)
    return [Told(prompt, answer, options.max_tokens) for (prompt, _), answer in zip(asked, answers, strict=True)]


def rows_of(head: str, sampling: Sampling, told: Sequence[Told], depth: int) -> Iterator[Row]:
    num_repeating = sum(first_repeat(one.answer.token_ids) < len(one.answer.token_ids) for one in told)
    for part in (WHOLE, BEFORE_REPEAT):
        tally = tally_of(told, part, depth)
        yield {
            "head": head,
            "sampling": sampling.name,
            "part": part,
            "answers": len(told),
            "repeating": num_repeating,
            "steps": tally.num_steps,
            **{f"p{i}": rate for i, rate in enumerate(tally.conditional, start=1)},
            **{f"all {i}": rate for i, rate in enumerate(tally.unconditional, start=1)},
            "tokens a step": tally.tokens_a_step,
        }


def rows_by_kind(head: str, told: Sequence[Told], depth: int) -> Iterator[Row]:
    """Acceptance before a repeat, for each kind of prompt."""
    for kind in dict.fromkeys(one.prompt.kind for one in told):
        tally = tally_of([one for one in told if one.prompt.kind == kind], BEFORE_REPEAT, depth)
        yield {
            "head": head,
            "kind": kind,
            "steps": tally.num_steps,
            **{f"all {i}": rate for i, rate in enumerate(tally.unconditional, start=1)},
            "tokens a step": tally.tokens_a_step,
        }


def criteria_of(head: str, told: Sequence[Sequence[Told]], depth: int) -> Iterator[Row]:
    """What a head is wanted to reach; `told` is greedy, then sampled."""
    for part in (WHOLE, BEFORE_REPEAT):
        greedy, sampled = (tally_of(one, part, depth) for one in told)
        first, other = greedy.unconditional[0], sampled.unconditional[0]
        yield criterion(f"{head}: first position, greedy, {part}", [first], least=LEAST_FIRST)
        if depth == 3:
            yield criterion(f"{head}: tokens a step, greedy, {part}", [greedy.tokens_a_step], least=LEAST_TOKENS)
        yield criterion(f"{head}: loss at the first position when sampled, {part}", [first - other], most=MOST_LOSS)


def tally_of(told: Sequence[Told], part: str, depth: int) -> Tally:
    """Counts over the steps of a part, without those that `max_tokens` left too little room for `depth` drafts."""
    steps: list[DraftStep] = []
    for one in told:
        end = len(one.answer.token_ids) if part == WHOLE else first_repeat(one.answer.token_ids)
        last_begin = one.max_tokens - depth - 1
        steps += [step for step in one.answer.steps if step.begin + step.num_tokens <= end and step.begin <= last_begin]
    return tally(steps, depth)


def tally(steps: Sequence[DraftStep], depth: int) -> Tally:
    """Counts acceptance by position.

    Three drafts of which one was accepted: the first was tried and accepted, the second tried, the third not tried.
    """
    return Tally(
        len(steps),
        sum(step.num_tokens for step in steps),
        tuple(sum(step.num_drafts > i and step.num_accepted >= i for step in steps) for i in range(depth)),
        tuple(sum(step.num_accepted > i for step in steps) for i in range(depth)),
    )


def first_repeat(token_ids: Sequence[int]) -> int:
    """How many tokens there are before the one that completes a group of four which was there before; all if none.

    a b c d a b c d: the last d completes the repeat, so 7.
    """
    seen: set[tuple[int, ...]] = set()
    for end in range(GRAM, len(token_ids) + 1):
        gram = tuple(token_ids[end - GRAM : end])
        if gram in seen:
            return end - 1
        seen.add(gram)
    return len(token_ids)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


if __name__ == "__main__":
    main()
