"""Text that comes in pieces, read as if it were all there.

A reader is a generator over a `Source`: it yields the parts that it has found, and None where it needs more text. So a
format is written down as one goes through it, and what it yields can't depend on how the text is cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from mtplx.text.tools.parts import Part, Reasoning, Text

_T = TypeVar("_T")
Steps = Generator[Part | None, None, _T]


class Source:
    """What has come and hasn't been taken; readers look at it by index, and take what they are sure of."""

    __slots__ = ("is_over", "is_reasoning", "text")

    def __init__(self) -> None:
        self.text = ""
        self.is_over = False  # nothing more will come
        self.is_reasoning = False  # what comes next is still a thought

    def take(self, count: int) -> str:
        """Removes that many characters from the beginning, and returns them."""
        taken, self.text = self.text[:count], self.text[count:]
        return taken


class Nesting:
    """Finds the end of one value in brackets or quotes, by counting brackets outside of strings."""

    __slots__ = ("_depth", "_is_escaped", "_quote", "_quotes")

    def __init__(self, *, quotes: str = '"', depth: int = 0) -> None:
        """`depth` brackets have been opened before."""
        self._quotes = quotes
        self._depth = depth
        self._quote = ""
        self._is_escaped = False

    def end_in(self, text: str, start: int) -> int | None:
        """The index after the value, None if it goes on after `text`; call again with what follows then."""
        for index in range(start, len(text)):
            char = text[index]
            if self._is_escaped:
                self._is_escaped = False
            elif self._quote:
                self._is_escaped = char == "\\"
                if char == self._quote:
                    self._quote = ""
                    if self._depth == 0:
                        return index + 1
            elif char in self._quotes:
                self._quote = char
            elif char in "{[(":
                self._depth += 1
            elif char in "}])":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None


def more(source: Source) -> Steps[bool]:
    """Waits for the next piece, which may be empty; False if there is none."""
    if source.is_over:
        return False
    yield None
    return True


def skip_space(source: Source, start: int) -> Steps[int]:
    """The index of the first character from `start` on that isn't white space, or of the text's end."""
    while True:
        at = len(source.text) - len(source.text[start:].lstrip())
        if at < len(source.text) or not (yield from more(source)):
            return at


def behind(source: Source, expected: str, start: int) -> Steps[int | None]:
    """The index after white space and `expected`, None if something else comes."""
    start = yield from skip_space(source, start)
    while True:
        found = source.text[start : start + len(expected)]
        if found == expected:
            return start + len(expected)
        if not expected.startswith(found) or not (yield from more(source)):
            return None


def run_end(source: Source, pattern: re.Pattern[str], start: int) -> Steps[int]:
    """The index after what `pattern` matches at `start`: a run of characters, which may be empty."""
    while True:
        found = pattern.match(source.text, start)
        end = found.end() if found else start
        if end < len(source.text) or not (yield from more(source)):
            return end


def value_end(source: Source, start: int, *, quotes: str = '"') -> Steps[int | None]:
    """The index after the value in brackets or quotes that begins at `start`, None if the text ends before."""
    nesting, scanned = Nesting(quotes=quotes), start
    while True:
        end = nesting.end_in(source.text, scanned)
        if end is not None:
            return end
        scanned = len(source.text)
        if not (yield from more(source)):
            return None


def drop(source: Source, expected: str) -> Steps[bool]:
    """Takes white space and `expected` from the source's beginning; False, with nothing taken, if it isn't there."""
    end = yield from behind(source, expected, 0)
    source.take(end or 0)
    return end is not None


def read_list(source: Source, start: int, read_item: Callable[[int], Steps[bool]]) -> Steps[bool]:
    """Reads `[item, item]`, each with what begins at an index; False, with nothing taken, if the first isn't one."""
    first = yield from behind(source, "[", start)
    if first is None or not (yield from read_item(first)):
        return False
    while (following := (yield from behind(source, ",", 0))) is not None:
        if not (yield from read_item(following)):
            return True
    yield from drop(source, "]")
    return True


def text_before(
    source: Source, markers: Sequence[str], kind: Callable[[str], Text | Reasoning] = Text
) -> Steps[int | None]:
    """Yields the text up to the first marker, and returns where that begins in what is left; None if there is none.

    White space before a marker is left in the source, as are at the text's end white space and the beginning of a
    marker: only who knows whether a call follows can tell what becomes of them.
    """
    while True:
        places = [place for marker in markers if (place := source.text.find(marker)) >= 0]
        sure = min(places) if places else len(source.text) - _num_held(source.text, markers)
        length = len(source.text[:sure].rstrip())
        if length:
            yield kind(source.take(length))
        if places:
            return sure - length
        if not (yield from more(source)):
            return None


def _num_held(text: str, markers: Sequence[str]) -> int:
    """The length of the longest end of `text` that begins a marker."""
    longest = min(len(text), max(map(len, markers)) - 1)
    return next(
        (count for count in range(longest, 0, -1) if any(marker.startswith(text[-count:]) for marker in markers)), 0
    )
