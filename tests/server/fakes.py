"""The engine's loop side as a script: what the HTTP side would read from a running engine, made up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import SecretStr

from mtplx.batching.prefix import PrefixStatus
from mtplx.batching.state import FinishReason, SchedulerMode
from mtplx.config import Settings, read_api_keys
from mtplx.decode.logprobs import TokenLogprob, TokenLogprobs
from mtplx.errors import ServerError
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.sampling_params import SamplingParams
from mtplx.server.app import create_app
from mtplx.server.choice_text import Delta
from mtplx.server.context import ServerContext
from mtplx.server.stream import PLAIN_TERMS, Terms
from mtplx.telemetry.counters import EngineStatus
from mtplx.telemetry.record import RequestRecord
from mtplx.telemetry.stages import NullRecorder, StageRecorder
from mtplx.text.answer_format import resolve_answer_format
from mtplx.text.chat import ChatTemplate
from mtplx.text.grammar import CompiledGrammar, GrammarCompiler
from mtplx.text.reader import Reading
from mtplx.text.tokenizer import Tokenizer
from tests.fakes import fake_spec, write_byte_tokenizer

MODEL = "fake/model"
CHOSEN_LOGPROB = -0.5

Item = Delta | Exception | asyncio.Event  # an event holds the stream until it is set
Script = Callable[[int, SamplingParams, int], Sequence[Item]]  # prompt number, params, n


def say(
    text: str, *, index: int = 0, reason: FinishReason = FinishReason.STOP, logprobs: int | None = None
) -> list[Delta]:
    """One delta a byte of `text`; the last one has the finish reason."""
    token_ids = text.encode()
    deltas = []
    now_s = time.monotonic()
    for position, token_id in enumerate(token_ids):
        is_last = position == len(token_ids) - 1
        entries = () if logprobs is None else (entry_for(token_id, logprobs),)
        delta = Delta(index, chr(token_id), (token_id,), entries, reason if is_last else None, at_s=now_s)
        deltas.append(replace(delta, started_at_s=now_s) if position == 0 else delta)
    return deltas


def entry_for(token_id: int, k: int) -> TokenLogprobs:
    """The chosen token is the second likeliest; the likeliest is the id after it."""
    ranked = [TokenLogprob(token_id + 1, -0.25), TokenLogprob(token_id, CHOSEN_LOGPROB)]
    ranked += [TokenLogprob(token_id + 1 + rank, -float(rank)) for rank in range(1, 20)]
    return TokenLogprobs(TokenLogprob(token_id, CHOSEN_LOGPROB), 2, tuple(ranked[:k]))


def interleaved(*sequences: Sequence[Item]) -> list[Item]:
    """The first of each, then the second of each, and so on."""
    longest = max(len(sequence) for sequence in sequences)
    return [sequence[i] for i in range(longest) for sequence in sequences if i < len(sequence)]


def greet(prompt_number: int, params: SamplingParams, n: int) -> list[Item]:
    """Every choice says which prompt and choice it is."""
    texts = [f"p{prompt_number}c{index} hello" for index in range(n)]
    return interleaved(*(say(text, index=i, logprobs=params.logprobs) for i, text in enumerate(texts)))


@dataclass(slots=True)
class FakeStream:
    """Plays its items in order; after the last one it ends."""

    prompt_ids: tuple[int, ...]
    seed: int
    items: list[Item]
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> Delta:
        while self.items:
            item = self.items.pop(0)
            if isinstance(item, Delta):
                return item
            if isinstance(item, Exception):
                raise item
            await item.wait()
        raise StopAsyncIteration

    def close(self) -> None:
        self.closed.set()


@dataclass(frozen=True, slots=True)
class Opened:
    """What the HTTP side asked the engine for."""

    prompts: list[tuple[int, ...]]
    params: SamplingParams
    n: int
    terms: Terms
    continues: bool
    reading: Reading | None
    grammar: CompiledGrammar | None = None


@dataclass(slots=True)
class FakeStreams:
    """Admits everything unless `refusal` is set; remembers what it was asked."""

    script: Script = greet
    max_model_len: int = 64
    refusal: Exception | None = None
    alive: bool = True
    step_start_s: float | None = None
    engine: EngineStatus = field(default_factory=lambda: engine_status())
    opened: list[Opened] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)

    def check_room(self, num_prompts: int, n: int, tenant: bytes = b"") -> None:
        """Asked before any work, about nothing but room: only the server's own trouble is said here."""
        if isinstance(self.refusal, ServerError):
            raise self.refusal

    @asynccontextmanager
    async def reserve(self, num_prompts: int, n: int, terms: Terms) -> AsyncIterator[float]:
        self.check_room(num_prompts, n, terms.tenant)
        yield 0.0

    def open_many(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        n: int = 1,
        *,
        continues: bool = False,
        terms: Terms = PLAIN_TERMS,
        since_s: float | None = None,
        reading: Reading | None = None,
        grammar: CompiledGrammar | None = None,
    ) -> list[FakeStream]:
        if self.refusal is not None:
            raise self.refusal
        self.opened.append(Opened([tuple(prompt) for prompt in prompts], params, n, terms, continues, reading, grammar))
        seed = 77 if params.seed is None else params.seed
        streams = [
            FakeStream(tuple(prompt), seed, list(self.script(number, params, n)))
            for number, prompt in enumerate(prompts)
        ]
        self.streams += streams
        return streams

    def status(self) -> EngineStatus:
        return self.engine

    def is_alive(self) -> bool:
        return self.alive

    def step_started_at_s(self) -> float | None:
        return self.step_start_s


