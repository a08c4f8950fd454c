"""A bounded memory of texts that finds where the end of another text occurred before, and what came after it there.

A ring of tokens, each linked to those before and behind it in its own text, so that texts may grow in turns and branch
from a common beginning. A hash of every two tokens leads to their last place, and each place to the one before it
with the same hash, as in the hash chains of LZ77 compressors.

    texts        the cat sat | a cat sat down | where the cat sat
    find         "... the cat" matches three places, the last of them furthest back: proposes "sat"

Source: the idea of drafts from a suffix structure over earlier outputs is SuffixDecoding's, arXiv 2411.04975.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import zip_longest

from mtplx.batching.state import Likely

CAPACITY = 16_384
"""Tokens that an index remembers; with its hash heads it takes at most 100 bytes for each."""

NUM_LIKELY = 8
"""Ids that may be remembered for a token's place: what else might have come there."""

Choose = Callable[[int, Likely], int | None]
"""Which of the ids that were likely at a place comes there in a run, behind so many others; None: the one that did."""

LEAST_MATCH = 2  # tokens that are hashed, so a shorter match isn't found
MAX_MATCH = 16  # a longer one is no better
_MAX_PLACES = 8  # that are looked at in one search
_NOWHERE = 0  # no position; the first token's is 1
_NO_IDS, _NO_SCORES = (-1,) * NUM_LIKELY, (0.0,) * NUM_LIKELY
_FACTOR = 0x9E3779B97F4A7C15  # odd and near 2^64 / golden ratio: it spreads small numbers over the high bits
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that followed, in another text, the `match_len` last tokens of the one that was searched for."""

    token_ids: tuple[int, ...]
    match_len: int


class SuffixIndex:
    """The last `capacity` tokens of any number of texts, a power of two.

    A token's position is its number since the start, so the ring's slot of position p is p modulo capacity and every
    position below `oldest` is forgotten. Links to forgotten positions are found out by that comparison alone.

    Invariants, which `check` asserts: a remembered token's links lead to earlier positions, but for that to the token
    behind it, which leads back; and memory is what `num_bytes` says.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        assert capacity >= LEAST_MATCH, capacity
        assert capacity & (capacity - 1) == 0, "a power of two"
        self._capacity = capacity
        self._mask = capacity - 1
        self._end = 1
        self._tokens = array("i", (0,))
        self._before = array("q", (_NOWHERE,))
        self._behind = array("q", (_NOWHERE,))  # of several that follow, the newest
        self._same_hash = array("q", (_NOWHERE,))  # the last place before with the same hash
        self._likely_ids = array("i", _NO_IDS)  # NUM_LIKELY each, or nothing
        self._likely_scores = array("f", _NO_SCORES)
        self._heads = array("q", bytes(8 * capacity))  # by hash: its last place

    @property
    def end(self) -> int:
        """The position of the next token to be added."""
        return self._end

    @property
    def oldest(self) -> int:
        """The smallest position that is remembered, once there are tokens."""
        return max(1, self._end - self._capacity)

    @property
    def num_bytes(self) -> int:
        """Of all arrays, which grow with the tokens up to the capacity."""
        likely = NUM_LIKELY * (self._likely_ids.itemsize + self._likely_scores.itemsize)
        per_token = self._tokens.itemsize + 3 * self._before.itemsize + likely
        return per_token * len(self._tokens) + self._heads.itemsize * len(self._heads)

    def token_at(self, position: int) -> int:
        assert self.oldest <= position < self._end, "forgotten, or never there"
        return self._tokens[position & self._mask]

    def append(self, after: int, token_ids: Iterable[int], likely: Iterable[Likely | None] = ()) -> int:
        """Adds tokens behind position `after` of a text, 0 for a new one, and returns the last one's position.

        `likely` are what else might have come in their places, NUM_LIKELY each, as far as known. Where `after` is
        forgotten by now the text goes on without a beginning.
        """
        last = self._tokens[after & self._mask] if after >= self.oldest else None
        for token_id, instead in zip_longest(token_ids, likely):
            position, slot = self._end, self._end & self._mask
            previous = _NOWHERE
            if last is not None:
                head = self._hash(last, token_id)
                previous, self._heads[head] = self._heads[head], position
            self._write(slot, token_id, after, previous, instead)
            self._end += 1
            last, after = token_id, position
        return after

    def find(self, tail: Seq[int], max_tokens: int, choose: Choose | None = None) -> Run | None:
        """What followed the longest match of the end of `tail`, the newest among equals; None without a match.

        A tail longer than MAX_MATCH is of no use beyond that. The run has up to `max_tokens` tokens, at least one.
        Where others were likely too, `choose` may take one of those; the run goes on with what followed that.
        """
        if len(tail) < LEAST_MATCH or max_tokens < 1:
            return None
        place, match_len = self._longest(tail)
        return Run(self._following(place, tail, max_tokens, choose), match_len) if place else None

    def check(self) -> None:
        """Asserts the invariants."""
        arrays, likely = (
            (self._tokens, self._before, self._behind, self._same_hash),
            (self._likely_ids, self._likely_scores),
        )
        assert {len(column) for column in arrays} == {min(self._end, self._capacity)}
        assert {len(column) for column in likely} == {NUM_LIKELY * len(self._tokens)}
        assert self.num_bytes == sum(column.itemsize * len(column) for column in (*arrays, *likely, self._heads))
        assert all(0 <= place < self._end for place in self._heads)
        for position in range(self.oldest, self._end):
            slot = position & self._mask
            assert 0 <= self._before[slot] < position
            assert 0 <= self._same_hash[slot] < position
            behind = self._behind[slot]
            assert behind == _NOWHERE or position < behind < self._end
            assert behind == _NOWHERE or self._before[behind & self._mask] == position

    def _longest(self, tail: Seq[int]) -> tuple[int, int]:
        """The place of the longest match and its length; _NOWHERE without one."""
        oldest, best, best_len = self.oldest, _NOWHERE, LEAST_MATCH - 1
        place = self._heads[self._hash(tail[-2], tail[-1])]
        for _ in range(_MAX_PLACES):
            if place < oldest:
                break
            slot = place & self._mask
            if self._behind[slot]:
                match_len = self._match(place, tail, oldest)
                if match_len > best_len:
                    best, best_len = place, match_len
                    if match_len == len(tail):
                        break
            place = self._same_hash[slot]
        return best, best_len

    def _write(self, slot: int, token_id: int, after: int, previous: int, likely: Likely | None) -> None:
        ids, scores = likely or (_NO_IDS, _NO_SCORES)
        place = slice(NUM_LIKELY * slot, NUM_LIKELY * (slot + 1))
        self._likely_ids[place], self._likely_scores[place] = array("i", ids), array("f", scores)
        if slot == len(self._tokens):
            self._tokens.append(token_id)
            self._before.append(after)
            self._behind.append(_NOWHERE)
            self._same_hash.append(previous)
        else:
            self._tokens[slot], self._before[slot] = token_id, after
            self._behind[slot], self._same_hash[slot] = _NOWHERE, previous
        if after > self._end - self._capacity and after:  # what was in this very slot is gone
            self._behind[after & self._mask] = self._end

    def _match(self, place: int, tail: Seq[int], oldest: int) -> int:
        """How many tokens up to and at `place` are those at the end of `tail`."""
        match_len = 0
        for token_id in reversed(tail):
            if place < oldest or self._tokens[place & self._mask] != token_id:
                break
            match_len += 1
            place = self._before[place & self._mask]
        return match_len

    def _following(self, place: int, tail: Seq[int], max_tokens: int, choose: Choose | None) -> tuple[int, ...]:
        found: list[int] = []
        while len(found) < max_tokens and (place := self._behind[place & self._mask]):
            slot = place & self._mask
            token_id = self._tokens[slot]
            likely = self._likely_at(slot) if choose else None
            chosen = choose(len(found), likely) if choose and likely else None
            found.append(token_id if chosen is None else chosen)
            if found[-1] != token_id:
                place, _ = self._longest([*tail, *found][-MAX_MATCH:])
                if not place:
                    break
        return tuple(found)

    def _likely_at(self, slot: int) -> Likely | None:
        begin, end = NUM_LIKELY * slot, NUM_LIKELY * (slot + 1)
        ids = tuple(self._likely_ids[begin:end])
        return (ids, tuple(self._likely_scores[begin:end])) if ids != _NO_IDS else None

    def _hash(self, first: int, second: int) -> int:
        return ((first * _FACTOR + second) * _FACTOR & _WORD) >> 40 & self._mask
