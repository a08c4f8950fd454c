"""A client's JSON Schemas, such as llguidance keeps to them: made narrower where it is too wide, or refused in words.

What it refuses by itself is left to it, and so is what isn't JSON. Knows nothing of requests and models.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

# Without \u: spelled by it, a key that is named would pass for one that isn't. So some characters can't be written, and
# out of a literal they would vanish.
_ESCAPES: Final = 'nrbtf\\"'
_UNWRITTEN: Final = r"[\x00-\x07\x0b\x0e-\x1f\x7f]"
_END_OF_EXACT: Final = 2**53  # llguidance counts in doubles
_UNREACHED: Final = {"maximum": 2**63 - 1, "exclusiveMaximum": 2**63}  # by any integer that it writes
_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

# Of a Lark grammar: what may hold anything, whether it ends or not, so that no text is read twice; and the keyword.
_LARK: Final = re.compile(
    r"""(?P<other> "(?:\\.|[^"\\\n])*"? | (?:\#|//)[^\n]* | /(?:\\.|[^/\\])+/? | <[^<>\s]+>) | %json\s*(?=\{)""",
    re.DOTALL | re.VERBOSE,
)
# Of a regular expression. A bracket that comes first in a class closes nothing.
_PIECE: Final = re.compile(
    r"(?P<opening>\[\^?\]?) | \\[pP](?:\{[^}]{0,99}\}|.) | \\[xuU]\{[^}]{0,9}\} | \\x[0-9a-fA-F]{2} | \\u[0-9a-fA-F]{4}"
    r"| \\U[0-9a-fA-F]{8} | \\. | .",
    re.DOTALL | re.VERBOSE,
)
_PLAIN_CLASS: Final = re.compile(r"\[[^\^\\\[\]\x00-\x1f\x7f]*\]")
_BY_CODE: Final = re.compile(r"\\[xuU]\{?([0-9a-fA-F]+)\}?")
_BY_LETTER: Final = {r"\a": "\a", r"\v": "\v"}

_Place = tuple[str | int, ...]  # keywords, names and numbers, from the schema's root


class UnkeptSchemaError(Exception):
    """Says why a schema can't be kept to, and where."""


def kept_grammar(kind: str, source: str) -> str:
    """The grammar, kind and source as in `Grammar`, with such schemas.

    Raises:
        UnkeptSchemaError: it can't be kept to; says why, and where in the schema.
    """
    if kind == "json_schema":
        found = _schema_at(source, len(source) - len(source.lstrip(" \t\r\n")))
        return source if found is None else found.text + source[found.end :]
    return source if kind == "regex" else _kept_lark(source)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The text of a schema, and where that of the client ends."""

    text: str
    end: int


def _kept_lark(source: str) -> str:
    done, copied, at = [], 0, 0
    while found := _LARK.search(source, at):
        at = found.end()
        schema = None if found["other"] else _schema_at(source, at)
        if schema is not None:
            done += [source[copied:at], schema.text]
            copied = at = schema.end
    return "".join(done) + source[copied:]


def _schema_at(source: str, start: int) -> _Kept | None:
    try:
        schema, end = json.JSONDecoder().raw_decode(source, start)
    except (ValueError, RecursionError):
        return None
    if not isinstance(schema, dict) or not isinstance(schema.get("x-guidance", {}), dict):
        return None
    options = {**schema.get("x-guidance", {}), "json_allowed_escapes": _ESCAPES}
    try:
        return _Kept(json.dumps({**_kept(schema, ()), "x-guidance": options}), end)
    except RecursionError:
        return None


def _kept(schema: Any, place: _Place) -> Any:
    if isinstance(schema, list):
        return [_kept(part, (*place, number)) for number, part in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    _check_bounds(schema, place)
    _check_num_properties(schema, place)
    return {keyword: _kept_value(keyword, value, (*place, keyword)) for keyword, value in schema.items()}


def _kept_value(keyword: str, value: Any, place: _Place) -> Any:
    if keyword in ("const", "enum"):
        _check_exact(value, place)
        return value
    if keyword == "pattern" and isinstance(value, str):
        return _writable(value, place)
    if keyword in _MAPS and isinstance(value, dict):
        return {
            _writable(name, place) if keyword == "patternProperties" else name: _kept(part, (*place, name))
            for name, part in value.items()
        }
    return _kept(value, place)


def _check_bounds(schema: Mapping[str, Any], place: _Place) -> None:
    for keyword in _BOUNDS:
        value = schema.get(keyword)
        if _is_number(value) and value < _UNREACHED.get(keyword, math.inf):
            _check_exact(value, (*place, keyword))


def _check_exact(value: Any, place: _Place) -> None:
    """All numbers and texts in it, however deep."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_exact(part, (*place, name))
    elif isinstance(value, str):
        _check_is_written(value, place)
    elif _is_number(value) and abs(value) >= _END_OF_EXACT:
        raise UnkeptSchemaError(_words("a number of 2^53 or more, of either sign, can't be kept to exactly", place))


def _check_is_written(text: str, place: _Place) -> None:
    if re.search(_UNWRITTEN, text):
        why = r"of control characters only \b, \t, \n, \f and \r are written"
        raise UnkeptSchemaError(_words(why, place))


def _check_num_properties(schema: Mapping[str, Any], place: _Place) -> None:
    """One key that isn't named differs from those that are; two needn't differ from each other."""
    wanted, required = schema.get("minProperties"), schema.get("required")
    named = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if _is_number(wanted) and wanted > len(named) + 1:
        why = "keys that `required` doesn't name could repeat each other, so it can be one more than those at most"
        raise UnkeptSchemaError(_words(why, (*place, "minProperties")))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(why: str, place: _Place) -> str:
    shown = ".".join(map(str, place))
    shown = shown if len(shown) <= 100 else f"{shown[:100]} ..."
    return f"{why}: {shown.encode(errors='replace').decode()}"


def _writable(pattern: str, place: _Place) -> str:
    """The expression without unwritten characters in its classes.

    Of a class with all control characters llguidance takes a backslash and a quote too, and so it does for `[^"]`. No
    union or intersection of classes without NUL, and of `.`, has all of them and lacks those two.
    """
    written = []
    for piece in _pieces(pattern):
        is_class = piece[0] == "[" and not _PLAIN_CLASS.fullmatch(piece)
        if is_class or piece[:2] in (r"\p", r"\P"):
            written.append(f"[{piece}--{_UNWRITTEN}]")
        else:
            _check_is_written(_meant(piece), place)
            written.append(piece)
    return "".join(written)


def _meant(piece: str) -> str:
    """The ASCII character that an escape stands for; anything else as it is."""
    code = _BY_CODE.fullmatch(piece)
    if code is None:
        return _BY_LETTER.get(piece, piece)
    return chr(int(code[1], 16)) if int(code[1], 16) < 0x80 else ""


def _pieces(pattern: str) -> Iterator[str]:
    """Its characters, escapes and bracketed classes, in their order."""
    piece, depth = "", 0
    for found in _PIECE.finditer(pattern):
        piece += found[0]
        if found["opening"]:
            depth += 1
        elif depth and found[0] == "]":
            depth -= 1
        if not depth:
            yield piece
            piece = ""
    if piece:
        yield piece
