"""Trains a head on passages: first towards the model's next hidden state, then towards its distribution, at each depth.

regression        smooth L1 between g0(p) and h(p), each number scaled by its deviation: quick, and gets near
cross-entropy     of softmax(W g_d(p)) against softmax(W h(p)) over the draft vocabulary; depth 0 alone at first,
                  which is quick, then all depths d = 0, 1, ..
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mtplx.train.base import Base
from mtplx.train.batches import Batch, Batches
from mtplx.train.head import DraftHead
from mtplx.train.loss import soft_cross_entropy
from mtplx.train.shards import Passage

_WARM_UP_STEPS = 100
_DEPTH_WEIGHT = 0.8  # of each depth's loss against the one before: it is reached that much more rarely
_LAST_RATE = 0.02  # of the learning rate, at the very end
_MAX_GRADIENT = 1.0  # norm


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a head is trained. Rounds are times through the text, and may be broken."""

    num_blocks: int = 1
    depths: int = 3
    regression_rounds: float = 1.0
    first_depth_rounds: float = 5.0
    all_depths_rounds: float = 1.0
    regression_rate: float = 1e-3
    cross_entropy_rate: float = 1e-3
    batch_passages: int = 8
    seed: int = 0


class Trainer:
    """A head between steps. Resumed from a checkpoint it goes on exactly as it would have."""

    def __init__(
        self, head: DraftHead, base: Base, draft_ids_R: Tensor, passages: Sequence[Passage], recipe: Recipe
    ) -> None:
        self.head = head
        self.num_done = 0
        self._recipe = recipe
        self._batches = Batches(passages, recipe.batch_passages, recipe.seed)
        self._num_regression = round(recipe.regression_rounds * len(self._batches))
        self._num_before_all_depths = self._num_regression + round(recipe.first_depth_rounds * len(self._batches))
        self.num_steps = self._num_before_all_depths + round(recipe.all_depths_rounds * len(self._batches))
        self._embedding_VH = base.embedding
        self._output_RH = base.output[draft_ids_R].bfloat16()
        self._deviation_H = _deviation(passages)
        self._optimizer = torch.optim.AdamW(
            head.parameters(), lr=recipe.regression_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    @property
    def phase(self) -> str:
        return "regression" if self.num_done < self._num_regression else "cross-entropy"

    def step(self) -> float:
        """One batch more; its loss at the first depth."""
        batch = self._batches[self.num_done]
        self._optimizer.param_groups[0]["lr"] = self._rate()
        with torch.autocast("cpu", torch.bfloat16):
            losses = self._regression(batch) if self.phase == "regression" else self._cross_entropy(batch)
            loss = sum(weight * loss for weight, loss in losses)
        assert isinstance(loss, Tensor)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), _MAX_GRADIENT)
        self._optimizer.step()
        self.num_done += 1
        return losses[0][1].item()

    def save(self, path: Path) -> None:
        """Writes a checkpoint, whole or not at all."""
        part = path.with_suffix(".part")
        torch.save(
            {"num_done": self.num_done, "head": self.head.state_dict(), "optimizer": self._optimizer.state_dict()}, part
        )
        part.replace(path)

    def load(self, path: Path) -> None:
        """Takes up a checkpoint of the same recipe and text."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.num_done = state["num_done"]
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _regression(self, batch: Batch) -> list[tuple[float, Tensor]]:
        (state_BLH,) = unroll(self.head, batch, self._embedding_VH, 1)
        counts = batch.counts
        scaled, target = state_BLH[counts] / self._deviation_H, batch.target[counts] / self._deviation_H
        return [(1.0, functional.smooth_l1_loss(scaled, target, beta=0.5))]

    def _cross_entropy(self, batch: Batch) -> list[tuple[float, Tensor]]:
        losses = []
        depths = 1 if self.num_done < self._num_before_all_depths else self._recipe.depths
        for depth, state_BLH in enumerate(unroll(self.head, batch, self._embedding_VH, depths)):
            counts = batch.counts.clone()
            counts[:, :depth] = False  # the first slots have no guess so deep
            loss = soft_cross_entropy(state_BLH[counts], batch.target[counts], self._output_RH)
            losses.append((_DEPTH_WEIGHT**depth, loss))
        return losses

    def _rate(self) -> float:
        """Rises at the beginning of each phase; falls to half in the first, along a cosine to almost 0 in the last."""
        recipe, first = self._recipe, self._num_regression
        if self.num_done < first:
            return recipe.regression_rate * _warm_up(self.num_done) * (1 - 0.5 * self.num_done / first)
        done = (self.num_done - first) / (self.num_steps - first)
        falling = _LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * done)) / 2
        return recipe.cross_entropy_rate * _warm_up(self.num_done - first) * falling


def unroll(head: DraftHead, batch: Batch, embedding_VH: Tensor, depths: int) -> list[Tensor]:
    """The head's states [B, L, H] at each depth, each made from those of the depth before (see `DraftHead`)."""
    states, memory = [], head.begin()
    before_BLH, embedded_BLH = batch.before, embedding_VH[batch.tokens]
    for _ in range(depths):
        state_BLH = head(before_BLH, embedded_BLH, memory)
        states.append(state_BLH)
        before_BLH = torch.cat((torch.zeros_like(state_BLH[:, :1]), state_BLH[:, :-1]), dim=1)
    return states


def _warm_up(step: int) -> float:
    return min(1.0, (step + 1) / _WARM_UP_STEPS)


def _deviation(passages: Sequence[Passage]) -> Tensor:
    """Of each number of the hidden states [H], over the first passages."""
    sample = np.concatenate([passage.hidden for passage in passages[:200]]).astype(np.float32)
    return torch.from_numpy(sample.std(axis=0) + 1e-6)
