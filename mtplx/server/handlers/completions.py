"""The two completion endpoints: from a body to an admitted request, and from there to an answer or a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mtplx.batching.state import SchedulerMode
from mtplx.errors import ContextLengthError, ModelNotFoundError, RequestError
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
from mtplx.server.error_bodies import MAX_ECHOED_CHARACTERS, answer_of
from mtplx.server.generation import Generation
from mtplx.server.handlers.conversation import AnswerHold, ChatWishes, answer_hold, chat_wishes
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from mtplx.server.protocol.extended import ExtendedRequest
from mtplx.server.protocol.generation import UNSUPPORTED, GenerationRequest, check_token_ids
from mtplx.server.sse import CHUNKS, EventStreamResponse, EventStyle
from mtplx.server.stream import RequestStream, Terms
from mtplx.telemetry.metrics import HttpMetrics
from mtplx.text.chat import Message, is_large
from mtplx.text.grammar import CompiledGrammar
from mtplx.text.reader import Reading

LONG_TEXT_CHARACTERS = 8192  # encoding more than this would hold up every other request; a thread costs less
MAX_COMPILES = 2  # at once, of grammars
MAX_LONG_ENCODES = 2  # at once: each may take hundreds of bytes of memory for a character

TokenIds = Sequence[int]
Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What differs between the endpoints once prompts are token ids."""

    name: str  # as the metrics call it
    id_prefix: str
    prompt_param: str
    adds_special_tokens: bool  # a chat template writes them itself
    continues: bool  # a completion goes on with the prompt's text, a chat answer is its own
    make_answer: Callable[[AnswerParts], Answer]
    style: EventStyle = CHUNKS


CHAT = Endpoint(
    "chat_completions", "chatcmpl-", "messages", adds_special_tokens=False, continues=False, make_answer=ChatAnswer
)
COMPLETIONS = Endpoint(
    "completions", "cmpl-", "prompt", adds_special_tokens=True, continues=True, make_answer=CompletionAnswer
)


