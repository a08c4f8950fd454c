"""Drafts and verifies by plans made by hand: no scheduler, whose faults could hide the head's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.model.runner import DraftingRunner, Logits


@dataclass(frozen=True, slots=True)
class Drafting:
    """What one prompt became, and each draft on the way: how many tokens were known, and the guesses."""

    token_ids: tuple[int, ...]
    drafts: tuple[tuple[int, tuple[int, ...]], ...]
    num_accepted: int

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that were right."""
        return self.num_accepted / sum(len(guesses) for _, guesses in self.drafts)


@dataclass(slots=True)
class _Sequence:
    token_ids: list[int]
    num_prompt: int
    num_end: int
    depth: int
    block_ids: tuple[int, ...]
    num_computed: int = 0
    num_built: int = 1  # slot 0 of the head stays empty
    drafts: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    num_accepted: int = 0

    @property
    def is_decoding(self) -> bool:
        return self.num_prompt < len(self.token_ids) == self.num_computed + 1

    def request(self) -> DraftRequest:
        """Builds all slots that can be built; guesses once the prompt is computed, within the answer."""
        end = min(self.num_computed + 1, len(self.token_ids))
        depth = min(self.depth, self.num_end - len(self.token_ids) - 1) if self.is_decoding else 0
        return DraftRequest(0, self.num_built, tuple(self.token_ids[self.num_built : end]), self.block_ids, depth)


def draft_together(
    runner: DraftingRunner,
    prompts: Sequence[Sequence[int]],
    num_new: int,
    depths: Sequence[int],
    *,
    chunk: int = 10_000,
    seed: int = 0,
) -> list[Drafting]:
    """Returns `num_new` greedy tokens for each prompt, drafted at its own depth, in blocks scattered over the cache.

    Prompts are computed in chunks beside others' decoding, and each sequence sits a step out now and then.
    """
    rng = random.Random(seed)
    free = list(range(runner.num_blocks))
    rng.shuffle(free)
    sequences = []
    for prompt, depth in zip(prompts, depths, strict=True):
        num_end = len(prompt) + num_new
        blocks = tuple(free.pop() for _ in range(-(-num_end // runner.block_size)))
        sequences.append(_Sequence(list(prompt), len(prompt), num_end, depth, blocks))
    while alive := [one for one in sequences if len(one.token_ids) < one.num_end]:
        chosen = [one for one in alive if rng.random() < 0.8] or alive
        rng.shuffle(chosen)
        _step(runner, chosen, chunk)
    return [Drafting(tuple(one.token_ids[one.num_prompt :]), tuple(one.drafts), one.num_accepted) for one in sequences]


def greedy(
    requests: Sequence[int],
    logits_RW: Logits,
    ids_W: npt.NDArray[np.integer] | None = None,
    argmax_R: Sequence[int] | None = None,
) -> list[int | None]:
    """A `Choose` without noise, filters or ends; a runner that says where the largest logits are must be right."""
    assert len(requests) == len(logits_RW)
    columns = logits_RW.argmax(axis=1)
    assert argmax_R is None or list(argmax_R) == columns.tolist()
    return [int(token_id) for token_id in (columns if ids_W is None else ids_W[columns])]


def _step(runner: DraftingRunner, chosen: list[_Sequence], chunk: int) -> None:
    requests = [one.request() for one in chosen]
    asked = [index for index, request in enumerate(requests) if request.token_ids]
    drafts = dict(zip(asked, runner.draft([requests[index] for index in asked], greedy), strict=True))
    rows = []
    for index, one in enumerate(chosen):
        one.num_built = max(one.num_built, requests[index].end)
        guesses = drafts.get(index, ())
        assert len(guesses) == requests[index].depth
        if guesses:
            one.drafts.append((len(one.token_ids), guesses))
        known = one.token_ids[one.num_computed : one.num_computed + chunk]
        is_last = one.num_computed + len(known) == len(one.token_ids)
        num_logits = 1 + len(guesses) if is_last else 0
        rows.append(Row(0, one.num_computed, (*known, *guesses), one.block_ids, num_logits, len(guesses)))
    logits = iter(runner.run(StepPlan(tuple(rows))))
    for one, row in zip(chosen, rows, strict=True):
        one.num_computed = row.end - row.num_drafts
        if row.num_logits:
            _commit(one, row.draft_ids, [int(next(logits).argmax()) for _ in range(row.num_logits)])


def _commit(one: _Sequence, guesses: tuple[int, ...], found: list[int]) -> None:
    num_right = next((k for k, guess in enumerate(guesses) if guess != found[k]), len(guesses))
    one.token_ids += found[: num_right + 1]
    one.num_computed += num_right
    one.num_accepted += num_right
