"""Calls as Mistral's models write them, by tokenizer version.

up to v7    [TOOL_CALLS][{"name": "f", "arguments": {...}}, {"name": "g", "arguments": {...}}]
later       [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{...}
"""

from __future__ import annotations

import re

from mtplx.text.tools.functions import Functions
from mtplx.text.tools.json_calls import read_json_call, stream_arguments
from mtplx.text.tools.parts import CallBegin, Text
from mtplx.text.tools.source import Source, Steps, behind, read_list, run_end, skip_space, text_before

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_WORD = re.compile(r"[\w.-]*")


def read_mistral(source: Source, functions: Functions) -> Steps[None]:
    """Both forms; a marker with neither behind it is text."""
    while (at := (yield from text_before(source, (CALLS,)))) is not None:
        behind_marker = at + len(CALLS)
        is_list = yield from read_list(source, behind_marker, lambda at: read_json_call(source, at, functions))
        if not is_list and not (yield from _named(source, behind_marker, functions)):
            yield Text(source.take(behind_marker))


def _named(source: Source, start: int, functions: Functions) -> Steps[bool]:
    start = yield from skip_space(source, start)
    end = yield from run_end(source, _WORD, start)
    name = source.text[start:end]
    if name not in functions:
        return False
    if (call_id := (yield from behind(source, CALL_ID, end))) is not None:
        end = yield from run_end(source, _WORD, call_id)
    end = (yield from behind(source, ARGUMENTS, end)) or end
    bracket = yield from behind(source, "{", end)
    if bracket is None:
        return False
    yield CallBegin(name)
    source.take(bracket - 1)
    yield from stream_arguments(source)
    return True
