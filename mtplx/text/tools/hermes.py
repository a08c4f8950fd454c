"""Calls as Hermes, Qwen 2.5 and Qwen 3 write them: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from mtplx.text.tools.functions import Functions
from mtplx.text.tools.json_calls import read_json_call
from mtplx.text.tools.parts import Text
from mtplx.text.tools.source import Source, Steps, drop, text_before

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(source: Source, functions: Functions) -> Steps[None]:
    """A marker with no call behind it is text; so is a closing one on its own."""
    while (at := (yield from text_before(source, (OPEN,)))) is not None:
        behind_marker = at + len(OPEN)
        if (yield from read_json_call(source, behind_marker, functions)):
            yield from drop(source, CLOSE)
        else:
            yield Text(source.take(behind_marker))
