"""The endpoints of other APIs: each request is said as one of chat completions, and the answer in its own shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from mtplx.errors import RequestError
from mtplx.server.answers.messages import MESSAGES_EVENTS, MessagesAnswer
from mtplx.server.answers.messages_shapes import TokenCount
from mtplx.server.answers.responses import RESPONSES_EVENTS, ResponsesAnswer
from mtplx.server.body import read_model
from mtplx.server.context import ServerContext
from mtplx.server.handlers.checks import check_model_name
from mtplx.server.handlers.completions import CHAT, CompletionHandlers
from mtplx.server.handlers.prompts import PromptMaker
from mtplx.server.protocol.chat_of_messages import chat_of_messages
from mtplx.server.protocol.chat_of_responses import chat_of_responses
from mtplx.server.protocol.messages import CountTokensRequest, MessagesRequest
from mtplx.server.protocol.responses import ResponsesRequest
from mtplx.server.protocol.translated import Names

_MESSAGES = replace(CHAT, name="messages", id_prefix="msg_", make_answer=MessagesAnswer, style=MESSAGES_EVENTS)
_RESPONSES = replace(CHAT, name="responses", id_prefix="resp_", style=RESPONSES_EVENTS)


class TranslatedHandlers:
    """Translates only; whatever a request costs is done by the handlers of chat completions."""

    def __init__(self, context: ServerContext, completions: CompletionHandlers, prompts: PromptMaker) -> None:
        self._context = context
        self._prompts = prompts
        self._completions = completions

    async def create_message(self, request: Request) -> Response:
        """Answers a conversation, as Anthropic's API does."""
        body = await read_model(request, MessagesRequest)
        chat, names = chat_of_messages(body)
        with _own_names(names):
            return await self._completions.answer_chat(request, chat, _MESSAGES)

    async def count_tokens(self, request: Request) -> TokenCount:
        """Counts the tokens of a conversation's prompt, as Anthropic's API does."""
        body = await read_model(request, CountTokensRequest)
        check_model_name(body.model, self._context)
        chat, names = chat_of_messages(body)
        with _own_names(names):
            prompt = await self._prompts.of_chat(request, chat)
        return {"input_tokens": len(prompt)}

    async def create_response(self, request: Request) -> Response:
        """Answers a conversation, as the Responses API does."""
        body = await read_model(request, ResponsesRequest)
        chat, names = chat_of_responses(body)
        endpoint = replace(_RESPONSES, make_answer=partial(ResponsesAnswer, body))
        with _own_names(names):
            return await self._completions.answer_chat(request, chat, endpoint)


@contextmanager
def _own_names(names: Names) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise names.of(error) from None
