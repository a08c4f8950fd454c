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
from mtplx.decode.next_token import Logits, greedy_tokens_of, id_at
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
        plain = [line for line, entry in enumerate(entries) if entry.is_plain_greedy]
        found = _greedy(plain, logits_RW, ids_W, argmax_R)
        tokens = []
        for line, entry in enumerate(entries):
            token_id = found[line] if line in found else self._draw(entry, logits_RW[line], ids_W)
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


def _greedy(
    lines: Sequence[int], logits_RW: Logits, ids_W: npt.NDArray[np.integer] | None, argmax_R: Sequence[int] | None
) -> dict[int, int | None]:
    """The token of each line's largest logit, by line; None where there is none."""
    if not lines:
        return {}
    columns = zip(lines, greedy_tokens_of(lines, logits_RW, argmax_R), strict=True)
    return {line: None if column < 0 else id_at(column, ids_W) for line, column in columns}


def _spread(logits_W: Logits, ids_W: npt.NDArray[np.integer], vocab_size: int) -> Logits:
    """logits_V with -inf for every id that the head doesn't know."""
    logits_V = np.full(vocab_size, -np.inf, dtype=logits_W.dtype)
    logits_V[ids_W] = logits_W
    return logits_V
