"""Calls written as JSON objects with a name and arguments: what Hermes, Llama 3 and older Mistral formats share."""

from __future__ import annotations

import json
import re
from typing import Any

from mtplx.text.tools.functions import Functions
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd
from mtplx.text.tools.source import Nesting, Source, Steps, behind, more

# As nearly every model writes it. From here on it is a call, and its arguments are passed on as they come.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
# What no call begins with: something else than an object, or an object whose first member is none of a call's.
_NO_CALL = re.compile(r'\s*(?:[^\s{]|\{\s*(?:[^\s"]|"(?!(?:name|arguments|parameters|id|type)")[^"]*"))')
_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"')


def read_json_call(source: Source, start: int, functions: Functions) -> Steps[bool]:
    """Reads a call that begins at `start`; False, with nothing taken, if what comes is no call of these functions.

    With another order of members, or arguments as a string, the call comes in one piece at its end.
    """
    nesting, scanned = Nesting(), start
    while True:
        if head := _HEAD.match(source.text, start):
            if head[1] not in functions:
                return False
            yield CallBegin(head[1])
            source.take(head.end())
            if (yield from stream_arguments(source)):
                yield from _drop_rest(source)
            return True
        name = _NAME.match(source.text, start)
        if _NO_CALL.match(source.text, start) or (name and name[1] not in functions):
            return False
        end = nesting.end_in(source.text, scanned)
        if end is not None:
            return (yield from _whole_call(source, start, end, functions))
        scanned = len(source.text)
        if not (yield from more(source)):
            return False


def stream_arguments(source: Source) -> Steps[bool]:
    """Yields the object at the source's beginning as arguments; False if the text ends before it does."""
    nesting = Nesting()
    while True:
        end = nesting.end_in(source.text, 0)
        if source.text:
            yield CallArguments(source.take(len(source.text) if end is None else end))
        if end is not None:
            yield CallEnd()
            return True
        if not (yield from more(source)):
            return False


def as_json(value: Any) -> str:
    """The value as JSON that can be sent: half of a surrogate pair, which only an escape can spell, stays one.

    Raises:
        ValueError, TypeError: JSON has no such value.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(value) if any("\ud800" <= char <= "\udfff" for char in text) else text


def _drop_rest(source: Source) -> Steps[None]:
    """Takes what may follow the arguments in the call's object: members that say nothing new, and its bracket."""
    end = yield from behind(source, "}", 0)
    if end is None and (end := (yield from behind(source, ",", 0))) is not None:
        nesting = Nesting(depth=1)
        while (found := nesting.end_in(source.text, end)) is None:
            end = len(source.text)
            if not (yield from more(source)):
                break
        end = found
    source.take(end or 0)


def _whole_call(source: Source, start: int, end: int, functions: Functions) -> Steps[bool]:
    try:
        call = json.loads(source.text[start:end])
        arguments = as_json(_as_object(call.get("arguments", call.get("parameters", {}))))
        name = call.get("name")
    except (ValueError, TypeError, RecursionError):
        return False
    if not isinstance(name, str) or name not in functions:
        return False
    source.take(end)
    yield CallBegin(name)
    yield CallArguments(arguments)
    yield CallEnd()
    return True


def _as_object(arguments: Any) -> dict[str, Any]:
    """The arguments, also where they are written as a string. Raises: ValueError, TypeError."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(found, dict):
        raise TypeError("arguments are an object")
    return found
