"""Reads a JSON body into a request model: bounded while it streams in, strict in what it takes."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mtplx.errors import BodyTooLargeError, EncodingError
from mtplx.server.error_bodies import request_error
from mtplx.server.protocol.strict import StrictModel

MAX_BODY_BYTES = 8 * 2**20  # a million token ids, or four megabytes of text written as escapes

Model = TypeVar("Model", bound=StrictModel)


async def read_model(request: Request, model: type[Model]) -> Model:
    """The body as a `model`.

    Raises:
        RequestError: not JSON in UTF-8, too deep, or not a `model`; names the first field at fault.
        EncodingError: compressed, or in another charset.
        BodyTooLargeError: over MAX_BODY_BYTES, whatever Content-Length says.
        HTTPException: 415, the content type isn't JSON. Browsers send other types across origins without asking.
        ClientDisconnect: the client left before the end of the body.
    """
    _check_encoding(request)
    body = await _read_bounded(request)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise request_error(error.errors(include_url=False, include_context=False)) from None


def _check_encoding(request: Request) -> None:
    media_type, *parameters = request.headers.get("content-type", "").lower().split(";")
    media_type = media_type.strip()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HTTPException(415, "send the body as content-type application/json")
    named = [
        text.strip() for name, _, text in (each.partition("=") for each in parameters) if name.strip() == "charset"
    ]
    if not {charset.strip('"') for charset in named} <= {"utf-8", "utf8"}:
        raise EncodingError("content-type: JSON is in UTF-8, no other charset is read")
    codings = ",".join(request.headers.getlist("content-encoding")).split(",")
    if any(coding.strip().lower() not in ("", "identity") for coding in codings):
        raise EncodingError("content-encoding: no compressed bodies are read, send it as it is")


async def _read_bounded(request: Request) -> bytes:
    _check_size(int(request.headers.get("content-length", 0)))  # digits: the HTTP server has seen to it
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        _check_size(len(body))
    return bytes(body)


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_BODY_BYTES:
        raise BodyTooLargeError(f"the body is over the limit of {MAX_BODY_BYTES} bytes")
