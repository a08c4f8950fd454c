"""The two completion endpoints: from a body to an admitted request, and from there to an answer or a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mtplx.errors import RequestError
from mtplx.sampling_params import Grammar, SamplingParams
from mtplx.server.answers.answer import Answer, AnswerParts, make_head
from mtplx.server.answers.chat import ChatAnswer
from mtplx.server.answers.completions import CompletionAnswer
from mtplx.server.answers.prompts import Echo, echo_of
from mtplx.server.auth import tenant_of
from mtplx.server.body import read_model
from mtplx.server.boundary import record_of
from mtplx.server.context import ServerContext
from mtplx.server.disconnect import until_disconnect
from mtplx.server.error_bodies import answer_of
from mtplx.server.generation import Generation
from mtplx.server.handlers.checks import check_cohort, check_model_name
from mtplx.server.handlers.conversation import AnswerHold, answer_hold, chat_wishes
from mtplx.server.handlers.prompts import PromptMaker, TokenIds
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from mtplx.server.protocol.extended import ExtendedRequest
from mtplx.server.sse import CHUNKS, EventStreamResponse, EventStyle
from mtplx.server.stream import RequestStream, Terms
from mtplx.telemetry.metrics import HttpMetrics
from mtplx.text.grammar import CompiledGrammar
from mtplx.text.reader import Reading

MAX_COMPILES = 2  # at once, of grammars


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What differs between the endpoints once prompts are token ids."""

    name: str  # as the metrics call it
    id_prefix: str
    prompt_param: str
    make_answer: Callable[[AnswerParts], Answer]
    style: EventStyle = CHUNKS


CHAT = Endpoint("chat_completions", "chatcmpl-", "messages", make_answer=ChatAnswer)
COMPLETIONS = Endpoint("completions", "cmpl-", "prompt", make_answer=CompletionAnswer)


