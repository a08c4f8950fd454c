"""Reads a JSON body into a request model: bounded while it streams in, strict in what it takes."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mtplx.errors import BodyTooLargeError
from mtplx.server.error_bodies import request_error
from mtplx.server.protocol.strict import StrictModel

MAX_BODY_BYTES = 8 * 2**20  # a million token ids, or four megabytes of text written as escapes

Model = TypeVar("Model", bound=StrictModel)


async def read_model(request: Request, model: type[Model]) -> Model:
    """The body as a `model`.

    Raises:
        RequestError: not JSON in UTF-8, too deep, or not a `model`; names the first field at fault.
        BodyTooLargeError: over MAX_BODY_BYTES, whatever Content-Length says.
        HTTPException: 415, the content type isn't JSON. Browsers send other types across origins without asking.
        ClientDisconnect: the client left before the end of the body.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HTTPException(415, "send the body as content-type application/json")
    body = await _read_bounded(request)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise request_error(error.errors(include_url=False, include_context=False, include_input=False)) from None


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
