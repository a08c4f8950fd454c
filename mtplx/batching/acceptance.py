"""What is believed of drafts before they are made: running acceptance by whoever they are of, with a common prior."""

from __future__ import annotations

from typing import Generic, TypeVar

from mtplx.batching.speculation import FIRST_GUESS, Acceptance, priors, survivals

_KEEP_OWN = 0.98  # one's own acceptance is forgotten over some fifty verified rows,
_KEEP_COMMON = 0.995  # that of all over two hundred,
_KEEP_IDLE = 0.995  # what is known of a depth that isn't used, over two hundred steps,
_KEEP_COMMON_IDLE = 0.999  # and what all know of it, over a thousand rows
_MOST_NEW = 0.02  # of what all know, before the prior is computed anew

K = TypeVar("K")


class AcceptanceBook(Generic[K]):
    """Acceptance of the drafts of one source, by key (such as a sequence's id) and over all keys."""

    def __init__(self, first_guess: float = FIRST_GUESS) -> None:
        """`first_guess`: how often a draft is taken to be accepted while nothing is known."""
        self._first_guess = first_guess
        self._common = Acceptance()
        self._own: dict[K, Acceptance] = {}
        self._priors: list[float] | None = None  # of the common acceptance, as it was
        self._num_new = 0  # rows ago

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever verified."""
        return self._common.tried[0] == 0.0

    def survivals(self, key: K, limit: int) -> list[float]:
        """For each of the first `limit` drafts the probability that it and all before it are accepted."""
        if self._priors is None or self._num_new > _MOST_NEW * self._common.tried[0]:
            self._priors, self._num_new = priors(self._common, self._first_guess), 0
        return survivals(self._own.get(key, _NOTHING_SEEN), self._priors, limit)

    def verified(self, key: K, num_drafts: int, num_accepted: int) -> None:
        self._own[key] = self._own.get(key, _NOTHING_SEEN).after(num_drafts, num_accepted, keep=_KEEP_OWN)
        self._common = self._common.after(num_drafts, num_accepted, keep=_KEEP_COMMON)
        self._num_new += 1

    def fade(self, key: K, depth: int, num_steps: int = 1) -> None:
        """Says that for so many steps drafts from `depth` on weren't made: bad luck must not last."""
        if key in self._own:
            self._own[key] = self._own[key].faded(depth, keep=_KEEP_IDLE**num_steps)

    def fade_common(self, depth: int) -> None:
        """The same of all keys together: without it what looks bad to everybody is never tried again."""
        self._common = self._common.faded(depth, keep=_KEEP_COMMON_IDLE)
        self._priors = None

    def forget(self, key: K) -> None:
        self._own.pop(key, None)


_NOTHING_SEEN = Acceptance()
