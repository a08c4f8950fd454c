"""The event loop's side of a request: admission, token ids back to text, stop strings, and the queue a handler reads.

Lives on one event loop; the worker reaches it through `dispatch` alone, called on that loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mtplx.batching.state import FinishReason, StopRules
from mtplx.decode.logprobs import TokenLogprobs
from mtplx.errors import EngineDeadError, GenerationError, ServerError
from mtplx.sampling_params import SamplingParams
from mtplx.server.admission import Limits
from mtplx.server.engine import Cancel, SequenceOutput, Submit
from mtplx.telemetry.counters import EngineStatus
from mtplx.text.detokenizer import Detokenizer
from mtplx.text.grammar import CompiledGrammar
from mtplx.text.reader import AnswerReader, Reading, joined
from mtplx.text.stops import StopMatcher, StopResult
from mtplx.text.tokenizer import Tokenizer
from mtplx.text.tools.parts import Part

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delta:
    """One piece of one choice; text and token ids may be empty, since text is held back for stop strings."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one a token, or empty when none were asked for
    finish_reason: FinishReason | None = None  # set on the choice's last delta
    num_draft_tokens: int = 0  # that the step verified,
    num_accepted_tokens: int = 0  # and how many of the token ids are drafts that were right
    num_cached_tokens: int = 0  # of the prompt, that came from the prefix cache
    stop_string: str | None = None  # that ended the choice
    at_s: float = 0.0  # monotonic clock when the step had ended,
    started_at_s: float | None = None  # and in a choice's first delta, when its first step began
    parts: tuple[Part, ...] | None = None  # what the text is made of, where calls or thoughts are told from it
    num_reasoning_tokens: int = 0  # of the token ids


@dataclass(slots=True)
class _Read:
    """What a step's tokens have been turned into so far."""

    text: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    num_reasoning_tokens: int = 0


class ChoiceText:
    """Turns one sequence's tokens into deltas, token by token: finds its stop strings, and calls and thoughts."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        stop_ids: frozenset[int],
        *,
        continues: bool,
        reading: Reading | None = None,
    ) -> None:
        self.index = index
        shown_ids = frozenset() if reading is None else tokenizer.token_ids(reading.markers)
        self._detokenizer = Detokenizer(tokenizer, continues=continues, shown_ids=shown_ids)
        self._reader = None if reading is None else AnswerReader(reading)
        self._stops = StopMatcher(params.stop)
        self._min_tokens = params.min_tokens
        self._stop_ids = stop_ids
        self._num_tokens = 0

    def push(self, output: SequenceOutput) -> Delta:
        """The delta for one step's tokens.

        Ends at the first token that completes a stop string, or the only call that may be made.
        """
        read = _Read()
        for count, token_id in enumerate(output.token_ids, 1):
            self._num_tokens += 1
            found = self._match("" if token_id in self._stop_ids else self._detokenizer.push([token_id]))
            is_done = self._read(found.text, read)
            if found.is_stopped or is_done:
                return self._delta(read, output, count, FinishReason.STOP, found.stop)
        if output.finish_reason is None:
            return self._delta(read, output, len(output.token_ids), None)
        found = self._match(self._detokenizer.flush())
        self._read(found.text if found.is_stopped else found.text + self._stops.flush(), read, is_token=False)
        reason = FinishReason.STOP if found.is_stopped else output.finish_reason
        return self._delta(read, output, len(output.token_ids), reason, found.stop)

    def _match(self, text: str) -> StopResult:
        return self._stops.push(text, active=self._num_tokens >= self._min_tokens)

    def _read(self, text: str, read: _Read, *, is_token: bool = True) -> bool:
        """Adds a token's text to what has been read; True when the answer has ended with it."""
        read.text.append(text)
        reader = self._reader
        if reader is None:
            return False
        was_reasoning = reader.is_reasoning
        read.parts += reader.push(text)
        read.num_reasoning_tokens += is_token and (was_reasoning or reader.is_reasoning)
        return reader.is_done and self._num_tokens >= self._min_tokens

    def _delta(
        self,
        read: _Read,
        output: SequenceOutput,
        count: int,
        reason: FinishReason | None,
        stop_string: str | None = None,
    ) -> Delta:
        if self._reader is not None and reason is not None:
            read.parts += self._reader.flush()
        return Delta(
            self.index,
            "".join(read.text),
            output.token_ids[:count],
            output.logprobs[:count],
            reason,
            output.num_draft_tokens,
            min(output.num_accepted_tokens, count),
            output.num_cached_tokens,
            stop_string,
            output.at_s,
            output.started_at_s,
            None if self._reader is None else tuple(joined(read.parts)),
            read.num_reasoning_tokens,
        )


