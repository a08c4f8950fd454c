"""Strict types for what clients send, and fields known only to be refused or to ask nothing.

Every field is obeyed, accepted because it asks nothing of the answer, or refused by name. The types say which, so that
the description at /openapi.json, the table in docs/api.md and the behaviour come from one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypeAliasType

from mtplx.errors import RequestError
from mtplx.sampling_params import MAX_STOP_STRINGS

UNSUPPORTED = "unsupported_parameter"
INVALID = "invalid_value"
MAX_BIASED_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Refused:
    """Marks a field that is known and not implemented: it may be absent or say what happens anyway."""

    why: str
    no_ops: tuple[Any, ...] = (None,)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(self.no_ops), "description": f"Not supported: {self.why}."}

    def _check(self, value: Any) -> Any:
        if any(type(value) is type(no_op) and value == no_op for no_op in self.no_ops):
            return value
        raise PydanticCustomError(UNSUPPORTED, "{why}", {"why": f"not supported: {self.why}"})


@dataclass(frozen=True, slots=True)
class Accepted:
    """Marks a field that asks nothing of the answer, and `why`."""

    why: str


@dataclass(frozen=True, slots=True)
class Worded:
    """What a client is told when the value isn't of the type: pydantic's own words are for programmers."""

    message: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), custom_error_type=INVALID, custom_error_message=self.message
        )


def shape_of(value: Any) -> str | None:
    """The tag of a value that may be a text or a list, None for neither.

    In angle brackets, since pydantic puts it into error paths.
    """
    if isinstance(value, str):
        return "<text>"
    return "<list>" if isinstance(value, list | tuple) else None


class StrictModel(BaseModel):
    """No unknown fields, no conversions between types, no NaN or infinity; never changed once read."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = TypeAliasType("TokenIds", Annotated[tuple[TokenId, ...], FailFast()])
StopStrings = TypeAliasType(
    "StopStrings",
    Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=MAX_STOP_STRINGS), FailFast()],
)
Stop = Annotated[
    Annotated[Annotated[str, Field(min_length=1)], Tag("<text>")] | Annotated[StopStrings, Tag("<list>")],
    Discriminator(shape_of, INVALID, "must be a string or a list of strings"),
]
LogitBias = TypeAliasType(
    "LogitBias",
    Annotated[
        dict[
            Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$"), Worded('keys must be token ids, such as "50256"')],
            Annotated[float, Field(ge=-100, le=100)],
        ],
        Field(max_length=MAX_BIASED_TOKENS, json_schema_extra={"additionalProperties": False}),
    ],
)
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


def check_token_ids(token_ids: tuple[int, ...], vocab_size: int, param: str) -> None:
    """Raises RequestError if an id isn't one of the model's."""
    if token_ids and max(token_ids) >= vocab_size:
        raise RequestError(
            f"{param} has token id {max(token_ids)}, but the model's ids end at {vocab_size - 1}",
            param,
            "invalid_value",
        )
