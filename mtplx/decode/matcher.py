"""Where one sequence is in its grammar, token by token: what may come next, and what must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mtplx.errors import GenerationError, NoTokenLeftError
from mtplx.text.grammar import CompiledGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Matcher:
    """Follows the tokens that one sequence emits. Where it can't, the next `bans` says so."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @classmethod
    def of(cls, grammar: CompiledGrammar) -> Matcher:
        """One at the beginning."""
        return cls(grammar.start())

    def copy(self) -> Matcher:
        """One that can follow guesses while this one stays."""
        return Matcher(self._matcher.deep_copy())

    def append(self, token_id: int) -> None:
        """Goes on by an emitted token."""
        self._matcher.consume_token(token_id)

    def forced_ids(self, limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens that spell what must come next, as the tokenizer would; others may spell it too."""
        return () if self._matcher.is_error() else tuple(self._matcher.compute_ff_tokens()[:limit])

    def bans(self, vocab_size: int, stop_ids: npt.NDArray[np.int64], *, may_end: bool) -> npt.NDArray[np.bool_]:
        """Returns is_banned_V: what can't come next. Where the grammar can end, all `stop_ids` may come.

        Not so without `may_end`, unless there is nothing else left to come.

        Raises:
            GenerationError: the grammar has become too complex.
            NoTokenLeftError: it allows no token of this vocabulary.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise GenerationError("the grammar has become too complex to go on")
        is_allowed_V = np.unpackbits(mask, count=vocab_size, bitorder="little").view(np.bool_)
        if self._matcher.is_accepting():
            is_allowed_V[stop_ids] = True
        if not may_end:
            goes_on_V = is_allowed_V.copy()
            goes_on_V[stop_ids] = False
            is_allowed_V = goes_on_V if goes_on_V.any() else is_allowed_V
        if not is_allowed_V.any():
            raise NoTokenLeftError("the grammar allows no token of this model here")
        return ~is_allowed_V