class RequestStream:
    """The deltas of one request, all choices interleaved as they come; iterate it once, close it in a finally.

    Iterating raises GenerationError when a choice fails and EngineDeadError when the engine does.
    """

    def __init__(self, prompt_ids: tuple[int, ...], seed: int, num_choices: int, close: Callable[[], None]) -> None:
        self.prompt_ids = prompt_ids
        self.seed = seed
        self.num_live = num_choices  # those whose last delta hasn't been read
        self._close = close
        self._queue: asyncio.Queue[Delta | ServerError] = asyncio.Queue()

    def put(self, item: Delta | ServerError) -> None:
        self._queue.put_nowait(item)

    def close(self) -> None:
        """Cancels the choices that are still live; harmless when there are none."""
        self._close()

    def drain(self) -> list[Delta]:
        """What has been queued so far, without waiting; raises as iterating does."""
        deltas: list[Delta] = []
        while not self._queue.empty():
            deltas.append(self._take(self._queue.get_nowait()))
        return deltas

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Delta:
        if self.num_live == 0:
            raise StopAsyncIteration
        return self._take(await self._queue.get())

    def _take(self, item: Delta | ServerError) -> Delta:
        if isinstance(item, ServerError):
            raise item
        if item.finish_reason is not None:
            self.num_live -= 1
        return item


@dataclass(frozen=True, slots=True)
class _Live:
    """A sequence that the worker has been given and that has not ended for us."""

    stream: RequestStream
    text: ChoiceText


