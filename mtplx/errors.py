"""Every error that mtplx raises on purpose, as one tree; knows HTTP status codes as numbers, but no web framework.

MtplxError
|-- ConfigError                a setting that can't hold; refused before any port is opened
|-- ModelError                 a model that can't be found, read or served
|-- RequestError               the client's fault: 4xx, names the parameter
|   |-- AuthenticationError    401
|   |-- ModelNotFoundError     404
|   |-- ContextLengthError     400, code context_length_exceeded
|   |-- SlowRequestError       408, it didn't arrive in time
|   |-- BodyTooLargeError      413
|   |-- EncodingError          415, compressed, or in other characters than UTF-8
|   |-- TooManyRequestsError   429 with Retry-After, this API key has its share
|   `-- HeadTooLargeError      431
`-- ServerError                our fault: 5xx
    |-- OverloadedError        503 with Retry-After, decided before any work
    |-- EngineDeadError        503, the worker has ended
    |-- DeadlineError          504, the request's time was over before it had a token
    |-- StepOverdueError       503, the worker may hang
    `-- GenerationError        500, this sequence failed, others go on
        `-- NoTokenLeftError   400, it was the request's own doing, and showed only then
"""

from __future__ import annotations


class MtplxError(Exception):
    """Base of all; `str(error)` is one sentence for a person."""


class ConfigError(MtplxError):
    """A setting is wrong; `parameter` is its flag, such as `--draft-depth`."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class ModelError(MtplxError):
    """The model can't be found, read or served."""


class RequestError(MtplxError):
    """The request can't be obeyed; `param` names the field at fault."""

    status = 400
    code: str | None = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class AuthenticationError(RequestError):
    status = 401
    code = "invalid_api_key"


class ModelNotFoundError(RequestError):
    status = 404
    code = "model_not_found"


class ContextLengthError(RequestError):
    code = "context_length_exceeded"


class SlowRequestError(RequestError):
    status = 408
    code = "receive_timeout"


class BodyTooLargeError(RequestError):
    status = 413
    code = "body_too_large"


class EncodingError(RequestError):
    """The body isn't sent as it is, or not in UTF-8."""

    status = 415
    code = "unsupported_encoding"


class TooManyRequestsError(RequestError):
    """The client's API key has its share; try again after `retry_after_s` seconds."""

    status = 429
    code = "too_many_requests"
    retry_after_s = 1


class HeadTooLargeError(RequestError):
    status = 431
    code = "head_too_large"


class ServerError(MtplxError):
    """The server's own fault."""

    status = 500
    code = "internal_error"


class OverloadedError(ServerError):
    """The queue is full; try again after `retry_after_s` seconds."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDeadError(ServerError):
    """The worker has ended, nothing will be generated any more."""

    status = 503
    code = "engine_dead"


class StepOverdueError(ServerError):
    """A step has been running for so long that it may never end."""

    status = 503
    code = "step_overdue"


class DeadlineError(ServerError):
    """The request's time was over before it had a token."""

    status = 504
    code = "deadline_exceeded"


class GenerationError(ServerError):
    """One sequence failed while it was being generated."""

    code = "generation_failed"


class NoTokenLeftError(GenerationError):
    """What the request bans and what it is held to left no token to go on with; the same would come of it again."""

    status = 400
    code = "no_token_left"
