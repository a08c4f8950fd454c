"""Attention for exact mode: one library call for each token over exactly the keys it sees, in cache order.

The call's shape follows from the token's own position alone, so its bits do too, whoever shares the batch and however
the prompt was cut. Letters of shapes are those of `attention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.torch.batch import FlatBatch, Run
from mtplx.model.torch.paged import PagedCache


@dataclass(frozen=True, slots=True)
class _View:
    """Places `begin` to `end` of the fetched blocks are what the token at flat place `place` sees."""

    place: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Blocks copied out once for all tokens of a run, and each token's part of them."""

    blocks: torch.Tensor
    views: tuple[_View, ...]


class RowAttention:
    """The `Attend` of one padded tile; padding gets zeros. Index arrays are made once for each window width."""

    def __init__(self, cache: PagedCache, batch: FlatBatch) -> None:
        self._cache = cache
        self._batch = batch
        self._fetches: dict[int | None, list[_Fetch]] = {}

    def __call__(self, layer: int, query_NHD: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        if window not in self._fetches:
            self._fetches[window] = [_plan_fetch(run, window) for run in self._batch.runs]
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        num_tokens, num_heads, width = query_NHD.shape
        num_kv_heads = keys.shape[1]
        query_N1KGD = query_NHD.view(num_tokens, 1, num_kv_heads, num_heads // num_kv_heads, width).unbind(0)
        outs: list[torch.Tensor] = []
        for fetch in self._fetches[window]:
            keys_1KLD = _fetch(keys, fetch.blocks)
            values_1KLD = _fetch(values, fetch.blocks)
            for view in fetch.views:
                outs.append(
                    scaled_dot_product_attention(
                        query_N1KGD[view.place],
                        keys_1KLD[:, :, view.begin : view.end],
                        values_1KLD[:, :, view.begin : view.end],
                        scale=scale,
                    )
                )
        if self._batch.num_padding:
            outs.append(outs[0].new_zeros(self._batch.num_padding, *outs[0].shape[1:]))
        return torch.cat(outs).flatten(1, 2)


def _plan_fetch(run: Run, window: int | None) -> _Fetch:
    first_block = run.first_visible(run.start, window) // BLOCK_SIZE
    last_block = (run.end - 1) // BLOCK_SIZE
    base = first_block * BLOCK_SIZE
    views = tuple(
        _View(run.first + offset, run.first_visible(position, window) - base, position + 1 - base)
        for offset, position in enumerate(range(run.start, run.end))
    )
    return _Fetch(torch.tensor(run.block_ids[first_block : last_block + 1]), views)


def _fetch(slots_SKD: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Copies blocks out in order, as [1, K, L, D]; always a copy, so that every call meets the same strides."""
    copied = slots_SKD.view(-1, BLOCK_SIZE, *slots_SKD.shape[1:]).index_select(0, blocks)
    return copied.flatten(0, 1).transpose(0, 1).unsqueeze(0)