class Streams:
    """All live requests of one server.

    Invariant: a sequence id is in the registry from before its Submit is sent until its last delta is queued, or until
    its Cancel is sent; so no output is lost and none reaches a closed stream.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: Limits,
        send: Callable[[Submit | Cancel], None],
        read_status: Callable[[], EngineStatus],
        read_step_start: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._send = send
        self._read_status = read_status
        self._read_step_start = read_step_start
        self._live: dict[int, _Live] = {}
        self._seq_ids = itertools.count()
        self._closed_by: ServerError | None = None

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    @property
    def num_live(self) -> int:
        return len(self._live)

    def status(self) -> EngineStatus:
        return self._read_status()

    def is_alive(self) -> bool:
        return self._closed_by is None

    def step_started_at_s(self) -> float | None:
        """Monotonic clock at the start of the step in progress, None between steps."""
        return self._read_step_start()

    def check_room(self, num_prompts: int, n: int) -> None:
        """Raises as `open_many` would for so many prompts now; admits nothing, so asking before any work costs nothing.

        Raises:
            RequestError: so many choices could never be held at once.
            OverloadedError: not now.
            EngineDeadError: the engine has ended or is shutting down.
        """
        self._check_open()
        self._limits.check_room(num_live=len(self._live), num_prompts=num_prompts, n=n)

    def open(
        self, prompt_ids: Sequence[int], params: SamplingParams, n: int = 1, *, continues: bool = False
    ) -> RequestStream:
        """Admits one request of `n` choices; `continues` says that the answer's text goes on with the prompt's.

        Raises:
            RequestError: prompt and answer can't fit the context or the cache, or the choices the queue, ever.
            OverloadedError: the queue is full; nothing was done.
            EngineDeadError: the engine has ended or is shutting down.
        """
        return self.open_many([prompt_ids], params, n, continues=continues)[0]

    def open_many(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        n: int = 1,
        *,
        continues: bool = False,
        cache_salt: bytes = b"",
        cohort: bytes = b"",
        reading: Reading | None = None,
        grammar: CompiledGrammar | None = None,
    ) -> list[RequestStream]:
        """Admits several requests with one seed, all or none; raises as `open` does.

        They share the computation of equal beginnings with requests of the same `cache_salt`, and with no other. Of
        these they share drafts with the `cohort`, where the mode has cohorts. `reading` tells calls and thoughts from
        what is said, `grammar` is that of the params.
        """
        self._check_open()
        all_stops = [self._limits.stop_rules(len(prompt), params) for prompt in prompts]
        self.check_room(len(prompts), n)
        if params.seed is None:
            params = replace(params, seed=secrets.randbelow(2**53))
        continues = continues or grammar is not None  # all of the text is the grammar's, a leading space too
        return [
            self._start(
                tuple(prompt),
                params,
                n,
                stops,
                continues=continues,
                cache_salt=cache_salt,
                cohort=cohort,
                reading=reading,
                grammar=grammar,
            )
            for prompt, stops in zip(prompts, all_stops, strict=True)
        ]

    def dispatch(self, outputs: Sequence[SequenceOutput]) -> None:
        """Queues what a step did; outputs of sequences that were cancelled meanwhile are dropped."""
        for output in outputs:
            live = self._live.get(output.seq_id)
            if live is None:
                continue
            try:
                self._deliver(output, live)
            except Exception:  # the others' outputs come only once, and whoever misses one waits for ever
                log.exception("the output of sequence %d can't be delivered", output.seq_id)
                self._cancel([output.seq_id])
                live.stream.put(GenerationError("the server failed on this request"))

    def shut(self, error: ServerError) -> None:
        """Admits nothing from now on; what is live goes on."""
        self._closed_by = self._closed_by or error

    def fail_all(self, error: ServerError) -> None:
        """Admits nothing from now on and ends every live stream with `error`."""
        self.shut(error)
        live, self._live = self._live, {}
        for seq_id, entry in live.items():
            self._send(Cancel(seq_id))
            entry.stream.put(error)

    def _deliver(self, output: SequenceOutput, live: _Live) -> None:
        if output.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            del self._live[output.seq_id]
            live.stream.put(GenerationError(output.error or "the request was cancelled"))
            return
        delta = live.text.push(output)
        if delta.finish_reason is not None:
            del self._live[output.seq_id]
            if output.finish_reason is None:  # a stop string: the worker doesn't know
                self._send(Cancel(output.seq_id, FinishReason.STOP))
        live.stream.put(delta)

    def _check_open(self) -> None:
        if self._closed_by is not None:
            raise EngineDeadError(str(self._closed_by))

    def _start(
        self,
        prompt_ids: tuple[int, ...],
        params: SamplingParams,
        n: int,
        stops: StopRules,
        *,
        continues: bool,
        cache_salt: bytes,
        cohort: bytes,
        reading: Reading | None,
        grammar: CompiledGrammar | None,
    ) -> RequestStream:
        assert params.seed is not None, "drawn at admission"
        seq_ids = [next(self._seq_ids) for _ in range(n)]
        stream = RequestStream(prompt_ids, params.seed, n, lambda: self._cancel(seq_ids))
        for choice, seq_id in enumerate(seq_ids):
            text = ChoiceText(choice, self._tokenizer, params, stops.stop_ids, continues=continues, reading=reading)
            self._live[seq_id] = _Live(stream, text)  # registered before it is submitted
        for choice, seq_id in enumerate(seq_ids):
            self._send(
                Submit(
                    seq_id, prompt_ids, params, params.seed, choice, stops, cache_salt, cohort=cohort, grammar=grammar
                )
            )
        return stream

    def _cancel(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            if self._live.pop(seq_id, None) is not None:
                self._send(Cancel(seq_id))
