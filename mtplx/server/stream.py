"""The event loop's side of a request: admission, its sequences' outputs as deltas, and the queue a handler reads.

Lives on one event loop; the worker reaches it through `dispatch` alone, called on that loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from mtplx.batching.state import FinishReason
from mtplx.errors import DeadlineError, EngineDeadError, GenerationError, NoTokenLeftError, ServerError
from mtplx.sampling_params import SamplingParams
from mtplx.server.admission import Limits
from mtplx.server.choice_text import ChoiceText, Delta
from mtplx.server.engine import Cancel, SequenceOutput, Submit
from mtplx.telemetry.counters import EngineStatus
from mtplx.text.bad_words import spellings
from mtplx.text.grammar import CompiledGrammar
from mtplx.text.reader import Reading
from mtplx.text.tokenizer import Tokenizer

_TOO_LATE = "the request's time was over before it had a token"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a request stands among the others; no token of its answer depends on it.

    It shares the computation of equal beginnings with requests of the same `cache_salt`, and with no other. Of these it
    shares drafts with the `cohort`, where the mode has cohorts. Of those that wait, higher priorities start first, and
    among equals tenants take turns. After `timeout_s` it ends with what it has.
    """

    tenant: bytes = b""
    cache_salt: bytes = b""
    cohort: bytes = b""
    priority: int = 0
    timeout_s: float | None = None


PLAIN_TERMS = Terms()


class RequestStream:
    """The deltas of one request, all choices interleaved as they come; iterate it once, close it in a finally.

    Iterating raises GenerationError when a choice fails, EngineDeadError when the engine does, and DeadlineError when
    the time is over before the first token.
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


@dataclass(slots=True)
class _Progress:
    """What is known of all prompts and choices of one request together."""

    has_tokens: bool = False


@dataclass(frozen=True, slots=True)
class _Live:
    """A sequence that the worker has been given and that has not ended for us."""

    stream: RequestStream
    text: ChoiceText
    progress: _Progress
    tenant: bytes


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is the engine's, since deadlines are judged there."""
        self._tokenizer = tokenizer
        self._limits = limits
        self._send = send
        self._read_status = read_status
        self._read_step_start = read_step_start
        self._clock = clock
        self._live: dict[int, _Live] = {}
        self._reserved: Counter[bytes] = Counter()  # by tenant, choices that are being made ready
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

    def check_room(self, num_prompts: int, n: int, tenant: bytes = b"") -> None:
        """Raises as `open_many` would for so many prompts now; admits nothing, so asking before any work costs nothing.

        Raises:
            RequestError: so many choices could never be held at once.
            TooManyRequestsError: not now, the tenant has its share.
            OverloadedError: not now.
            EngineDeadError: the engine has ended or is shutting down.
        """
        self._check_open()
        of_tenant = sum(entry.tenant == tenant for entry in self._live.values()) + self._reserved[tenant]
        num_live = len(self._live) + self._reserved.total()
        self._limits.check_room(num_live=num_live, num_prompts=num_prompts, n=n, num_live_of_tenant=of_tenant)

    @asynccontextmanager
    async def reserve(self, num_prompts: int, n: int, terms: Terms) -> AsyncIterator[float]:
        """Keeps room while a request is made ready, which counts as running and takes of its time.

        Gives the engine's clock at the beginning. To open it right behind the block, with nothing awaited, is sure of
        the room.

        Raises:
            DeadlineError: its time was over before it was ready; all else as `check_room`.
        """
        self.check_room(num_prompts, n, terms.tenant)
        reserved = Counter({terms.tenant: num_prompts * n})
        self._reserved += reserved
        try:
            async with asyncio.timeout(self._limits.time_of(terms.timeout_s)):
                yield self._clock()
        except TimeoutError:
            raise DeadlineError(_TOO_LATE) from None
        finally:
            self._reserved -= reserved

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
        terms: Terms = PLAIN_TERMS,
        since_s: float | None = None,
        reading: Reading | None = None,
        grammar: CompiledGrammar | None = None,
    ) -> list[RequestStream]:
        """Admits several requests with one seed and one deadline, all or none; raises as `open` does.

        Their time runs since `since_s` on the engine's clock, or from now on. `reading` tells calls and thoughts from
        what is said, `grammar` is that of the params.
        """
        self._check_open()
        all_stops = [self._limits.stop_rules(len(prompt), params) for prompt in prompts]
        self.check_room(len(prompts), n, terms.tenant)
        if params.bad_words:
            runs = (*params.banned_runs, *spellings(self._tokenizer, params.bad_words))
            params = replace(params, banned_runs=runs)
        seed = secrets.randbelow(2**53) if params.seed is None else params.seed
        timeout_s = self._limits.time_of(terms.timeout_s)
        deadline_s = None if timeout_s is None else timeout_s + (self._clock() if since_s is None else since_s)
        continues = continues or grammar is not None  # all of the text is the grammar's, a leading space too
        progress = _Progress()
        streams = []
        for prompt, stops in zip(prompts, all_stops, strict=True):
            submit = Submit(
                seq_id=0,
                prompt_ids=tuple(prompt),
                params=params,
                seed=seed,
                choice=0,
                stops=stops,
                cache_salt=terms.cache_salt,
                cohort=terms.cohort,
                priority=terms.priority,
                tenant=terms.tenant,
                deadline_s=deadline_s,
                grammar=grammar,
            )
            streams.append(self._start(submit, n, progress, continues=continues, reading=reading))
        return streams

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
        live.progress.has_tokens |= bool(output.token_ids)
        error = _error_of(output, live.progress)
        if error is not None:
            del self._live[output.seq_id]
            live.stream.put(error)
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
        self, submit: Submit, n: int, progress: _Progress, *, continues: bool, reading: Reading | None
    ) -> RequestStream:
        """Starts the `n` choices of a request; `submit` is the first one's, but for its id."""
        seq_ids = [next(self._seq_ids) for _ in range(n)]
        stream = RequestStream(submit.prompt_ids, submit.seed, n, lambda: self._cancel(seq_ids))
        for choice, seq_id in enumerate(seq_ids):
            stop_ids = submit.stops.stop_ids
            text = ChoiceText(choice, self._tokenizer, submit.params, stop_ids, continues=continues, reading=reading)
            self._live[seq_id] = _Live(stream, text, progress, submit.tenant)  # registered before it is submitted
        request = seq_ids[0] if n > 1 else None
        for choice, seq_id in enumerate(seq_ids):
            self._send(replace(submit, seq_id=seq_id, choice=choice, request=request))
        return stream

    def _cancel(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            if self._live.pop(seq_id, None) is not None:
                self._send(Cancel(seq_id))


def _error_of(output: SequenceOutput, progress: _Progress) -> ServerError | None:
    """What ends a request without an answer; a deadline does so only where no choice has a token."""
    if output.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
        kind = NoTokenLeftError if output.is_clients_fault else GenerationError
        return kind(output.error or "the request was cancelled")
    if output.finish_reason is FinishReason.TIMEOUT and not progress.has_tokens:
        return DeadlineError(_TOO_LATE)
    return None
