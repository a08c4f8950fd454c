"""From conversations and texts to the token ids that the model is asked with; what takes long is done on threads."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import anyio
import anyio.to_thread
from starlette.requests import Request

from mtplx.errors import ContextLengthError
from mtplx.server.context import ServerContext
from mtplx.server.disconnect import until_disconnect
from mtplx.server.handlers.conversation import ChatWishes, chat_wishes
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.strict import check_token_ids
from mtplx.text.messages import is_large

LONG_TEXT_CHARACTERS = 8192  # encoding more than this would hold up every other request; a thread costs less
MAX_LONG_ENCODES = 2  # at once: each may take hundreds of bytes of memory for a character

TokenIds = Sequence[int]
Prompt = str | tuple[int, ...]


class PromptMaker:
    """Stateless but for how many long texts are being worked on; these end when their client leaves."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._long_encodes = anyio.CapacityLimiter(MAX_LONG_ENCODES)

    async def of_chat(self, request: Request, body: ChatCompletionRequest) -> TokenIds:
        """The token ids of a conversation's prompt."""
        text = await self.render(request, body, chat_wishes(body, self._context))
        return await self.encode_chat(request, body, text)

    async def render(self, request: Request, body: ChatCompletionRequest, wishes: ChatWishes) -> str:
        """A conversation as text."""
        messages = body.template_messages()
        render = functools.partial(
            self._context.chat_template.render,
            messages,
            functions=wishes.functions,
            variables=wishes.variables,
            add_generation_prompt=wishes.opens_turn,
            continue_final_message=wishes.continues_last,
        )
        if not is_large(messages, wishes.functions):
            return render()
        rendering = anyio.to_thread.run_sync(render, limiter=self._long_encodes)
        return await until_disconnect(rendering, request.receive)

    async def encode_chat(self, request: Request, body: ChatCompletionRequest, text: str) -> TokenIds:
        """A conversation's text as token ids; its template has written the special tokens."""
        (prompt,) = await self.encode(
            request, [text], adds_special_tokens=body.add_special_tokens is True, param="messages"
        )
        return body.truncated(prompt)

    async def encode(
        self, request: Request, prompts: Sequence[Prompt], *, adds_special_tokens: bool, param: str = "prompt"
    ) -> list[TokenIds]:
        """All prompts as token ids; `param` is the field that they come from.

        Raises:
            RequestError: a text can't be spelled, or an id isn't one of the model's.
            ContextLengthError: a text can't fit.
        """
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        for text in texts:
            self._check_size(text, param)
        encode = functools.partial(self._token_ids, adds_special_tokens=adds_special_tokens, param=param)
        if sum(map(len, texts)) <= LONG_TEXT_CHARACTERS:
            return [encode(prompt) for prompt in prompts]

        async def encode_long() -> list[TokenIds]:
            return [await anyio.to_thread.run_sync(encode, prompt, limiter=self._long_encodes) for prompt in prompts]

        return await until_disconnect(encode_long(), request.receive)

    def _token_ids(self, prompt: Prompt, *, adds_special_tokens: bool, param: str) -> TokenIds:
        if isinstance(prompt, str):
            return self._context.tokenizer.encode(prompt, add_special_tokens=adds_special_tokens, param=param)
        check_token_ids(prompt, self._context.spec.vocab_size, param)
        return prompt

    def _check_size(self, text: str, param: str) -> None:
        """Refuses a text that can't fit before it costs anything, going by the longest token."""
        max_tokens, longest = self._context.streams.max_model_len, self._context.tokenizer.longest_token
        if len(text) > max_tokens * longest:
            raise ContextLengthError(
                f"a text of {len(text)} characters can't fit the limit of {max_tokens} tokens of prompt and answer "
                f"together: this model's tokens have at most {longest} characters",
                param,
            )
