"""Known endpoints that this server doesn't have: each is refused with the reason, instead of as an unknown path."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from mtplx.errors import RequestError
from mtplx.server.error_bodies import MAX_ECHOED_CHARACTERS


@dataclass(frozen=True, slots=True)
class Absent:
    """Endpoints that are missing for one reason."""

    why: str
    paths: tuple[str, ...]

    async def refuse(self, request: Request) -> Response:
        """Raises RequestError that says why."""
        raise RequestError(
            f"{request.url.path[:MAX_ECHOED_CHARACTERS]} is not served: {self.why}", code="unsupported_endpoint"
        )


ABSENT = (
    Absent(
        "the model writes text, and its hidden states were never trained to compare texts by; ask an embedding model",
        ("/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score", "/v1/classify", "/classify", "/pooling"),
    ),
    Absent(
        "the model reads and writes text only",
        ("/v1/audio/{kind}", "/v1/images/{kind}", "/v1/videos", "/v1/realtime"),
    ),
    Absent("there is no moderation model", ("/v1/moderations",)),
    Absent(
        "nothing is stored between requests",
        (
            *("/v1/files", "/v1/uploads", "/v1/batches", "/v1/messages/batches", "/v1/vector_stores"),
            *("/v1/conversations", "/v1/assistants", "/v1/threads", "/v1/responses/{id:path}"),
        ),
    ),
    Absent("this server trains nothing; `mtplx train-head` trains draft heads", ("/v1/fine_tuning/{kind}",)),
)
