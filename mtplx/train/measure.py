"""How often a head is right on passages that it has not learned from, by depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtplx.train.base import Base
from mtplx.train.batches import make_batch
from mtplx.train.head import DraftHead
from mtplx.train.shards import Passage
from mtplx.train.trainer import unroll

_BATCH = 8


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Greedy. `by_depth[d]` is the share of guesses at depth d that are right where all lesser ones were."""

    by_depth: tuple[float, ...]

    @property
    def tokens_per_step(self) -> float:
        """What a step emits on average when it verifies a guess at each of these depths, its own token included."""
        total = chain = 1.0
        for rate in self.by_depth:
            chain *= rate
            total += chain
        return total


def measure_acceptance(
    head: DraftHead, base: Base, draft_ids_R: Tensor, passages: Sequence[Passage], depths: int
) -> Acceptance:
    """Counts over the answers of `passages`.

    A guess is right if it is what the model itself finds likeliest there. Guesses at a greater depth are counted where
    the passage goes on with the likeliest token, as the answer to come would.
    """
    right, asked = [0] * depths, [0] * depths
    output_RH, output_VH = base.output[draft_ids_R].bfloat16(), base.output.bfloat16()
    for begin in range(0, len(passages), _BATCH):
        batch = make_batch(passages[begin : begin + _BATCH])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            likeliest_BL = (batch.target.bfloat16() @ output_VH.T).argmax(-1)
            guesses = [
                draft_ids_R[(state_BLH.bfloat16() @ output_RH.T).argmax(-1)]
                for state_BLH in unroll(head, batch, base.embedding, depths)
            ]
        chain_BL = batch.counts
        goes_on_BL = torch.zeros_like(chain_BL)
        goes_on_BL[:, :-1] = batch.tokens[:, 1:] == likeliest_BL[:, :-1]
        for depth, guess_BL in enumerate(guesses):
            right_BL = chain_BL & (guess_BL == likeliest_BL)
            asked[depth] += int(chain_BL.sum())
            right[depth] += int(right_BL.sum())
            follows_BL = right_BL & goes_on_BL
            chain_BL = torch.zeros_like(chain_BL)
            chain_BL[:, 1:] = follows_BL[:, :-1] & batch.counts[:, 1:]
    return Acceptance(tuple(r / max(1, a) for r, a in zip(right, asked, strict=True)))
