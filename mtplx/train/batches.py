"""Passages to padded batches of similar lengths, in an order drawn anew each time round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtplx.train.shards import Passage

_JITTER_TOKENS = 16.0  # added to lengths before they are sorted, so that neighbours differ each time round


@dataclass(frozen=True, slots=True)
class Batch:
    """Slots 1 to L of B passages; slot p has token p, the state before it, and the state that it should give.

    tokens    x1  x2  x3      [B, L]
    before    h0  h1  h2      [B, L, H]
    target    h1  h2  h3      [B, L, H], the model's own: the head should guess what follows from it
    counts    0   1   0       [B, L]: here the first slot guesses a token of the prompt, and the third lies past the end

    Only guesses of an answer's tokens count: no others are ever made.
    """

    tokens: Tensor
    before: Tensor
    target: Tensor
    counts: Tensor


def make_batch(passages: Sequence[Passage]) -> Batch:
    """One batch of them all, float32."""
    lengths = [len(passage.hidden) - 1 for passage in passages]
    longest, width = max(lengths), passages[0].hidden.shape[1]
    token_BL = torch.zeros(len(passages), longest, dtype=torch.int64)
    hidden_BMH = torch.zeros(len(passages), longest + 1, width)
    counts_BL = torch.zeros(len(passages), longest, dtype=torch.bool)
    for index, (passage, length) in enumerate(zip(passages, lengths, strict=True)):
        token_BL[index, :length] = torch.tensor(passage.token_ids[1 : length + 1])
        hidden_BMH[index, : length + 1] = torch.tensor(passage.hidden)
        first = max(0, passage.answer_start - 2)  # slot p, at index p - 1, guesses token p + 1
        counts_BL[index, first:length] = True
    return Batch(token_BL, hidden_BMH[:, :-1], hidden_BMH[:, 1:], counts_BL)


class Batches:
    """All passages in groups of `size` neighbours by length, the groups in random order; drawn anew each round.

    `batches[i]` follows from the seed and i alone, so that training can go on anywhere.
    """

    def __init__(self, passages: Sequence[Passage], size: int, seed: int) -> None:
        assert passages, "there is nothing to learn from"
        self._passages = passages
        self._size = size
        self._seed = seed
        self._round = -1
        self._groups: list[list[int]] = []

    def __len__(self) -> int:
        """Batches in a round."""
        return -(-len(self._passages) // self._size)

    def __getitem__(self, index: int) -> Batch:
        round_, place = divmod(index, len(self))
        if round_ != self._round:
            self._groups = self._draw(round_)
            self._round = round_
        return make_batch([self._passages[passage] for passage in self._groups[place]])

    def _draw(self, round_: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + round_)
        jitter = (torch.rand(len(self._passages), generator=generator) * _JITTER_TOKENS).tolist()
        order = sorted(range(len(jitter)), key=lambda index: len(self._passages[index].hidden) + jitter[index])
        groups = [order[begin : begin + self._size] for begin in range(0, len(order), self._size)]
        return [groups[group] for group in torch.randperm(len(groups), generator=generator).tolist()]
