"""From any exception to an HTTP answer in the shape of the API that was asked; no more than clients should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from mtplx.errors import DeadlineError, OverloadedError, RequestError, ServerError, TooManyRequestsError
from mtplx.server.answers.shapes import ErrorBody, MessagesErrorBody
from mtplx.server.protocol.strict import UNSUPPORTED

_CODES_BY_STATUS = {404: "not_found", 405: "method_not_allowed", 415: "unsupported_media_type"}
_CODES_BY_PYDANTIC_TYPE = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "json_invalid": "invalid_json",
    UNSUPPORTED: UNSUPPORTED,
}

MAX_ECHOED_CHARACTERS = 128  # of what a client wrote, in an error about it
_PLAIN_WORDS = {
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
_MAPS = ("logit_bias", "metadata", "cache_control")  # whose keys are the client's own
MESSAGES_PATH = "/v1/messages"  # what is below it speaks as Anthropic's API does
_OVERLOADED_MESSAGES = 529
_MESSAGES_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED_MESSAGES: "overloaded_error",
}
PLANNED_ERRORS = (RequestError, ServerError, HTTPException, RequestValidationError)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """Status, body and extra headers of one failed request."""

    status: int
    body: ErrorBody
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return self.body["error"]["code"] or "unknown"

    @property
    def messages_status(self) -> int:
        """The status as Anthropic's API has it: one of its own for a full queue, which its clients know by name."""
        return _OVERLOADED_MESSAGES if self.code == OverloadedError.code else self.status

    def messages_body(self, request_id: str | None) -> MessagesErrorBody:
        """The body in the shape of Anthropic's API, with the field and the code beside what that has."""
        status, error = self.messages_status, self.body["error"]
        kind = _MESSAGES_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {
            "type": "error",
            "error": {"type": kind, "message": error["message"], "param": error["param"], "code": error["code"]},
            "request_id": request_id,
        }

    def response(self, path: str, request_id: str) -> JSONResponse:
        """The answer to a request of that path, in the shape of whoever asks there."""
        if is_of_messages(path):
            return JSONResponse(self.messages_body(request_id), self.messages_status, dict(self.headers))
        return JSONResponse(self.body, self.status, dict(self.headers))


def is_of_messages(path: str) -> bool:
    """Whether Anthropic's clients ask for it."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def answer_of(error: Exception) -> ErrorAnswer:
    """What the client is told about `error`; an exception that nobody planned becomes a 500 without its words."""
    if isinstance(error, RequestError):
        body = _body(str(error), error.status, error.param, error.code or "invalid_value")
        return ErrorAnswer(error.status, body, _request_headers(error))
    if isinstance(error, ServerError):
        return ErrorAnswer(error.status, _body(str(error), error.status, None, error.code), _server_headers(error))
    if isinstance(error, RequestValidationError):  # FastAPI's own: its paths begin with "path" or "query"
        return answer_of(request_error(error.errors(), num_leading=1))
    if isinstance(error, HTTPException):
        status, code = error.status_code, _CODES_BY_STATUS.get(error.status_code, "invalid_request")
        return ErrorAnswer(status, _body(str(error.detail), status, None, code), error.headers or {})
    return ErrorAnswer(500, _body("the server failed on this request", 500, None, "internal_error"))


def _request_headers(error: RequestError) -> Mapping[str, str]:
    if isinstance(error, TooManyRequestsError):
        return {"retry-after": str(error.retry_after_s)}
    return {"www-authenticate": "Bearer"} if error.status == 401 else {}


def _server_headers(error: ServerError) -> Mapping[str, str]:
    if isinstance(error, OverloadedError):
        return {"retry-after": str(error.retry_after_s)}
    # OpenAI's clients try a 504 again by themselves, which would take as long again for nobody.
    return {"x-should-retry": "false"} if isinstance(error, DeadlineError) else {}


def is_planned(error: Exception) -> bool:
    """Whether the error's words are meant for the client."""
    return isinstance(error, PLANNED_ERRORS)


def request_error(problems: Sequence[ErrorDetails], *, num_leading: int = 0) -> RequestError:
    """The first of pydantic's complaints as a RequestError that names the field as a dotted path, such as stop.3.

    The first `num_leading` parts of pydantic's path are left out.
    """
    problem = problems[0]
    code = _CODES_BY_PYDANTIC_TYPE.get(problem["type"], "invalid_value")
    if code == "invalid_value" and _is_null_field(problem):
        code = "missing_required_parameter"
    param = _path(problem["loc"][num_leading:], is_clients_own=code == "unknown_parameter") or None
    if code == "unknown_parameter":
        return RequestError(f"{param} is not a known parameter", param, code)
    if code == "missing_required_parameter":
        return RequestError(f"{param} is required", param, code)
    return RequestError(": ".join(part for part in (param, _words(problem)) if part), param, code)


def _is_null_field(problem: ErrorDetails) -> bool:
    """Whether a field is null that can't be absent; items of lists and values of a client's own keys are no fields."""
    *parents, last = problem["loc"] or (0,)
    is_field = isinstance(last, str) and not (parents and parents[-1] in _MAPS)
    return is_field and "input" in problem and problem["input"] is None


def _words(problem: ErrorDetails) -> str:
    """What is wrong, in JSON's words: where pydantic speaks of Python's types, these are replaced."""
    plain = _PLAIN_WORDS.get(problem["type"])
    return plain or problem["msg"].replace("Tuple should", "the list should").replace(" after validation", "")


def _path(parts: Sequence[int | str], *, is_clients_own: bool) -> str:
    """Without the tags that tell a text from a list, and pydantic's mark for a dictionary's key.

    `is_clients_own` says that the last part is a name that the client made up, whatever it looks like.
    """
    last = len(parts) - 1
    names = [str(part) for index, part in enumerate(parts) if (is_clients_own and index == last) or not _is_mark(part)]
    return ".".join(name[:MAX_ECHOED_CHARACTERS] for name in names)


def _is_mark(part: int | str) -> bool:
    return isinstance(part, str) and (part == "[key]" or (part.startswith("<") and part.endswith(">")))


def _body(message: str, status: int, param: str | None, code: str | None) -> ErrorBody:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
