"""Writes the tables of docs/api.md from the request models: one row a field, obeyed, accepted or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.completions import CompletionRequest
from mtplx.server.protocol.messages import MessagesRequest
from mtplx.server.protocol.responses import ResponsesRequest
from mtplx.server.protocol.strict import UNSUPPORTED, Accepted, Refused, StrictModel
from mtplx.server.protocol.tokens import DetokenizeRequest, TokenizeRequest

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
MODELS: dict[str, type[BaseModel]] = {
    "chat": ChatCompletionRequest,
    "completions": CompletionRequest,
    "messages": MessagesRequest,
    "responses": ResponsesRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field: its path, such as messages.*.role, and what the server does with it."""

    path: str
    verdict: str  # obeyed, accepted, or the error
    note: str

    def as_markdown(self) -> str:
        return f"| `{self.path}` | {self.verdict} | {self.note} |"


def field_rows(model: type[BaseModel], prefix: str = "") -> Iterator[FieldRow]:
    """Every field of the model and of the models inside it, in the order of their declaration."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield _row(path, field)
        inside = list(_models_in(field.annotation, is_listed=False))
        for inner, is_listed in inside:
            kind = _kind_of(inner) if len(inside) > 1 else ""
            yield from field_rows(inner, f"{path}.*{kind}." if is_listed else f"{path}{kind}.")


def render_page(page: str) -> str:
    """The page with its tables made anew; the text around them stays."""
    for name, model in MODELS.items():
        begin, end = f"<!-- begin fields of {name} -->\n", f"<!-- end fields of {name} -->"
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        rows = "\n".join(row.as_markdown() for row in field_rows(model))
        page = f"{before}{begin}| field | what happens | |\n|---|---|---|\n{rows}\n{end}{after}"
    return page


def _row(path: str, field: FieldInfo) -> FieldRow:
    for mark in field.metadata:
        if isinstance(mark, Refused):
            passing = ", ".join(f"`{json.dumps(value)}`" for value in mark.no_ops)
            return FieldRow(path, f"400 `{UNSUPPORTED}`", f"{mark.why}; passes when absent or {passing}")
        if isinstance(mark, Accepted):
            return FieldRow(path, "accepted", f"asks nothing of the answer: {mark.why}")
    return FieldRow(path, "obeyed", field.description or "")


def _kind_of(model: type[BaseModel]) -> str:
    """What tells a model from others that the same field may hold: the value of its type, such as (text)."""
    kinds = re.findall(r"'(\w+)'", repr(model.model_fields["type"].annotation))
    return f"({'|'.join(kinds)})"


def _models_in(annotation: Any, *, is_listed: bool) -> Iterator[tuple[type[BaseModel], bool]]:
    """The request models that a type is made of, and whether they are items of a list."""
    if isinstance(annotation, TypeAliasType):
        yield from _models_in(annotation.__value__, is_listed=is_listed)
    elif isinstance(annotation, type) and issubclass(annotation, StrictModel):
        yield annotation, is_listed
    else:
        for part in get_args(annotation):
            yield from _models_in(part, is_listed=is_listed or getattr(annotation, "__origin__", None) is tuple)


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
