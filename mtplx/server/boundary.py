"""The outermost layer of the app: ids and records of requests, the size of heads, the last resort for exceptions."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtplx.errors import HeadTooLargeError
from mtplx.server.error_bodies import answer_of, is_of_messages, is_planned
from mtplx.telemetry.logs import REQUEST_ID
from mtplx.telemetry.record import CLIENT_LEFT, Observer, RequestRecord

MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 * 2**10  # of the path and all headers
REQUEST_ID_HEADER = "x-request-id"
MESSAGES_ID_HEADER = "request-id"  # as Anthropic's clients look for it
_TRACE_HEADERS = ("traceparent", "tracestate")
_USABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = logging.getLogger(__name__)


class Boundary:
    """Gives every answer an id, the client's own where it is harmless; turns surprises into a plain 500 in the log.

    `check_first` may refuse a request by raising, before anything is done for it. At a request's end, however it came,
    the observers hear of it.
    """

    def __init__(
        self,
        app: ASGIApp,
        observers: Iterable[Observer],
        check_first: Callable[[Scope], None],
    ) -> None:
        self._app = app
        self._observers = tuple(observers)
        self._check_first = check_first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = begin_record(scope)
        token = REQUEST_ID.set(record.request_id)
        try:
            await self._answer(record, scope, receive, send)
        finally:
            REQUEST_ID.reset(token)
            end_record(record, self._observers)

    async def _answer(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        is_whole = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_whole
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                record.status = record.status or message["status"]  # a refused connection has told another already
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = record.request_id
                if is_of_messages(record.path):
                    headers[MESSAGES_ID_HEADER] = record.request_id
            await send(message)

        try:
            _check_head(scope)
            self._check_first(scope)
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            if not is_whole:  # else it is the end of what was said
                record.fail(CLIENT_LEFT)
        except Exception as error:  # the app's boundary: nothing above this could answer the client
            if not is_planned(error):
                log.exception("request %s failed", record.request_id)
            record.fail(answer_of(error).code)
            if record.status is None:
                await answer_of(error).response(scope["path"], record.request_id)(scope, receive, send_with_id)


def begin_record(scope: Scope) -> RequestRecord:
    """The record that the request's scope holds from now on, or has held: its connection may have come first."""
    state = scope.setdefault("state", {})
    if "record" not in state:
        headers = Headers(scope=scope)
        traced = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
        state["record"] = RequestRecord(_request_id(headers), scope["method"], scope["path"], traced, time.monotonic())
    record: RequestRecord = state["record"]
    return record


def end_record(record: RequestRecord, observers: Iterable[Observer]) -> None:
    """Lets the observers hear of a request that is over."""
    token = REQUEST_ID.set(record.request_id)
    try:
        record.ended_at_s = time.monotonic()
        for observe in observers:
            observe(record)
    finally:
        REQUEST_ID.reset(token)


def new_request_id() -> str:
    return uuid.uuid4().hex


def record_of(request: Request) -> RequestRecord:
    """What is known of a request so far, for whoever knows more."""
    record: RequestRecord = request.state.record
    return record


def _request_id(headers: Headers) -> str:
    sent = headers.get(REQUEST_ID_HEADER, "")
    return sent if _USABLE_ID.fullmatch(sent) else new_request_id()


def _check_head(scope: Scope) -> None:
    """Raises HeadTooLargeError: the HTTP library bounds only heads that come in pieces."""
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        raise HeadTooLargeError(f"{len(headers)} headers are over the limit of {MAX_HEADERS}")
    num_bytes = len(scope["path"]) + len(scope["query_string"]) + sum(len(name) + len(text) for name, text in headers)
    if num_bytes > MAX_HEAD_BYTES:
        raise HeadTooLargeError(f"a head of {num_bytes} bytes is over the limit of {MAX_HEAD_BYTES}")