def engine_status(**changes: Any) -> EngineStatus:
    known: dict[str, Any] = {
        "scheduler_mode": SchedulerMode.AR_BATCH,
        "max_running": 16,
        "num_running": 2,
        "num_waiting": 3,
        "num_steps": 9,
        "last_step_width": 2,
        "last_step_at_s": None,
        "step_started_at_s": None,
        "width_histogram": {1: 4, 2: 5},
        "num_prefill_tokens": 100,
        "num_decode_tokens": 14,
        "num_blocks_used": 7,
        "num_blocks_total": 32,
        "block_size": 16,
        "num_preemptions": 1,
        "num_finished": {FinishReason.STOP: 6},
        "num_failed_steps": 0,
        "prefix": PrefixStatus(True, 5, 2, 90, 48, 1),
    }
    return EngineStatus(**{**known, **changes})


@dataclass(frozen=True, slots=True)
class FakeServer:
    app: FastAPI
    streams: FakeStreams
    tokenizer: Tokenizer

    @property
    def last(self) -> Opened:
        return self.streams.opened[-1]


def fake_server(
    folder: Path,
    streams: FakeStreams | None = None,
    *,
    api_keys: Sequence[str] = (),
    spec: ModelSpec | None = None,
    tokenizer: Tokenizer | None = None,
    recorder: StageRecorder | None = None,
    observers: tuple[Callable[[RequestRecord], None], ...] = (),
    **settings: Any,
) -> FakeServer:
    """A whole app over scripted streams; `folder` is a scratch folder for its own tokenizer, whose ids are bytes."""
    write_byte_tokenizer(folder)
    streams = streams or FakeStreams()
    tokenizer = tokenizer or Tokenizer.load(folder)
    spec = spec or fake_spec()
    chat_template = ChatTemplate.load(folder)
    given = Settings(api_key=tuple(SecretStr(key) for key in api_keys), **settings)
    context = ServerContext(
        settings=given,
        api_keys=read_api_keys(given),
        streams=streams,  # type: ignore[arg-type]
        tokenizer=tokenizer,
        chat_template=chat_template,
        answer_format=resolve_answer_format(chat_template, given.tool_parser, given.reasoning_parser),
        grammars=GrammarCompiler(tokenizer, vocab_size=spec.vocab_size, eos_ids=spec.eos_ids),
        spec=spec,
        runner_info=RunnerInfo("fake", "cpu", "float32", exact=True, exact_note="scripted"),
        recorder=recorder or NullRecorder(),
        model_name=MODEL,
        created=1_700_000_000,
        version="0.0.1",
        fingerprint="fp-fake",
        observers=observers,
    )
    return FakeServer(create_app(context), streams, tokenizer)
