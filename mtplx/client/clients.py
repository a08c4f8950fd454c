"""Subclasses of the `openai` package's two clients; they know a server's address and its JSON pages, nothing more.

client = OpenAIClient()                              http://127.0.0.1:8000/v1, or MTPLX_BASE_URL
client.chat.completions.create(...)                  all that openai.OpenAI can do
client.get("/status")["scheduler_mode"]              any JSON page under the base address, as a dict
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, overload

import openai

from mtplx.errors import MtplxError

if TYPE_CHECKING:
    from openai import RequestOptions
    from openai._base_client import _AsyncStreamT, _StreamT
    from openai._types import ResponseT

DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"
NO_KEY = "none"  # the base class insists on a key; a server without keys takes any


class OpenAIClient(openai.OpenAI):
    """`openai.OpenAI` for a server of this project.

    `base_url` defaults to the variable MTPLX_BASE_URL, then to a local server; `api_key` to the first key of
    MTPLX_API_KEY, the server's own variable, then to a placeholder. OPENAI_API_KEY and OPENAI_BASE_URL are not read: a
    key for one service isn't sent to another. `options` are the base class's.
    """

    def __init__(self, *, base_url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        super().__init__(base_url=_base_url_or_default(base_url), api_key=_api_key_or_default(api_key), **options)

    @overload
    def get(self, path: str, *, options: RequestOptions = ...) -> dict[str, Any]: ...

    @overload
    def get(
        self, path: str, *, cast_to: type[ResponseT], options: RequestOptions = ..., stream: Literal[False] = ...
    ) -> ResponseT: ...

    @overload
    def get(
        self,
        path: str,
        *,
        cast_to: type[ResponseT],
        options: RequestOptions = ...,
        stream: Literal[True],
        stream_cls: type[_StreamT],
    ) -> _StreamT: ...

    @overload
    def get(
        self,
        path: str,
        *,
        cast_to: type[ResponseT],
        options: RequestOptions = ...,
        stream: bool,
        stream_cls: type[_StreamT] | None = ...,
    ) -> ResponseT | _StreamT: ...

    def get(self, path: str, *, cast_to: Any = None, **request: Any) -> Any:
        """The page at `path` under the base address as a dict; with `cast_to` what the base class gives.

        Raises:
            openai.APIError: no answer, or one with an error status.
            MtplxError: the page isn't a JSON object.
        """
        if cast_to is not None:
            return super().get(path, cast_to=cast_to, **request)
        return _as_dict(path, super().get(path, cast_to=object, **request))


class AsyncOpenAIClient(openai.AsyncOpenAI):
    """`openai.AsyncOpenAI` with the defaults of `OpenAIClient`."""

    def __init__(self, *, base_url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        super().__init__(base_url=_base_url_or_default(base_url), api_key=_api_key_or_default(api_key), **options)

    @overload
    async def get(self, path: str, *, options: RequestOptions = ...) -> dict[str, Any]: ...

    @overload
    async def get(
        self, path: str, *, cast_to: type[ResponseT], options: RequestOptions = ..., stream: Literal[False] = ...
    ) -> ResponseT: ...

    @overload
    async def get(
        self,
        path: str,
        *,
        cast_to: type[ResponseT],
        options: RequestOptions = ...,
        stream: Literal[True],
        stream_cls: type[_AsyncStreamT],
    ) -> _AsyncStreamT: ...

    @overload
    async def get(
        self,
        path: str,
        *,
        cast_to: type[ResponseT],
        options: RequestOptions = ...,
        stream: bool,
        stream_cls: type[_AsyncStreamT] | None = ...,
    ) -> ResponseT | _AsyncStreamT: ...

    async def get(self, path: str, *, cast_to: Any = None, **request: Any) -> Any:
        """As `OpenAIClient.get`."""
        if cast_to is not None:
            return await super().get(path, cast_to=cast_to, **request)
        return _as_dict(path, await super().get(path, cast_to=object, **request))


def _base_url_or_default(base_url: str | None) -> str:
    return base_url or os.environ.get("MTPLX_BASE_URL") or DEFAULT_BASE_URL


def _api_key_or_default(api_key: str | None) -> str:
    return api_key or os.environ.get("MTPLX_API_KEY", "").split(",")[0].strip() or NO_KEY


def _as_dict(path: str, page: object) -> dict[str, Any]:
    if not isinstance(page, dict):
        raise MtplxError(f"{path} is no JSON object; ask for it with cast_to=str")
    return page
