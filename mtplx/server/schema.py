"""The parts of /openapi.json that FastAPI can't see: bodies that handlers read themselves, streams, errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mtplx.server.answers.shapes import ErrorBody, MessagesErrorBody

_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "a field is wrong or not supported; `param` names it",
    401: "no API key, or not one of this server's",
    404: "no such model",
    413: "the body is too large",
    415: "the body isn't sent as JSON, is compressed or not in UTF-8",
    429: "this API key has its share of the queue (try again after `Retry-After` seconds)",
    500: "generation failed",
    503: "the queue is full (try again after `Retry-After` seconds), or the engine is not running",
    504: "the request's time was over before it had a token",
    529: "the queue is full (try again after `Retry-After` seconds)",
}

Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    """Documents these statuses with the error body."""
    return {status: {"model": ErrorBody, "description": _ERRORS[status]} for status in statuses}


def messages_errors(*statuses: int) -> Responses:
    """The same with the error body of Anthropic's API."""
    return {status: {"model": MessagesErrorBody, "description": _ERRORS[status]} for status in statuses}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra`: the handler reads a `model` from the body."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def json_or_events(model: Any, chunk: Any, end: str = ", then [DONE]") -> Responses:
    """Documents a 200 that is either one body or a stream of chunks and its `end`."""
    events = f"events whose data is a {chunk.__name__}{end}; after an error an event with the error's body"
    return {
        200: {
            "model": model,
            "description": "the answer",
            "content": {"text/event-stream": {"schema": {"type": "string", "description": events}}},
        }
    }


class DescribedApi(FastAPI):
    """An app whose description includes `bodies`, which its handlers read themselves."""

    def __init__(self, *, bodies: tuple[type[BaseModel], ...], **settings: Any) -> None:
        super().__init__(**settings)
        self._bodies = bodies

    def openapi(self) -> dict[str, Any]:
        is_new = self.openapi_schema is None
        schema = super().openapi()
        if is_new:
            _, described = models_json_schema(
                [(model, "validation") for model in self._bodies], ref_template=_REF.format(model="{model}")
            )
            assert not described["$defs"].keys() & schema["components"]["schemas"].keys(), "a name means one thing"
            schema["components"]["schemas"].update(described["$defs"])
            _forget_422(schema)
        return schema


def _forget_422(schema: dict[str, Any]) -> None:
    """FastAPI documents its own validation error wherever there is a parameter; ours is the 400."""
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
