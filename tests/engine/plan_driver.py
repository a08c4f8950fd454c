"""Generates with a runner by plans made by hand: no scheduler, whose faults could hide the runner's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mtplx.batching.state import Row, StepPlan
from mtplx.model.runner import Runner


@dataclass(slots=True)
class _Growing:
    """One sequence; its blocks lie anywhere in the cache."""

    seq_id: int
    token_ids: list[int]
    block_ids: tuple[int, ...]
    num_computed: int = 0
    rows_of_logits: list[bytes] = field(default_factory=list)

    def row(self, most: int) -> Row:
        stop = min(len(self.token_ids), self.num_computed + most)
        return Row(
            self.seq_id,
            self.num_computed,
            tuple(self.token_ids[self.num_computed : stop]),
            self.block_ids,
            num_logits=int(stop == len(self.token_ids)),
        )


@dataclass(frozen=True, slots=True)
class Generated:
    """What one prompt became, and the bits of the logits behind every emitted token."""

    token_ids: tuple[int, ...]
    logits: tuple[bytes, ...]


def generate_together(
    runner: Runner, prompts: Sequence[Sequence[int]], num_new: int, *, chunk: int = 10_000, seed: int = 0
) -> list[Generated]:
    """Returns `num_new` greedy tokens for each prompt, all in one batch: prefill chunks of at most `chunk` tokens ride
    along with others' decoding, rows come in random order, and each sequence sits a step out now and then."""
    rng = random.Random(seed)
    free = list(range(runner.num_blocks))
    rng.shuffle(free)
    growing = []
    for seq_id, prompt in enumerate(prompts):
        num_blocks = -(-(len(prompt) + num_new) // runner.block_size)
        growing.append(_Growing(seq_id, list(prompt), tuple(free[:num_blocks])))
        free = free[num_blocks:]
    ends = [len(prompt) + num_new for prompt in prompts]
    while any(len(one.token_ids) < end for one, end in zip(growing, ends, strict=True)):
        alive = [one for one, end in zip(growing, ends, strict=True) if len(one.token_ids) < end]
        chosen = [one for one in alive if rng.random() < 0.9] or alive
        rng.shuffle(chosen)
        _step(runner, chosen, chunk)
    return [
        Generated(tuple(one.token_ids[len(prompt) :]), tuple(one.rows_of_logits))
        for one, prompt in zip(growing, prompts, strict=True)
    ]


def _step(runner: Runner, chosen: list[_Growing], chunk: int) -> None:
    plan = StepPlan(tuple(one.row(chunk) for one in chosen))
    logits = iter(runner.run(plan))
    for one, row in zip(chosen, plan.rows, strict=True):
        one.num_computed = row.end
        if row.num_logits:
            row_of_logits = next(logits)
            one.rows_of_logits.append(row_of_logits.tobytes())
            one.token_ids.append(int(np.argmax(row_of_logits)))
