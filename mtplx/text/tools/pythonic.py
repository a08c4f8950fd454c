"""Calls written as Python: `[f(x=1, y="a"), g()]` as the whole answer, as Llama 4 and others do, or between markers."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Final

from mtplx.text.tools.functions import Functions
from mtplx.text.tools.json_calls import as_json
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd, Text
from mtplx.text.tools.source import Source, Steps, drop, read_list, run_end, skip_space, text_before, value_end

ENDS: Final = {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"}  # of Llama 4, of LFM 2
_NAME = re.compile(r"[\w.-]*")


def read_pythonic(source: Source, functions: Functions) -> Steps[None]:
    """A call comes in one piece, when its bracket closes: before, nobody knows whether it is one."""

    def read_call(at: int) -> Steps[bool]:
        return _call(source, at, functions)

    yield from read_list(source, 0, read_call)
    while (at := (yield from text_before(source, tuple(ENDS)))) is not None:
        marker = next(marker for marker in ENDS if source.text.startswith(marker, at))
        if (yield from read_list(source, at + len(marker), read_call)):
            yield from drop(source, ENDS[marker])
        else:
            yield Text(source.take(at + len(marker)))


def _call(source: Source, start: int, functions: Functions) -> Steps[bool]:
    start = yield from skip_space(source, start)
    bracket = yield from run_end(source, _NAME, start)
    name = source.text[start:bracket]
    if name not in functions or source.text[bracket : bracket + 1] != "(":
        return False
    end = yield from value_end(source, bracket, quotes="\"'")
    arguments = None if end is None else _as_json(source.text[bracket:end])
    if end is None or arguments is None:
        return False
    source.take(end)
    yield CallBegin(name)
    yield CallArguments(arguments)
    yield CallEnd()
    return True


def _as_json(arguments: str) -> str | None:
    """Keyword arguments in brackets as a JSON object; None if they are anything but names and plain values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on a model's escapes are nobody's concern
            call = ast.parse("f" + arguments, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
        is_plain = len(values) == len(call.keywords)  # no **more, and none twice
        return as_json(values) if is_plain else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):  # the last is said of deep nesting too
        return None
