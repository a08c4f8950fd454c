"""Calls as Qwen3-Coder and Qwen 3.5 write them, in tags.

<tool_call>
<function=write>
<parameter=path>
a.txt
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mtplx.text.tools.functions import Function, Functions
from mtplx.text.tools.json_calls import as_json
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd, Text
from mtplx.text.tools.source import Source, Steps, behind, drop, more, text_before

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_MAX_NAME = 256


def read_qwen3_coder(source: Source, functions: Functions) -> Steps[None]:
    """The outer tags may be missing, as they often are. A tag with no call behind it is text."""
    while (at := (yield from text_before(source, (OPEN, _FUNCTION)))) is not None:
        inner = at + len(OPEN) if source.text.startswith(OPEN, at) else at
        if (yield from _call(source, inner, functions)):
            yield from drop(source, CLOSE)
        else:
            yield Text(source.take(max(inner, at + 1)))


def _call(source: Source, start: int, functions: Functions) -> Steps[bool]:
    name_at = yield from behind(source, _FUNCTION, start)
    name = None if name_at is None else (yield from _name(source, name_at))
    if name_at is None or name is None or name not in functions:
        return False
    yield CallBegin(name)
    source.take(name_at + len(name) + 1)
    yield CallArguments("{")
    seen: set[str] = set()
    while (at := (yield from behind(source, _PARAMETER, 0))) is not None:
        key = yield from _name(source, at)
        if key is None or key in seen:
            break
        source.take(at + len(key) + 1)
        yield CallArguments(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
        seen.add(key)
        if not (yield from _value(source, _types(functions[name], key))):
            return True  # the text ends within it
    if (yield from drop(source, _END)) or not source.is_over:
        yield CallArguments("}")
        yield CallEnd()
    return True


def _name(source: Source, start: int) -> Steps[str | None]:
    """The name up to the tag's end; None if it doesn't end as a tag does."""
    while (end := source.text.find(">", start)) < 0:
        if "\n" in source.text[start:] or len(source.text) - start > _MAX_NAME or not (yield from more(source)):
            return None
    name = source.text[start:end]
    return None if "\n" in name or not name or len(name) > _MAX_NAME else name


def _value(source: Source, types: frozenset[str]) -> Steps[bool]:
    """Yields a parameter's value as JSON: strings as they come, others when they end; False if the text ends before.

    The line breaks next to the tags belong to these.
    """
    yield from _drop_break(source)
    if types <= {"string"}:
        yield CallArguments('"')
        if not (yield from _string(source)):
            return False
        yield CallArguments('"')
        return True
    while (end := source.text.find(_PARAMETER_END)) < 0:
        if not (yield from more(source)):
            return False
    text = source.take(end + len(_PARAMETER_END))[:end].removesuffix("\n")
    yield CallArguments(as_json(_typed(text, types)))
    return True


def _drop_break(source: Source) -> Steps[None]:
    while not source.text:
        if not (yield from more(source)):
            return
    if source.text[0] == "\n":
        source.take(1)


def _string(source: Source) -> Steps[bool]:
    """Yields what a string holds, escaped; the longest end that could begin "\\n</parameter>" is held back."""
    ending = "\n" + _PARAMETER_END
    while (end := source.text.find(_PARAMETER_END)) < 0:
        held = next((n for n in range(min(len(ending) - 1, len(source.text)), 0, -1) if _may_end(source.text[-n:])), 0)
        if len(source.text) > held:
            yield CallArguments(_escaped(source.take(len(source.text) - held)))
        if not (yield from more(source)):
            return False
    text = source.take(end + len(_PARAMETER_END))[:end].removesuffix("\n")
    if text:
        yield CallArguments(_escaped(text))
    return True


def _may_end(text: str) -> bool:
    return ("\n" + _PARAMETER_END).startswith(text) or _PARAMETER_END.startswith(text)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _types(function: Function, key: str) -> frozenset[str]:
    """The JSON types that the schema names for a parameter; none when it doesn't say, which is taken as a string."""
    properties = function.parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    return frozenset(_named_types(schema))


def _named_types(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    named = schema.get("type")
    types = [named] if isinstance(named, str) else [str(name) for name in named] if isinstance(named, list) else []
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        types += [name for option in options for name in _named_types(option)] if isinstance(options, list) else []
    return types or (["unknown"] if schema.keys() & {"$ref", "allOf", "enum", "const"} else [])


def _typed(text: str, types: frozenset[str]) -> Any:
    """The value that the text stands for, itself where it stands for none of these types."""
    if "string" in types:
        return None if "null" in types and text == "null" else text
    try:
        return json.loads(text.lower() if text in ("True", "False") else text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and infinity, which JSON doesn't have
