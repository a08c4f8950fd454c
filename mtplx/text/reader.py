"""An answer's text, as it comes, into what is said, thought and called; knows characters, no tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from mtplx.text.reasoning import CLOSE, OPEN, read_thoughts
from mtplx.text.tools.formats import ToolFormat
from mtplx.text.tools.functions import Functions
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd, Part, Reasoning, Text
from mtplx.text.tools.source import Source, Steps, more


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How one request's answers are to be read; a fresh `AnswerReader` reads each."""

    tool_format: ToolFormat | None = None  # None: nothing is a call
    functions: Functions = field(default_factory=dict)
    has_thoughts: bool = False  # thoughts are told from the answer
    is_thinking: bool = False  # the prompt ends inside a thought
    is_single: bool = False  # one call, and the answer has ended
    is_forced: bool = False  # nothing is said: what isn't thought is calls, or the rest of one that was cut

    @property
    def markers(self) -> frozenset[str]:
        """Strings that must be in the text even where a special token spells them."""
        thoughts = (OPEN, CLOSE) if self.has_thoughts else ()
        return frozenset((*thoughts, *(self.tool_format.markers if self.tool_format else ())))


class AnswerReader:
    """Turns pieces of text into parts. Joined, the parts don't depend on how the text was cut."""

    def __init__(self, reading: Reading) -> None:
        self._source = Source()
        self._is_single = reading.is_single
        self._is_forced = reading.is_forced
        self._has_calls = False
        self._is_in_call = False
        self._steps = _read(self._source, reading)
        self.is_done = False  # the only call that may be made is complete
        next(self._steps)

    @property
    def is_reasoning(self) -> bool:
        """Whether the next character is still thought."""
        return self._source.is_reasoning

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, and none has been cut off."""
        return self._has_calls and not self._is_in_call

    def push(self, text: str) -> list[Part]:
        """The parts that this text makes certain; none once the answer is done."""
        self._source.text += text
        return self._advance() if text and not self.is_done else []

    def flush(self) -> list[Part]:
        """The rest, when no text will follow. White space behind calls is left out."""
        if self.is_done:
            return []
        self._source.is_over = True
        parts = self._advance()
        rest = self._source.take(len(self._source.text))
        if rest and not self._is_forced and not (self._has_calls and rest.isspace()):
            parts = joined([*parts, Text(rest)])
        return parts

    def _advance(self) -> list[Part]:
        parts: list[Part] = []
        for part in self._steps:
            if part is None:
                break
            if not (self._is_forced and isinstance(part, Text)):
                parts.append(part)
            if isinstance(part, CallBegin | CallEnd):
                self._has_calls, self._is_in_call = True, isinstance(part, CallBegin)
            if self._is_single and isinstance(part, CallEnd):
                self.is_done = True
                break
        return joined(parts)


def _read(source: Source, reading: Reading) -> Steps[None]:
    if reading.has_thoughts:
        yield from read_thoughts(source, is_open=reading.is_thinking)
    if reading.tool_format is not None:
        yield from reading.tool_format.read(source, reading.functions)
        return
    while True:
        if source.text:
            yield Text(source.take(len(source.text)))
        if not (yield from more(source)):
            return


def joined(parts: list[Part]) -> list[Part]:
    """The same with neighbours of one kind as one part."""
    return [part for kind, run in groupby(parts, type) for part in _joined_run(kind, list(run))]


def _joined_run(kind: type[Part], run: list[Part]) -> Iterator[Part]:
    if kind is Text or kind is Reasoning or kind is CallArguments:
        yield kind("".join(part.text for part in run if isinstance(part, Text | Reasoning | CallArguments)))
    else:
        yield from run
