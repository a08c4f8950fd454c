"""The parts of /openapi.json that FastAPI can't see: bodies that handlers read themselves, streams, errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter

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
    return _failures(ErrorBody, statuses)


def messages_errors(*statuses: int) -> Responses:
    """The same with the error body of Anthropic's API."""
    return _failures(MessagesErrorBody, statuses)


def _failures(body: Any, statuses: tuple[int, ...]) -> Responses:
    return {status: {"description": _ERRORS[status], "content": _json(body)} for status in statuses}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra`: the handler reads a `model` from the body."""
    return {"requestBody": {"required": True, "content": _json(model)}}


def json_or_events(answer: Any, chunk: Any, end: str = ", then [DONE]") -> Responses:
    """Documents a 200 that is either one body or a stream of chunks and its `end`."""
    events = f"events whose data is a {chunk.__name__}{end}; after an error an event with the error's body"
    stream = {"text/event-stream": {"schema": {"type": "string", "description": events}}}
    return {200: {"description": "the answer", "content": {**_json(answer), **stream}}}


def _json(shape: Any) -> dict[str, Any]:
    """Refers to a shape by name: FastAPI would make a validator of it for each route and status, which nothing uses."""
    return {"application/json": {"schema": {"$ref": _REF.format(model=shape.__name__)}}}


class DescribedApi(FastAPI):
    """An app whose description includes what its handlers read and write themselves: `bodies`, `answers`, errors."""

    def __init__(self, *, bodies: tuple[type[BaseModel], ...], answers: tuple[Any, ...], **settings: Any) -> None:
        super().__init__(**settings)
        self._bodies = bodies
        self._answers = (*answers, ErrorBody, MessagesErrorBody)

    def openapi(self) -> dict[str, Any]:
        is_new = self.openapi_schema is None
        schema = super().openapi()
        if is_new:
            _, described = TypeAdapter.json_schemas(
                [
                    *((body.__name__, "validation", TypeAdapter(body)) for body in self._bodies),
                    *((answer.__name__, "serialization", TypeAdapter(answer)) for answer in self._answers),
                ],
                ref_template=_REF.format(model="{model}"),
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
