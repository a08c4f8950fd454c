"""API keys: compared in constant time, never logged."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated

from fastapi import Depends
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.requests import Request

from mtplx.errors import AuthenticationError

_BEARER = HTTPBearer(auto_error=False, description="one of the server's API keys")
_KEY_HEADER = APIKeyHeader(name="x-api-key", auto_error=False, description="the same, as Anthropic's clients send it")


class ApiKeyCheck:
    """A dependency that lets a request through only with one of the keys; keeps their digests, not the keys."""

    def __init__(self, keys: Iterable[SecretStr]) -> None:
        self._digests = tuple(sha256(key.get_secret_value().encode(errors="surrogateescape")).digest() for key in keys)

    async def __call__(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
        key: Annotated[str | None, Depends(_KEY_HEADER)],
    ) -> None:
        """Marks the request with its tenant, the key's digest; raises AuthenticationError without a key of ours."""
        key = key if credentials is None else credentials.credentials
        if key is None:
            raise AuthenticationError(
                "this server needs an API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
            )
        sent = sha256(key.encode("latin-1")).digest()  # the bytes that came, as ASGI decodes them
        is_known = False
        for digest in self._digests:  # all of them, whichever fits: the time tells nothing
            is_known |= hmac.compare_digest(digest, sent)
        if not is_known:
            raise AuthenticationError("the API key is not one of this server's")
        request.state.tenant = sent


def tenant_of(request: Request) -> bytes:
    """Whose request it is: the digest of its API key, nothing where the server has no keys."""
    tenant: bytes = getattr(request.state, "tenant", b"")
    return tenant
