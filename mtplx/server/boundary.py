"""The outermost layer of the app: request ids, and the last resort for exceptions that nobody planned."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtplx.server.error_bodies import answer_of

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
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            log.debug("request %s: the client left", request_id)
        except Exception as error:  # the app's boundary: nothing above this could answer the client
            log.exception("request %s failed", request_id)
            self._on_error(error)
            if not has_started:
                await answer_of(error).response()(scope, receive, send_with_id)


def _request_id(headers: Headers) -> str:
    sent = headers.get(REQUEST_ID_HEADER, "")
    return sent if _USABLE_ID.fullmatch(sent) else uuid.uuid4().hex
