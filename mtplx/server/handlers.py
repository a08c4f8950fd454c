"""The two completion endpoints: from a body to an admitted request, and from there to an answer or a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mtplx.errors import ContextLengthError, ModelNotFoundError
from mtplx.sampling_params import SamplingParams
from mtplx.server.answer import Answer, AnswerParts, make_head
from mtplx.server.answer_chat import ChatAnswer
from mtplx.server.answer_completions import CompletionAnswer
from mtplx.server.body import read_model
from mtplx.server.context import ServerContext
from mtplx.server.disconnect import until_disconnect
from mtplx.server.error_bodies import MAX_ECHOED_CHARACTERS, answer_of
from mtplx.server.generation import Generation
from mtplx.server.protocol import GenerationRequest, check_token_ids
from mtplx.server.protocol_chat import ChatCompletionRequest
from mtplx.server.protocol_completions import DEFAULT_MAX_TOKENS, CompletionRequest
from mtplx.server.sse import EventStreamResponse
from mtplx.server.stream import RequestStream
from mtplx.telemetry.metrics import HttpMetrics

LONG_TEXT_CHARACTERS = 8192  # encoding more than this would hold up every other request; a thread costs less


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """What differs between the endpoints once prompts are token ids."""

    name: str  # as the metrics call it
    id_prefix: str
    prompt_param: str
    make_answer: Callable[[AnswerParts], Answer]


_CHAT = _Endpoint("chat_completions", "chatcmpl", "messages", ChatAnswer)
_COMPLETIONS = _Endpoint("completions", "cmpl", "prompt", CompletionAnswer)


class CompletionHandlers:
    """Stateless but for what the context holds."""

    def __init__(self, context: ServerContext, metrics: HttpMetrics) -> None:
        self._context = context
        self._metrics = metrics

    async def create_chat_completion(self, request: Request) -> Response:
        """Answers a conversation."""
        body = await read_model(request, ChatCompletionRequest)
        check_model_name(body.model, self._context)
        params = body.sampling_params(self._context.spec)
        text = self._context.chat_template.render(body.template_messages())
        prompt_ids = await self._encode(text, add_special_tokens=False, param="messages")
        return await self._respond(request, body, [prompt_ids], params, _CHAT)

    async def create_completion(self, request: Request) -> Response:
        """Continues one or more prompts."""
        body = await read_model(request, CompletionRequest)
        check_model_name(body.model, self._context)
        params = body.sampling_params(self._context.spec)
        prompts = [await self._prompt_ids(prompt) for prompt in body.prompts()]
        if params.max_tokens is None:
            params = replace(params, max_tokens=self._default_max_tokens(params, prompts))
        return await self._respond(request, body, prompts, params, _COMPLETIONS)

    async def _respond(
        self,
        request: Request,
        body: GenerationRequest,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        endpoint: _Endpoint,
    ) -> Response:
        watch = self._metrics.watch(endpoint.name)
        streams = self._open(prompts, params, body.num_choices, endpoint.prompt_param)
        parts = self._parts(body, streams, params, endpoint.id_prefix)
        generation = Generation(streams, parts, endpoint.make_answer(parts), watch.on_delta)
        if body.stream:
            return EventStreamResponse(
                functools.partial(generation.write_to, with_usage=body.wants_usage_chunk),
                close=generation.close,
                on_error=lambda error: self._metrics.count_error(answer_of(error).code),
                keepalive_s=self._context.settings.keepalive_s,
            )
        try:
            return JSONResponse(await until_disconnect(generation.whole(), request.receive))
        finally:
            generation.close()

    def _open(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, num_choices: int, prompt_param: str
    ) -> list[RequestStream]:
        continues = prompt_param == "prompt"  # a completion goes on with the prompt's text, a chat answer is its own
        try:
            return self._context.streams.open_many(prompts, params, num_choices, continues=continues)
        except ContextLengthError as error:
            raise ContextLengthError(str(error), prompt_param if error.param == "prompt" else error.param) from None

    def _parts(
        self, body: GenerationRequest, streams: Sequence[RequestStream], params: SamplingParams, id_prefix: str
    ) -> AnswerParts:
        return AnswerParts(
            head=make_head(
                id_prefix,
                model=self._context.model_name,
                fingerprint=self._context.fingerprint,
                seed=streams[0].seed,  # the streams of one request share it
            ),
            prompts=[stream.prompt_ids for stream in streams],
            num_choices=body.num_choices,
            tokenizer=self._context.tokenizer,
            has_logprobs=params.logprobs is not None,
            has_token_ids=bool(body.return_token_ids),
        )

    async def _prompt_ids(self, prompt: str | tuple[int, ...]) -> Sequence[int]:
        if isinstance(prompt, str):
            return await self._encode(prompt, add_special_tokens=True, param="prompt")
        check_token_ids(prompt, self._context.spec.vocab_size, "prompt")
        return prompt

    async def _encode(self, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
        encode = functools.partial(
            self._context.tokenizer.encode, text, add_special_tokens=add_special_tokens, param=param
        )
        return await anyio.to_thread.run_sync(encode) if len(text) > LONG_TEXT_CHARACTERS else encode()

    def _default_max_tokens(self, params: SamplingParams, prompts: Sequence[Sequence[int]]) -> int:
        """OpenAI's default, more where min_tokens asks for more, less where the context has less room."""
        room = self._context.streams.max_model_len - max(len(prompt) for prompt in prompts)
        return max(1, min(room, max(DEFAULT_MAX_TOKENS, params.min_tokens)))


def check_model_name(name: str, context: ServerContext) -> None:
    """Raises ModelNotFoundError for any name but the served one."""
    if name != context.model_name:
        shown = name[:MAX_ECHOED_CHARACTERS]
        raise ModelNotFoundError(f"the model {shown!r} does not exist; this server has {context.model_name!r}", "model")
