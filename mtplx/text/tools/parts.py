"""What an answer is made of besides plain text, in the order in which it comes; each piece is new, none repeats."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """The next piece of what the model says to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next piece of what the model thinks before it says anything."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of the function of that name; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the arguments of the call that has begun, as JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments are complete. A call that the answer's end cuts off has none."""


Part = Text | Reasoning | CallBegin | CallArguments | CallEnd
