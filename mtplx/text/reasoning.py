"""Thoughts that a model writes in <think> tags before its answer."""

from __future__ import annotations

from mtplx.text.tools.parts import Reasoning
from mtplx.text.tools.source import Source, Steps, behind, skip_space, text_before

OPEN, CLOSE = "<think>", "</think>"


def opens_thought(prompt: str) -> bool:
    """Whether the chat template has opened the tag itself, so that the answer begins inside it."""
    return prompt.rstrip().endswith(OPEN)


def read_thoughts(source: Source, *, is_open: bool) -> Steps[None]:
    """Reads the thought that the answer begins with, if it does, and the white space around it."""
    source.is_reasoning = is_open
    begin = yield from behind(source, OPEN, 0)
    if begin is None and not is_open:
        return
    source.is_reasoning = True
    source.take((yield from skip_space(source, begin or 0)))
    end = yield from text_before(source, (CLOSE,), Reasoning)
    if end is None:
        rest = source.take(len(source.text)).rstrip()
        if rest:
            yield Reasoning(rest)
        return
    source.take(end + len(CLOSE))
    source.is_reasoning = False
    source.take((yield from skip_space(source, 0)))
