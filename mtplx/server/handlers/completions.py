"""The two completion endpoints: from a body to an admitted request, and from there to an answer or a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

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
from mtplx.server.grammar_line import GrammarLine
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A request that has only to be opened. `continues` says that its answer goes on with the prompt's text."""

    prompts: Sequence[TokenIds]
    params: SamplingParams
    grammar: CompiledGrammar | None  # that of the params
    terms: Terms
    since_s: float  # its time runs, on the engine's clock
    continues: bool
    echo: Echo | None = None
    reading: Reading | None = None


class CompletionHandlers:
    """Stateless but for what the context holds and for the grammars that are being compiled."""

    def __init__(self, context: ServerContext, metrics: HttpMetrics, prompts: PromptMaker) -> None:
        self._context = context
        self._metrics = metrics
        self._prompts = prompts
        self._grammars = GrammarLine(context.grammars)

    async def create_chat_completion(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self.answer_chat(request, await read_model(request, ChatCompletionRequest), CHAT)

    async def answer_chat(self, request: Request, body: ChatCompletionRequest, endpoint: Endpoint) -> Response:
        """The same for any endpoint whose requests can be said as one of chat completions."""
        check_model_name(body.model, self._context)
        check_cohort(body.cohort, self._context)
        params = body.sampling_params(self._context.spec)
        terms = _terms(body, tenant_of(request))
        async with self._context.streams.reserve(1, body.num_choices, terms) as since_s:  # before any work
            wishes = chat_wishes(body, self._context)
            text = await self._prompts.render(request, body, wishes)
            prompt = await self._prompts.encode_chat(request, body, text)
            hold = answer_hold(body, wishes, text, params.grammar, self._context)
            grammar = await self._compile_hold(request, hold)
        ready = Ready(
            prompts=[prompt],
            params=replace(params, grammar=hold.grammar),
            grammar=grammar,
            terms=terms,
            since_s=since_s,
            continues=body.continues_last,
            reading=hold.reading,
        )
        return await self._respond(request, body, ready, endpoint)

    async def create_completion(self, request: Request) -> Response:
        """Continues one or more prompts."""
        body = await read_model(request, CompletionRequest)
        check_model_name(body.model, self._context)
        check_cohort(body.cohort, self._context)
        params = body.sampling_params(self._context.spec)
        asked = body.prompts()
        terms = _terms(body, tenant_of(request))
        async with self._context.streams.reserve(len(asked), body.num_choices, terms) as since_s:  # before any work
            encoded = await self._prompts.encode(
                request, asked, adds_special_tokens=body.add_special_tokens is not False, param=COMPLETIONS.prompt_param
            )
            grammar = await self._compile(request, params.grammar)
        prompts = [body.truncated(token_ids) for token_ids in encoded]
        if params.max_tokens is None:
            params = replace(params, max_tokens=self._default_max_tokens(params, prompts))
        ready = Ready(
            prompts=prompts,
            params=params,
            grammar=grammar,
            terms=terms,
            since_s=since_s,
            continues=True,
            echo=echo_of(body, prompts, self._context.tokenizer),
        )
        return await self._respond(request, body, ready, COMPLETIONS)

    async def _respond(self, request: Request, body: ExtendedRequest, ready: Ready, endpoint: Endpoint) -> Response:
        """The answer or its stream. Awaits nothing before the request is opened: its place has just been given back."""
        watch = self._metrics.watch(endpoint.name, num_prompt_tokens=sum(map(len, ready.prompts)))
        record = record_of(request)
        record.watch, record.params = watch, ready.params
        with _naming_prompts(endpoint):
            streams = self._context.streams.open_many(
                ready.prompts,
                ready.params,
                body.num_choices,
                continues=ready.continues,
                terms=ready.terms,
                since_s=ready.since_s,
                grammar=ready.grammar,
                reading=ready.reading,
            )
        parts = self._parts(body, ready, streams, endpoint)
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

    async def _compile_hold(self, request: Request, hold: AnswerHold) -> CompiledGrammar | None:
        """What answers are held to; where that fails for calls, says which function's schema is at fault."""
        try:
            return await self._compile(request, hold.grammar)
        except RequestError:
            for schema in hold.schemas:
                await self._compile(request, schema)
            raise

    async def _compile(self, request: Request, grammar: Grammar | None) -> CompiledGrammar | None:
        """The grammar over the model's tokens; a new one stands in line with the other keys'."""
        if grammar is None:
            return None
        kept = self._context.grammars.kept(grammar)
        if kept is not None:
            return kept
        return await until_disconnect(self._grammars.compile(grammar, tenant_of(request)), request.receive)

    def _parts(
        self, body: ExtendedRequest, ready: Ready, streams: Sequence[RequestStream], endpoint: Endpoint
    ) -> AnswerParts:
        params, reading = ready.params, ready.reading
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
            echo=ready.echo,
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
