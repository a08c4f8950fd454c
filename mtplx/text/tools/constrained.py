"""Grammars for answers that must be calls, or may be: what is read as calls then has arguments that fit their schemas.

Calls are written as JSON here, since this is what a schema can be kept in: where a format is none, as Hermes does. The
client sees the same calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtplx.errors import RequestError
from mtplx.sampling_params import Grammar
from mtplx.text.reasoning import CLOSE, OPEN
from mtplx.text.tools import hermes, mistral
from mtplx.text.tools.formats import HERMES, ToolFormat
from mtplx.text.tools.functions import Function

MAX_CALLS: Final = 8  # in one answer: a model that knows no end of it must come to one
# As models are taught to write JSON; free white space would let some write nothing else.
_PLAIN_JSON: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OPENING: Final = frozenset({"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"})
_SPACE: Final = r"SPACE: /[ \n]{0,4}/"


@dataclass(frozen=True, slots=True)
class _Frame:
    """What is around calls: `first ( before call after ) between ( before call after ) last`."""

    first: str = ""
    before: str = ""
    arguments: str = "arguments"
    after: str = ""
    between: str = ""
    last: str = ""


_FRAMES: Final = {
    "hermes": _Frame(before=f"{hermes.OPEN}\n", after=f"\n{hermes.CLOSE}", between="\n"),
    "llama3_json": _Frame(arguments="parameters", between="; "),
    "mistral": _Frame(first=f"{mistral.CALLS}[", between=", ", last="]"),
}


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a model's vocabulary spells markers: as special tokens, by their ids, or else as plain text."""

    special_ids: Mapping[str, int]

    def terms(self, text: str) -> str:
        """The text as a row of terms of a grammar."""
        if not self.special_ids:
            return _quoted(text)
        pieces = re.split("(" + "|".join(map(re.escape, self.special_ids)) + ")", text)
        return " ".join(
            f"<[{self.special_ids[piece]}]>" if piece in self.special_ids else _quoted(piece)
            for piece in pieces
            if piece
        )


def forced_format(tool_format: ToolFormat) -> ToolFormat:
    """The format that forced calls are written and read in."""
    return tool_format if tool_format.name in _FRAMES else HERMES


def forced_calls(tool_format: ToolFormat, functions: Iterable[Function], spelling: Spelling, *, is_single: bool) -> str:
    """Rules by which `calls` is one call of these functions, or up to `MAX_CALLS` of them."""
    frame, functions = _FRAMES[tool_format.name], list(functions)
    more = "" if is_single else f" ({spelling.terms(frame.between)} call){{0,{MAX_CALLS - 1}}}"
    rules = [
        f"calls: {spelling.terms(frame.first)} call{more} {spelling.terms(frame.last)}",
        "call: " + " | ".join(f"call_{number}" for number in range(len(functions))),
    ]
    for number, function in enumerate(functions):
        head = f'{frame.before}{{"name": "{function.name}", "{frame.arguments}": '
        rules.append(f"call_{number}: {spelling.terms(head)} arguments_{number} {spelling.terms('}' + frame.after)}")
        rules.append(f"arguments_{number}: {_json(_closed(function.parameters))}")
    return "\n".join(rules)


def rules_of(grammar: Grammar) -> str:
    """Rules by which `said` is a text of the grammar.

    Raises:
        RequestError: it has rules of its own, whose names could be the same.
    """
    if grammar.kind == "json_schema":
        try:
            return f"said: {_json(json.loads(grammar.source))}"
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{grammar.param} isn't valid JSON", grammar.param) from error
    if grammar.kind == "regex":
        return "said: /" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", grammar.source) + "/"
    raise RequestError(
        f"{grammar.param}: a grammar can't be combined with tools, nor with a model that thinks before it answers: "
        "give a JSON schema or an expression",
        grammar.param,
    )


def whole_answer(
    kinds: Mapping[str, str], param: str, *, spelling: Spelling, has_thoughts: bool, is_thinking: bool
) -> Grammar:
    """The grammar of an answer of one of these kinds, after a thought where the model has such.

    Each kind is the name of a rule, with its rules; `param` is the field that asks for it.
    """
    rules = "\n".join((f"answer: {' | '.join(kinds)}", *kinds.values()))
    if not has_thoughts:
        return Grammar("lark", f"start: answer\n{rules}\n", param)
    begin = "thought" if is_thinking else f"({spelling.terms(OPEN)} thought)?"
    is_special = CLOSE in spelling.special_ids
    thought = ["thought" if is_special else "thought[lazy]", f": TEXT {spelling.terms(CLOSE)}"]
    return Grammar(
        "lark", f"start: {begin} SPACE answer\n{''.join(thought)}\nTEXT: /(.|\\n)*/\n{_SPACE}\n{rules}\n", param
    )


def _closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without members that it doesn't name, unless it says that there may be such."""
    return parameters if parameters.keys() & _OPENING else {**parameters, "additionalProperties": False}


def _json(schema: object) -> str:
    plain = {"x-guidance": _PLAIN_JSON, **schema} if isinstance(schema, Mapping) else schema
    return "%json " + json.dumps(plain, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
