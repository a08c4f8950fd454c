"""The outermost layer of the app: request ids, the size of heads, and the last resort for unplanned exceptions."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtplx.errors import HeadTooLargeError
from mtplx.server.error_bodies import answer_of, is_planned

MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 * 2**10  # of the path and all headers
REQUEST_ID_HEADER = "x-request-id"
_USABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = logging.getLogger(__name__)


class Boundary:
    """Gives every answer an id, the client's own where it is harmless; turns surprises into a plain 500 in the log."""

    def __init__(self, app: ASGIApp, on_error: Callable[[Exception], None]) -> None:
        self._app = app
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            _check_head(scope)
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            log.debug("request %s: the client left", request_id)
        except Exception as error:  # the app's boundary: nothing above this could answer the client
            if not is_planned(error):
                log.exception("request %s failed", request_id)
            self._on_error(error)
            if not has_started:
                await answer_of(error).response(scope["path"])(scope, receive, send_with_id)


def _request_id(headers: Headers) -> str:
    sent = headers.get(REQUEST_ID_HEADER, "")
    return sent if _USABLE_ID.fullmatch(sent) else uuid.uuid4().hex


def _check_head(scope: Scope) -> None:
    """Raises HeadTooLargeError: the HTTP library bounds only heads that come in pieces."""
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        raise HeadTooLargeError(f"{len(headers)} headers are over the limit of {MAX_HEADERS}")
    num_bytes = len(scope["path"]) + len(scope["query_string"]) + sum(len(name) + len(text) for name, text in headers)
    if num_bytes > MAX_HEAD_BYTES:
        raise HeadTooLargeError(f"a head of {num_bytes} bytes is over the limit of {MAX_HEAD_BYTES}")
