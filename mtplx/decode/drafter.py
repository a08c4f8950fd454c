"""Draws drafts from a head's logits as the next-token function would from the model's: same noise, same filters.

A head that is nearly right then guesses right even where the answer is sampled, since both draw with the same luck.

Source: Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative decoding",
arXiv 2408.07978.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mtplx.batching.state import DraftRequest
from mtplx.decode.next_token import Logits, greedy_tokens, id_at
from mtplx.decode.sampler import Sampler, SamplerEntry
from mtplx.errors import GenerationError


class DraftChooser:
    """The `choose` of one `draft` call. The sampler it starts from is never changed."""

    def __init__(self, sampler: Sampler, requests: Sequence[DraftRequest], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._entries = [sampler.copy_of(request.seq_id) if request.depth else None for request in requests]

    def __call__(
        self,
        requests: Sequence[int],
        logits_RW: Logits,
        ids_W: npt.NDArray[np.integer] | None = None,
        argmax_R: Sequence[int] | None = None,
    ) -> list[int | None]:
        """See `Choose`. Plain greedy rows share one argmax over the columns there are."""
        assert len(logits_RW) == len(requests)
        entries = [self._entry(index) for index in requests]
        if argmax_R is None and any(entry.is_plain_greedy for entry in entries):
            argmax_R = greedy_tokens(logits_RW)
        tokens = []
        for line, entry in enumerate(entries):
            token_id: int | None
            if argmax_R is not None and entry.is_plain_greedy:
                token_id = id_at(argmax_R[line], ids_W) if argmax_R[line] >= 0 else None
            else:
                token_id = self._draw(entry, logits_RW[line], ids_W)
            # Where an answer ends, the model says so without a draft: that token is the bonus of those before it.
            if token_id is not None and entry.ends_with(token_id):
                token_id = None
            if token_id is not None:
                entry.append(token_id)
            tokens.append(token_id)
        return tokens

    def _entry(self, index: int) -> SamplerEntry:
        entry = self._entries[index]
        assert entry is not None, f"request {index} asks for no drafts"
        return entry

    def _draw(self, entry: SamplerEntry, logits_W: Logits, ids_W: npt.NDArray[np.integer] | None) -> int | None:
        try:
            if ids_W is None:
                return entry.draw(logits_W)
            if entry.is_plain:
                return entry.draw_among(logits_W, ids_W)
            return entry.draw(_spread(logits_W, ids_W, self._vocab_size))
        except GenerationError:
            return None


def _spread(logits_W: Logits, ids_W: npt.NDArray[np.integer], vocab_size: int) -> Logits:
    """logits_V with -inf for every id that the head doesn't know."""
    logits_V = np.full(vocab_size, -np.inf, dtype=logits_W.dtype)
    logits_V[ids_W] = logits_W
    return logits_V
