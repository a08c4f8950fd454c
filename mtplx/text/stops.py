"""Stop strings in a text that comes in pieces: what may be sent, what is held back, and where the text ends.

Knows characters only; which tokens they came from is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)  # never changed; frozen it would take three times as long to make, and there is one a token
class StopResult:
    """`text` may be sent now. `stop` is the stop string that ended the text, None while it goes on."""

    text: str
    stop: str | None = None

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None


class StopMatcher:
    """Looks for the first of several strings to be complete, and holds back exactly what could still begin one.

    The string that is complete at the earliest character wins; of those complete at the same one, the longest, so that
    no part of any is sent. The result doesn't depend on how the text is cut into pieces. Time is linear in the text
    and independent of the strings' lengths.

    Invariant: the text held is the longest suffix of the text read so far that begins a stop string. So it needs no
    buffer: it is the first `_num_held` characters of `_held_stop`, the stop string that has matched furthest.

    Example, with stop strings "END" and "N":
        push("the E") -> "the "; push("x") -> "Ex"; push("E") -> ""; push("N!") -> "E" and stop "N"
    """

    __slots__ = ("_held_stop", "_is_stopped", "_num_held", "_patterns")

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "a stop string must not be empty"
        self._patterns = [_Pattern(stop) for stop in stops]
        self._held_stop = ""
        self._num_held = 0
        self._is_stopped = False

    def push(self, text: str, *, active: bool = True) -> StopResult:
        """Reads the next piece; after a result with a stop string nothing more may be pushed.

        With `active` False (fewer than min_tokens tokens so far) a string that is complete within this piece doesn't
        count. It may still be the beginning of one that is complete later.
        """
        assert not self._is_stopped, "the text has ended"
        if not text or not self._patterns:
            return StopResult(text)
        stop, end = self._read(text, active)
        if stop is not None:
            self._is_stopped = True
            return StopResult(self._first(self._num_held + end - len(stop), text), stop)
        furthest = max(self._patterns, key=_num_matched)
        sent = self._first(self._num_held + len(text) - furthest.num_matched, text)
        self._held_stop, self._num_held = furthest.stop, furthest.num_matched
        return StopResult(sent)

    def flush(self) -> str:
        """The text held back, when no more will come; "" after a stop string."""
        if self._is_stopped:
            return ""
        text = self._first(self._num_held, "")
        self._num_held = 0
        for pattern in self._patterns:
            pattern.num_matched = 0
        return text

    def _read(self, text: str, active: bool) -> tuple[str | None, int]:
        """The stop string that is complete first, and the index in `text` after it."""
        stop, end = None, len(text)
        for pattern in self._patterns:
            found = pattern.read(text, end, active)
            if found is not None and (stop is None or found < end or len(pattern.stop) > len(stop)):
                stop, end = pattern.stop, found
        return stop, end

    def _first(self, count: int, text: str) -> str:
        """The first `count` characters of the held text and `text` together."""
        if count <= self._num_held:
            return self._held_stop[:count]
        return self._held_stop[: self._num_held] + text[: count - self._num_held]


class _Pattern:
    """One stop string, and how many of its first characters the text ends with.

    Source: Knuth, Morris, Pratt 1977. `_borders[n]` is the length of the longest proper prefix of the string's first n
    characters that also ends them. It is extended only as far as the text has matched, so a string of a megabyte costs
    nothing before it begins to come.
    """

    __slots__ = ("_borders", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._borders = [0, 0]

    def read(self, text: str, end: int, active: bool) -> int | None:
        """Reads text[:end]; the index after the string's first completion, None if there is none that counts."""
        stop, matched, index = self.stop, self.num_matched, 0
        while index < end:
            if matched == 0:
                index = text.find(stop[0], index, end)
                if index < 0:
                    break
            elif text[index] != stop[matched]:
                matched = self._border(matched)
                continue
            index += 1
            matched += 1
            if matched == len(stop):
                if active:
                    return index
                matched = self._border(matched)
        self.num_matched = matched
        return None

    def _border(self, num_chars: int) -> int:
        stop, borders = self.stop, self._borders
        while len(borders) <= num_chars:
            last = stop[len(borders) - 1]
            border = borders[-1]
            while border and stop[border] != last:
                border = borders[border]
            borders.append(border + 1 if stop[border] == last else 0)
        return borders[num_chars]


def _num_matched(pattern: _Pattern) -> int:
    return pattern.num_matched
