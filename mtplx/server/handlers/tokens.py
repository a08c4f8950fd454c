"""Text to tokens and back, without the engine."""

from __future__ import annotations

import anyio.to_thread
from starlette.requests import Request

from mtplx.errors import ContextLengthError
from mtplx.server.answers.shapes import TokenizedText, Tokens
from mtplx.server.body import read_model
from mtplx.server.context import ServerContext
from mtplx.server.handlers.checks import check_model_name
from mtplx.server.handlers.prompts import PromptMaker
from mtplx.server.protocol.strict import check_token_ids
from mtplx.server.protocol.tokens import DetokenizeRequest, TokenizeRequest


class TokenHandlers:
    """Takes what completions would take, and refuses what they would find too long to look at."""

    def __init__(self, context: ServerContext, prompts: PromptMaker) -> None:
        self._context = context
        self._prompts = prompts

    async def tokenize(self, request: Request) -> Tokens:
        """The tokens of a text or of a conversation's prompt."""
        body = await read_model(request, TokenizeRequest)
        body.check()
        self._check_model(body.model)
        if body.prompt is None:
            tokens = await self._prompts.of_chat(request, body.chat(self._context.model_name))
        else:
            adds_special_tokens = body.add_special_tokens is not False
            (tokens,) = await self._prompts.encode(request, [body.prompt], adds_special_tokens=adds_special_tokens)
        spell = self._context.tokenizer.token
        return {
            "count": len(tokens),
            "max_model_len": self._context.streams.max_model_len,
            "tokens": list(tokens),
            "token_strs": [spell(token_id) for token_id in tokens] if body.return_token_strs else None,
        }

    async def detokenize(self, request: Request) -> TokenizedText:
        """The text of tokens."""
        body = await read_model(request, DetokenizeRequest)
        self._check_model(body.model)
        limit = self._context.streams.max_model_len
        if len(body.tokens) > limit:
            raise ContextLengthError(f"{len(body.tokens)} tokens are over the limit of {limit}", "tokens")
        check_token_ids(body.tokens, self._context.spec.vocab_size, "tokens")
        return {"prompt": await anyio.to_thread.run_sync(self._decode, body.tokens)}

    def _decode(self, token_ids: tuple[int, ...]) -> str:
        return self._context.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _check_model(self, name: str | None) -> None:
        if name is not None:
            check_model_name(name, self._context)
