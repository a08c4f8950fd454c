"""Calls as Llama 3 writes them: `{"name": "f", "parameters": {...}}` as the whole answer, or after `<|python_tag|>`."""

from __future__ import annotations

from mtplx.text.tools.functions import Functions
from mtplx.text.tools.json_calls import read_json_call
from mtplx.text.tools.parts import Text
from mtplx.text.tools.source import Source, Steps, behind, text_before

TAG = "<|python_tag|>"


def read_llama3_json(source: Source, functions: Functions) -> Steps[None]:
    """Calls follow each other, or are separated by semicolons. An object that is no call is text."""
    yield from _calls(source, 0, functions)
    while (at := (yield from text_before(source, (TAG,)))) is not None:
        if not (yield from _calls(source, at + len(TAG), functions)):
            yield Text(source.take(at + len(TAG)))


def _calls(source: Source, start: int, functions: Functions) -> Steps[bool]:
    has_call = False
    while (yield from read_json_call(source, start, functions)):
        has_call = True
        start = (yield from behind(source, ";", 0)) or 0
    return has_call
