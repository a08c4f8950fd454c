"""Drafting with a head whose cache is paged like the model's: builds slots of the model's hidden states, then guesses.

Letters of shapes: N flat tokens, R rows that guess, D hidden, W ids that the head can guess.

A head is one or several modules. Module 0 makes its slot p of the model's hidden state of position p - 1 and of token
p, module i of module i - 1's output at slot p - 1 and of token p, so its first slot is i + 1. Module i guesses at level
i; beyond the last module's level that module goes on from its own output.

    two modules, tokens known up to 4, depth 3, first call
    level 0    module 0 builds slots 1 2 3 4      slot 4 guesses g5
    level 1    module 1 builds slots 2 3 4, 5     slot 5, of module 0's slot 4 and g5, guesses g6
    level 2    module 1 builds slot 6             of its own slot 5 and g6; guesses g7

Source: DeepSeek-V3, arXiv 2412.19437, section 2.2; slots and modules in turn as in transformers' `MtpModel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.model.runner import Choose
from mtplx.model.torch.attention import PagedStep
from mtplx.model.torch.batch import FlatBatch, flatten, slots_before
from mtplx.model.torch.group_attention import GroupAttention
from mtplx.model.torch.output import OutputHead, to_logits
from mtplx.model.torch.paged import PagedCache


class DraftModules(Protocol):
    """The networks of a head. Layers of its cache are numbered from 0 over all modules."""

    @property
    def num_modules(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    def forward(
        self, module: int, token_ids: torch.Tensor, hidden_ND: torch.Tensor, positions: torch.Tensor, step: PagedStep
    ) -> torch.Tensor:
        """Returns out_ND, after the module's last norm, and writes the cache entries of its layers."""
        ...


class TorchHead:
    """A head with its own cache and the hidden states that it starts from, both at the slots of the model's blocks.

    `ids_W` None means that `output` covers the whole vocabulary.
    """

    def __init__(
        self,
        modules: DraftModules,
        output: OutputHead,
        cache: PagedCache,
        dtype: torch.dtype,
        ids_W: npt.NDArray[np.integer] | None = None,
    ) -> None:
        self.max_depth = MAX_DEPTH
        self._modules = modules
        self._output = output
        self._cache = cache
        self._ids_W = ids_W
        # What module i reads: the model's hidden states for the first, the module before it for the others.
        self._inputs = [cache.zeros(modules.hidden_size, dtype) for _ in range(modules.num_modules)]

    def keep(self, slots_N: torch.Tensor, hidden_ND: torch.Tensor) -> None:
        """Remembers the model's hidden states of positions that it has just computed."""
        self._inputs[0].index_copy_(0, slots_N, hidden_ND)

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        """See `DraftingRunner.draft`."""
        guesses: list[list[int]] = [[] for _ in requests]
        guessing = [index for index, request in enumerate(requests) if request.depth > 0]
        own_RD: torch.Tensor | None = None  # of the rows that guess, at their last slots
        level = 0
        while guessing or level < self._modules.num_modules:
            rows = self._rows(requests, guesses, guessing, level)
            if rows:
                own_RD = self._compute(rows, level, own_RD)
            if guessing:
                assert own_RD is not None
                found = choose(guessing, to_logits(self._output(own_RD)), self._ids_W)
                going_on = []
                for line, (index, token_id) in enumerate(zip(guessing, found, strict=True)):
                    if token_id is not None:
                        guesses[index].append(token_id)
                        if requests[index].depth > level + 1:
                            going_on.append(line)
                guessing = [guessing[line] for line in going_on]
                own_RD = own_RD[going_on]
            level += 1
        return [tuple(tokens) for tokens in guesses]

    def _rows(
        self, requests: Sequence[DraftRequest], guesses: list[list[int]], guessing: list[int], level: int
    ) -> list[Row]:
        """The slots to build at this level; a row that guesses wants its last slot's output."""
        if level >= self._modules.num_modules:
            return [
                Row(-1, requests[index].end + level - 1, tuple(guesses[index][-1:]), requests[index].block_ids, 1)
                for index in guessing
            ]
        rows = []
        for index, request in enumerate(requests):
            is_guessing = index in guessing
            token_ids = (*request.token_ids, *guesses[index]) if is_guessing else request.token_ids
            start = max(request.start, level + 1)
            token_ids = token_ids[start - request.start :]
            if token_ids:
                rows.append(Row(request.seq_id, start, token_ids, request.block_ids, int(is_guessing)))
        return rows

    def _compute(self, rows: list[Row], level: int, own_RD: torch.Tensor | None) -> torch.Tensor:
        """Builds the rows' slots and returns the wanted ones' outputs as own_RD."""
        last = self._modules.num_modules - 1
        module = min(level, last)
        batch = flatten(StepPlan(tuple(rows)), origin=module + 1)
        if level > last:
            assert own_RD is not None
            hidden_ND = own_RD
        else:
            hidden_ND = self._inputs[module].index_select(0, self._tensor(slots_before(batch)))
        out_ND = self._forward(module, batch, hidden_ND)
        if module < last:
            self._inputs[module + 1].index_copy_(0, self._tensor(batch.slots), out_ND)
        return out_ND.index_select(0, self._tensor(batch.wanted))

    def _forward(self, module: int, batch: FlatBatch, hidden_ND: torch.Tensor) -> torch.Tensor:
        step = PagedStep(self._cache, self._tensor(batch.slots), GroupAttention(self._cache, batch))
        return self._modules.forward(
            module, self._tensor(batch.token_ids), hidden_ND, self._tensor(batch.positions), step
        )

    def _tensor(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._cache.device)
