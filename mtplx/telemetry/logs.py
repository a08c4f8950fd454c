"""The log's two forms, lines for people and JSON objects for machines, with the id of the request that each is about.

What is logged never holds prompts or answers: log calls get counts, ids and codes, and the tests look for leaks.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from mtplx.telemetry.record import RequestRecord

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that the running task answers; follows into the tasks and threads that it starts."""

_FIELDS = "mtplx_fields"  # a log record's attribute that holds what isn't text
_access = logging.getLogger("mtplx.access")


def configure_logging(level: str, form: Literal["text", "json"]) -> None:
    """Sends the log of this process to stderr, once."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def log_request(record: RequestRecord) -> None:
    """The request's own line; a look at a page that went well is only worth one when debugging."""
    is_look = record.method in ("GET", "HEAD") and record.status is not None and record.status < 400
    _access.log(logging.DEBUG if is_look else logging.INFO, "request", extra={_FIELDS: record.fields()})


class TextFormatter(logging.Formatter):
    """`INFO mtplx.access: request method=POST status=200 [request id]`."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as the base class calls it
        fields = [f"{name}={_plain(value)}" for name, value in getattr(record, _FIELDS, {}).items()]
        request_id = REQUEST_ID.get()
        ending = [f"[{request_id}]"] if request_id else []
        return " ".join([super().formatMessage(record), *fields, *ending])


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, and what else there is."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _plain(value: object) -> str:
    """On one line, whatever a client sent: quoted where it has more than plain characters in it."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else json.dumps(text)
