"""The web application: routes, middleware, and one place where every error becomes an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from mtplx.server.answers.info_shapes import ProfilePage
from mtplx.server.answers.messages_shapes import MessageAnswer, MessageEvent
from mtplx.server.answers.responses_shapes import ResponseEvent, ResponseObject
from mtplx.server.answers.shapes import ChatCompletion, ChatCompletionChunk, Completion
from mtplx.server.auth import ApiKeyCheck
from mtplx.server.boundary import MESSAGES_ID_HEADER, REQUEST_ID_HEADER, Boundary, record_of
from mtplx.server.context import ServerContext
from mtplx.server.error_bodies import PLANNED_ERRORS, answer_of
from mtplx.server.handlers.absent import ABSENT
from mtplx.server.handlers.completions import CompletionHandlers
from mtplx.server.handlers.info import InfoHandlers
from mtplx.server.handlers.prompts import PromptMaker
from mtplx.server.handlers.tokens import TokenHandlers
from mtplx.server.handlers.translated import TranslatedHandlers
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.completions import CompletionRequest
from mtplx.server.protocol.messages import CountTokensRequest, MessagesRequest
from mtplx.server.protocol.responses import ResponsesRequest
from mtplx.server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from mtplx.server.schema import DescribedApi, Responses, errors, json_body, json_or_events, messages_errors
from mtplx.telemetry.logs import log_request
from mtplx.telemetry.metrics import HttpMetrics
from mtplx.telemetry.record import Observer

_FAILURES = (400, 401, 404, 413, 415, 429, 500, 503, 504)  # of what is generated
GENERATING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})


def create_app(context: ServerContext) -> FastAPI:
    """The whole HTTP side over a running engine; starts and stops nothing."""
    metrics = HttpMetrics(context.streams.status, context.model_name)
    app = DescribedApi(
        bodies=(
            ChatCompletionRequest,
            CompletionRequest,
            MessagesRequest,
            CountTokensRequest,
            ResponsesRequest,
            TokenizeRequest,
            DetokenizeRequest,
        ),
        answers=(ChatCompletion, Completion, MessageAnswer, ResponseObject),
        title="mtplx",
        version=context.version,
        description="The OpenAI API over one model. Fields that aren't supported are refused by name.",
        redoc_url=None,
        redirect_slashes=False,
    )
    guards = [Depends(ApiKeyCheck(context.api_keys))] if context.api_keys else []
    info = InfoHandlers(context, metrics, started_at_s=time.monotonic())
    prompts = PromptMaker(context)
    completions = CompletionHandlers(context, metrics, prompts)
    app.include_router(_completion_routes(completions), dependencies=guards)
    translated = TranslatedHandlers(context, completions, prompts)
    app.include_router(_responses_routes(translated), dependencies=guards)
    app.include_router(_messages_routes(translated), dependencies=guards)
    app.include_router(_token_routes(TokenHandlers(context, prompts)), dependencies=guards)
    app.include_router(_info_routes(info), dependencies=guards)
    app.include_router(_absent_routes(), dependencies=guards)
    _add_get(app, "/health", info.health, responses=errors(503))
    app.state.observers = (metrics.count_request, log_request, *context.observers)
    _answer_errors(app, observers_of(app), _check_first(context))
    if context.settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=context.settings.cors_origin,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=(REQUEST_ID_HEADER, MESSAGES_ID_HEADER, "retry-after"),
        )
    return app


def observers_of(app: FastAPI) -> tuple[Observer, ...]:
    """Who must hear of a request that is refused before it reaches the app, too."""
    observers: tuple[Observer, ...] = app.state.observers
    return observers


def _completion_routes(handlers: CompletionHandlers) -> APIRouter:
    router = APIRouter(tags=["completions"], responses=errors(*_FAILURES))
    chunks, pieces = json_or_events(ChatCompletion, ChatCompletionChunk), json_or_events(Completion, Completion)
    _add_post(router, "/v1/chat/completions", handlers.create_chat_completion, ChatCompletionRequest, chunks)
    _add_post(router, "/v1/completions", handlers.create_completion, CompletionRequest, pieces)
    return router


def _responses_routes(handlers: TranslatedHandlers) -> APIRouter:
    router = APIRouter(tags=["responses"], responses=errors(*_FAILURES))
    events = json_or_events(ResponseObject, ResponseEvent, "")
    _add_post(router, "/v1/responses", handlers.create_response, ResponsesRequest, events)
    return router


def _messages_routes(handlers: TranslatedHandlers) -> APIRouter:
    router = APIRouter(tags=["messages"], responses=messages_errors(400, 401, 404, 413, 415, 500))
    events = {**json_or_events(MessageAnswer, MessageEvent, ""), **messages_errors(429, 503, 504, 529)}
    _add_post(router, "/v1/messages", handlers.create_message, MessagesRequest, events)
    _add_post(router, "/v1/messages/count_tokens", handlers.count_tokens, CountTokensRequest)
    return router


def _token_routes(handlers: TokenHandlers) -> APIRouter:
    router = APIRouter(tags=["tokens"], responses=errors(400, 401, 404, 413, 415))
    _add_post(router, "/tokenize", handlers.tokenize, TokenizeRequest)
    _add_post(router, "/detokenize", handlers.detokenize, DetokenizeRequest)
    return router


def _absent_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for absent in ABSENT:
        for path in absent.paths:
            router.add_api_route(path, absent.refuse, methods=["GET", "POST", "DELETE"])
    return router


def _info_routes(handlers: InfoHandlers) -> APIRouter:
    router = APIRouter(tags=["information"], responses=errors(401))
    _add_get(router, "/v1/models", handlers.list_models)
    _add_get(router, "/v1/models/{model_id:path}", handlers.get_model, responses=errors(404))
    _add_get(router, "/v1/status", handlers.status)
    _add_get(router, "/status", handlers.status, include_in_schema=False)
    _add_get(router, "/v1/profile", handlers.profile, response_model=ProfilePage, responses=errors(400))
    _add_get(router, "/metrics", handlers.metrics, responses={200: {"content": {"text/plain": {}}}})
    return router


def _add_post(
    router: APIRouter,
    path: str,
    handler: Callable[..., Any],
    body: type[BaseModel],
    responses: Responses | None = None,
) -> None:
    """A POST whose handler reads `body` itself; with `responses` it makes the response too."""
    made_by_handler: dict[str, Any] = {"response_class": JSONResponse} if responses else {}
    router.add_api_route(
        path, handler, methods=["POST"], responses=responses, openapi_extra=json_body(body), **made_by_handler
    )


def _add_get(router: APIRouter | FastAPI, path: str, handler: Callable[..., Any], **described: Any) -> None:
    """A GET, and the HEAD that goes with it, which the HTTP server sends without the body.

    The first route answers both, and what else is tried is told of both; the second is there to be described.
    """
    router.add_api_route(path, handler, methods=["GET", "HEAD"], **{**described, "include_in_schema": False})
    router.add_api_route(path, handler, methods=["GET"], **described)


def _check_first(context: ServerContext) -> Callable[[Scope], None]:
    """Refuses what can't be admitted before it is routed, read and parsed, which is what a flood costs.

    Where there are keys they come first, and so the long way.
    """

    def check(scope: Scope) -> None:
        if not context.api_keys and scope["method"] == "POST" and scope["path"] in GENERATING_PATHS:
            context.streams.check_room(1, 1)

    return check


def _answer_errors(app: FastAPI, observers: Iterable[Observer], check_first: Callable[[Scope], None]) -> None:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        found = answer_of(error)
        record = record_of(request)
        record.fail(found.code)
        return found.response(request.url.path, record.request_id)

    for kind in PLANNED_ERRORS:
        app.add_exception_handler(kind, answer)
    app.add_middleware(Boundary, observers=observers, check_first=check_first)