class CompletionHandlers:
    """Stateless but for what the context holds and for how many long texts are being encoded."""

    def __init__(self, context: ServerContext, metrics: HttpMetrics) -> None:
        self._context = context
        self._metrics = metrics
        self._long_encodes = anyio.CapacityLimiter(MAX_LONG_ENCODES)
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
        text = await self.render(request, body.template_messages(), wishes)
        prompts = await self._encode_of(request, body, [text], CHAT)
        hold = answer_hold(body, wishes, text, params.grammar, self._context)
        await self._check_schemas(request, hold)
        params = replace(params, grammar=hold.grammar)
        return await self._respond(request, body, prompts, params, endpoint, reading=hold.reading)

    async def chat_prompt(self, request: Request, body: ChatCompletionRequest) -> TokenIds:
        """The token ids that the model is asked with."""
        text = await self.render(request, body.template_messages(), chat_wishes(body, self._context))
        (prompt,) = await self._encode_of(request, body, [text], CHAT)
        return prompt

    async def render(self, request: Request, messages: Sequence[Message], wishes: ChatWishes | None = None) -> str:
        """A conversation as text; a large one on a thread, for as long as the client is there."""
        functions, variables = (wishes.functions, wishes.variables) if wishes else (None, None)
        render = functools.partial(
            self._context.chat_template.render, messages, functions=functions, variables=variables
        )
        if not is_large(messages, functions):
            return render()
        rendering = anyio.to_thread.run_sync(render, limiter=self._long_encodes)
        return await until_disconnect(rendering, request.receive)

    async def create_completion(self, request: Request) -> Response:
        """Continues one or more prompts."""
        body = await read_model(request, CompletionRequest)
        check_model_name(body.model, self._context)
        check_cohort(body.cohort, self._context)
        params = body.sampling_params(self._context.spec)
        num_prompts = len(body.prompts())
        self._context.streams.check_room(num_prompts, body.num_choices, tenant_of(request))  # before any work
        prompts = await self._encode_of(request, body, body.prompts(), COMPLETIONS)
        if params.max_tokens is None:
            params = replace(params, max_tokens=self._default_max_tokens(params, prompts))
        echo = echo_of(body, prompts, self._context.tokenizer)
        return await self._respond(request, body, prompts, params, COMPLETIONS, echo=echo)

    async def _respond(
        self,
        request: Request,
        body: ExtendedRequest,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        endpoint: Endpoint,
        *,
        echo: Echo | None = None,
        reading: Reading | None = None,
    ) -> Response:
        watch = self._metrics.watch(endpoint.name, num_prompt_tokens=sum(map(len, prompts)))
        record = record_of(request)
        record.watch, record.params = watch, params
        grammar = await self._compile(request, params.grammar)
        terms = Terms(
            tenant=tenant_of(request),
            cache_salt=tenant_of(request) + (body.cache_salt or "").encode(),
            cohort=(body.cohort or "").encode(),
            priority=body.priority or 0,
            timeout_s=body.timeout,
        )
        streams = self._open(prompts, params, body, endpoint, terms, grammar, reading)
        parts = replace(
            self._parts(body, streams, params, endpoint.id_prefix),
            echo=echo,
            has_thoughts=reading is not None and reading.has_thoughts,
        )
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

    def _open(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        body: GenerationRequest,
        endpoint: Endpoint,
        terms: Terms,
        grammar: CompiledGrammar | None,
        reading: Reading | None,
    ) -> list[RequestStream]:
        try:
            return self._context.streams.open_many(
                prompts,
                params,
                body.num_choices,
                continues=endpoint.continues,
                terms=terms,
                grammar=grammar,
                reading=reading,
            )
        except RequestError as error:
            param = endpoint.prompt_param if error.param == "prompt" else error.param
            raise type(error)(str(error), param, error.code) from None

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
        self, body: ExtendedRequest, streams: Sequence[RequestStream], params: SamplingParams, id_prefix: str
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
            has_usage=body.wants_usage_chunk,
            has_running_usage=body.wants_running_usage,
            has_prompt_scores=params.prompt_logprobs is not None,
            has_prompt_logprobs=body.prompt_logprobs is not None,
            skips_special_tokens=params.skip_special_tokens,
        )

    async def _encode_of(
        self, request: Request, body: ExtendedRequest, prompts: Sequence[Prompt], endpoint: Endpoint
    ) -> list[TokenIds]:
        """The prompts of a body as token ids, made as its fields ask for."""
        if body.add_special_tokens is not None:
            endpoint = replace(endpoint, adds_special_tokens=body.add_special_tokens)
        encoded = await self.encode_all(request, prompts, endpoint)
        last = body.truncate_prompt_tokens
        return encoded if last is None else [token_ids[-last:] for token_ids in encoded]

    async def encode_all(self, request: Request, prompts: Sequence[Prompt], endpoint: Endpoint) -> list[TokenIds]:
        """All prompts as token ids; long texts in threads, for as long as the client is there."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        for text in texts:
            self._check_size(text, endpoint.prompt_param)
        if sum(map(len, texts)) <= LONG_TEXT_CHARACTERS:
            return [self._token_ids(prompt, endpoint) for prompt in prompts]
        return await until_disconnect(self._encode_long(prompts, endpoint), request.receive)

    async def _encode_long(self, prompts: Sequence[Prompt], endpoint: Endpoint) -> list[TokenIds]:
        return [
            await anyio.to_thread.run_sync(self._token_ids, prompt, endpoint, limiter=self._long_encodes)
            for prompt in prompts
        ]

    def _token_ids(self, prompt: Prompt, endpoint: Endpoint) -> TokenIds:
        if isinstance(prompt, str):
            return self._context.tokenizer.encode(
                prompt, add_special_tokens=endpoint.adds_special_tokens, param=endpoint.prompt_param
            )
        check_token_ids(prompt, self._context.spec.vocab_size, endpoint.prompt_param)
        return prompt

    def _check_size(self, text: str, param: str) -> None:
        """Refuses a text that can't fit before it costs anything, going by the longest token.

        Raises:
            ContextLengthError: so many characters are over what the context can hold.
        """
        max_tokens, longest = self._context.streams.max_model_len, self._context.tokenizer.longest_token
        if len(text) > max_tokens * longest:
            raise ContextLengthError(
                f"a text of {len(text)} characters can't fit the limit of {max_tokens} tokens of prompt and answer "
                f"together: this model's tokens have at most {longest} characters",
                param,
            )

    def _default_max_tokens(self, params: SamplingParams, prompts: Sequence[Sequence[int]]) -> int:
        """OpenAI's default, more where min_tokens asks for more, less where the context has less room."""
        room = self._context.streams.max_model_len - max(len(prompt) for prompt in prompts)
        return max(1, min(room, max(DEFAULT_MAX_TOKENS, params.min_tokens)))


def check_model_name(name: str, context: ServerContext) -> None:
    """Raises ModelNotFoundError for any name but the served one."""
    if name != context.model_name:
        shown = name[:MAX_ECHOED_CHARACTERS]
        raise ModelNotFoundError(f"the model {shown!r} does not exist; this server has {context.model_name!r}", "model")


def check_cohort(cohort: str | None, context: ServerContext) -> None:
    """Raises RequestError where the mode has no cohorts, so that the field would be without effect."""
    mode = context.streams.status().scheduler_mode
    if cohort is not None and mode is not SchedulerMode.MTP_COHORT_EXPERIMENTAL:
        raise RequestError(
            f"this server runs {mode}, and only {SchedulerMode.MTP_COHORT_EXPERIMENTAL} has cohorts",
            "cohort",
            UNSUPPORTED,
        )
