"""The draft head of a native model: builds its cache from the trunk's hidden states and guesses, one call a level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.model.head_file import HeadFile
from mtplx.model.native.formats import Floats
from mtplx.model.native.model import NativeModel
from mtplx.model.native.step import lay_out
from mtplx.model.runner import Choose


class NativeHead:
    """A head in the library beside its trunk; `draft` is that of `DraftingRunner`.

    The library reads the trunk's hidden states where the trunk's steps have left them, by cache slot.
    """

    def __init__(self, model: NativeModel, head: HeadFile) -> None:
        self.max_depth = head.max_depth
        self._model = model
        self._ids_W: npt.NDArray[np.integer] | None = (
            None if head.draft_vocab is None else head.draft_vocab.astype(np.int32)  # as the library reads them
        )

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        """See `DraftingRunner.draft`. Raises: NativeCallError."""
        drafts: list[list[int]] = [[] for _ in requests]
        open_rows = [index for index, request in enumerate(requests) if request.depth]
        plan = StepPlan(tuple(_to_build(request) for request in requests))
        hidden_RD: Floats | None = None
        while True:
            goes_on = any(requests[index].depth > len(drafts[index]) + 1 for index in open_rows)
            arrays = lay_out(plan)
            computed = self._model.step(arrays, with_hidden=goes_on, inputs=hidden_RD)
            if not open_rows:
                break
            chosen = choose(open_rows, computed.logits, self._ids_W, computed.argmax)
            kept = []  # lines of the rows that guess once more
            for line, (index, token_id) in enumerate(zip(open_rows, chosen, strict=True)):
                if token_id is not None:
                    drafts[index].append(token_id)
                    if len(drafts[index]) < requests[index].depth:
                        kept.append(line)
            if not kept:
                break
            assert computed.hidden is not None
            hidden_RD = computed.hidden[[arrays.wanted[line] for line in kept]]
            open_rows = [open_rows[line] for line in kept]
            plan = StepPlan(tuple(_to_guess(requests[index], drafts[index]) for index in open_rows))
        return [tuple(token_ids) for token_ids in drafts]

    def close(self) -> None:
        self._model.close()


def _to_build(request: DraftRequest) -> Row:
    return Row(request.seq_id, request.start, request.token_ids, request.block_ids, num_logits=int(request.depth > 0))


def _to_guess(request: DraftRequest, drafts: Sequence[int]) -> Row:
    """The slot of the last guess, from which the next one follows."""
    return Row(request.seq_id, request.end + len(drafts) - 1, (drafts[-1],), request.block_ids, num_logits=1)