class CompletionHandlers:
    """Stateless but for what the context holds and for how many grammars are being compiled."""

    def __init__(self, context: ServerContext, metrics: HttpMetrics, prompts: PromptMaker) -> None:
        self._context = context
        self._metrics = metrics
        self._prompts = prompts
        self._compiles = anyio.CapacityLimiter(MAX_COMPILES)

    async def create_chat_completion(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self.answer_chat(request, await read_model(request, ChatCompletionRequest), CHAT)

    async def answer_chat(self, request: Request, body: ChatCompletionRequest, endpoint: Endpoint) -> Response:
        """The same for any endpoint whose requests can be said as one of chat completions."""
        check_model_name(body.model, self._context)
        check_cohort(body.cohort, self._context)
        params = body.sampling_params(self._context.spec)
        self._context.streams.check_room(1, body.num_choices, tenant_of(request))  # before any work
        wishes = chat_wishes(body, self._context)
        text = await self._prompts.render(request, body, wishes)
        prompt = await self._prompts.encode_chat(request, body, text)
        hold = answer_hold(body, wishes, text, params.grammar, self._context)
        await self._check_schemas(request, hold)
        params = replace(params, grammar=hold.grammar)
        return await self._respond(
            request, body, [prompt], params, endpoint, continues=body.continues_last, reading=hold.reading
        )

    async def create_completion(self, request: Request) -> Response:
        """Continues one or more prompts."""
        body = await read_model(request, CompletionRequest)
        check_model_name(body.model, self._context)
        check_cohort(body.cohort, self._context)
        params = body.sampling_params(self._context.spec)
        asked = body.prompts()
        self._context.streams.check_room(len(asked), body.num_choices, tenant_of(request))  # before any work
        encoded = await self._prompts.encode(
            request, asked, adds_special_tokens=body.add_special_tokens is not False, param=COMPLETIONS.prompt_param
        )
        prompts = [body.truncated(token_ids) for token_ids in encoded]
        if params.max_tokens is None:
            params = replace(params, max_tokens=self._default_max_tokens(params, prompts))
        echo = echo_of(body, prompts, self._context.tokenizer)
        return await self._respond(request, body, prompts, params, COMPLETIONS, continues=True, echo=echo)

    async def _respond(
        self,
        request: Request,
        body: ExtendedRequest,
        prompts: Sequence[TokenIds],
        params: SamplingParams,
        endpoint: Endpoint,
        *,
        continues: bool,
        echo: Echo | None = None,
        reading: Reading | None = None,
    ) -> Response:
        """The answer or its stream; `continues` says that it goes on with the prompt's text and isn't its own."""
        watch = self._metrics.watch(endpoint.name, num_prompt_tokens=sum(map(len, prompts)))
        record = record_of(request)
        record.watch, record.params = watch, params
        grammar = await self._compile(request, params.grammar)
        with _naming_prompts(endpoint):
            streams = self._context.streams.open_many(
                prompts,
                params,
                body.num_choices,
                continues=continues,
                terms=_terms(body, tenant_of(request)),
                grammar=grammar,
                reading=reading,
            )
        parts = self._parts(body, params, streams, endpoint, echo=echo, reading=reading)
        answer = endpoint.make_answer(parts)
        generation = Generation(streams, parts, answer, watch.on_delta)
        if body.stream:
            return EventStreamResponse(
                generation.write_to,
                style=endpoint.style,
                fail=answer.failure,
                close=generation.close,
                on_error=lambda error: record.fail(answer_of(error).code),
                keepalive_s=self._context.settings.keepalive_s,
            )
        try:
            return JSONResponse(await until_disconnect(generation.whole(), request.receive))
        finally:
            generation.close()

    async def _check_schemas(self, request: Request, hold: AnswerHold) -> None:
        """Compiles the grammar of calls that must be made; if that fails, says which function's schema is at fault."""
        try:
            await self._compile(request, hold.grammar)
        except RequestError:
            for schema in hold.schemas:
                await self._compile(request, schema)
            raise

    async def _compile(self, request: Request, grammar: Grammar | None) -> CompiledGrammar | None:
        """The grammar over the model's tokens; a new one is compiled in a thread."""
        if grammar is None:
            return None
        compiler = self._context.grammars
        kept = compiler.kept(grammar)
        if kept is not None:
            return kept
        compiling = anyio.to_thread.run_sync(compiler.compile, grammar, limiter=self._compiles)
        return await until_disconnect(compiling, request.receive)

    def _parts(
        self,
        body: ExtendedRequest,
        params: SamplingParams,
        streams: Sequence[RequestStream],
        endpoint: Endpoint,
        *,
        echo: Echo | None,
        reading: Reading | None,
    ) -> AnswerParts:
        return AnswerParts(
            head=make_head(
                endpoint.id_prefix,
                model=self._context.model_name,
                fingerprint=self._context.fingerprint,
                seed=streams[0].seed,  # the streams of one request share it
            ),
            prompts=[stream.prompt_ids for stream in streams],
            num_choices=body.num_choices,
            tokenizer=self._context.tokenizer,
            has_logprobs=params.logprobs is not None,
            has_token_ids=bool(body.return_token_ids),
            has_usage=body.wants_usage_chunk,
            has_running_usage=body.wants_running_usage,
            has_prompt_scores=params.prompt_logprobs is not None,
            has_prompt_logprobs=body.prompt_logprobs is not None,
            echo=echo,
            skips_special_tokens=params.skip_special_tokens,
            has_thoughts=reading is not None and reading.has_thoughts,
            must_call=reading is not None and reading.is_forced,
        )

    def _default_max_tokens(self, params: SamplingParams, prompts: Sequence[TokenIds]) -> int:
        """OpenAI's default, more where min_tokens asks for more, less where the context has less room."""
        room = self._context.streams.max_model_len - max(len(prompt) for prompt in prompts)
        return max(1, min(room, max(DEFAULT_MAX_TOKENS, params.min_tokens)))


def _terms(body: ExtendedRequest, tenant: bytes) -> Terms:
    return Terms(
        tenant=tenant,
        cache_salt=tenant + (body.cache_salt or "").encode(),
        cohort=(body.cohort or "").encode(),
        priority=body.priority or 0,
        timeout_s=body.timeout,
    )


@contextmanager
def _naming_prompts(endpoint: Endpoint) -> Iterator[None]:
    """Lets what is said against a prompt name the endpoint's own field."""
    try:
        yield
    except RequestError as error:
        param = endpoint.prompt_param if error.param == "prompt" else error.param
        raise type(error)(str(error), param, error.code) from None
