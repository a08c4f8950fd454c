"""A model and a clock that are only simulated: drives any scheduler through whole loads, without tensors.

The fake model keeps what was written to each cache slot and computes the next token from what it *reads back* there, so
a block given to two sequences, a wrong position or a stale entry changes an answer, as it would in a real model.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from mtplx.batching.admission import max_entries
from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.cohorts import Cohorts
from mtplx.batching.depth import FixedDepth
from mtplx.batching.drafting import Speculator
from mtplx.batching.prefix import PrefixCache
from mtplx.batching.scheduler import Scheduler
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.shared_drafts import SharedSpeculator
from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import (
    DraftRequest,
    FinishReason,
    Row,
    RowOutcome,
    Sequence,
    SequenceEvent,
    StepPlan,
    StopRules,
)
from mtplx.server.cohort import MtpCohort

VOCAB_SIZE = 97
EMPTY = -1

Drafter = Callable[[Seq[int]], list[int]]


def next_token(history: Seq[int]) -> int:
    """The fake model's answer: a pure function of the whole history."""
    return zlib.crc32(array("q", history).tobytes()) % VOCAB_SIZE


def right_drafts(depth: int) -> Drafter:
    """A head that is always right."""

    def draft(history: Seq[int]) -> list[int]:
        grown = list(history)
        for _ in range(depth):
            grown.append(next_token(grown))
        return grown[len(history) :]

    return draft


def wrong_drafts(depth: int) -> Drafter:
    """A head that is always wrong."""
    return lambda history: [(token_id + 1) % VOCAB_SIZE for token_id in right_drafts(depth)(history)]


def mixed_drafts(max_depth: int) -> Drafter:
    """A head whose depth varies from row to row, 0 included, and whose last draft is sometimes wrong."""

    def draft(history: Seq[int]) -> list[int]:
        luck = zlib.crc32(array("q", [*history, 1]).tobytes())
        drafts = right_drafts(luck % (max_depth + 1))(history)
        if drafts and luck // 16 % 2:
            drafts[-1] = (drafts[-1] + 1) % VOCAB_SIZE
        return drafts

    return draft


class FakeModel:
    """Writes a plan's tokens to its cache slots, reads every history back from there, and verifies drafts.

    `forcer` guesses what a grammar would force after each row.
    """

    def __init__(self, num_blocks: int, block_size: int, forcer: Drafter | None = None) -> None:
        self._forcer = forcer
        self._block_size = block_size
        self._slots = [EMPTY] * (num_blocks * block_size)

    def run(self, plan: StepPlan) -> list[RowOutcome]:
        """All rows are written before any is read, as in one forward pass."""
        for row in plan.rows:
            for offset, token_id in enumerate(row.token_ids):
                self._slots[self._slot(row, row.start + offset)] = token_id
        return [self._verify(row) for row in plan.rows]

    def _slot(self, row: Row, position: int) -> int:
        return row.block_ids[position // self._block_size] * self._block_size + position % self._block_size

    def _verify(self, row: Row) -> RowOutcome:
        if not row.num_drawn:
            return RowOutcome()
        history = [self._slots[self._slot(row, position)] for position in range(row.end - row.num_drafts)]
        emitted = [next_token(history)]
        for draft_id in row.draft_ids:
            if draft_id != emitted[-1]:
                break
            emitted.append(next_token([*history, *emitted]))
        forced_ids = tuple(self._forcer([*history, *emitted])) if self._forcer else ()
        return RowOutcome(tuple(emitted), forced_ids=forced_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRequest:
    """A sequence to come: `arrives_at` and `cancel_at` are numbers of steps."""

    seq_id: int
    prompt_len: int
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    arrives_at: int = 0
    cancel_at: int | None = None
    common_len: int = 0  # so many of its first tokens are the same in all requests of its family
    family: int = 0
    cache_salt: bytes = b""
    prompt_of: int | None = None  # whose own tokens it has after the common ones; its own seq_id's by default
    priority: int = 0
    tenant: bytes = b""
    request: int | None = None
    is_scored: bool = False

    @property
    def prompt(self) -> list[int]:
        common = [(self.family * 17 + position * 5) % VOCAB_SIZE for position in range(self.common_len)]
        return common + self._own_prompt()[self.common_len :]

    def _own_prompt(self) -> list[int]:
        owner = self.seq_id if self.prompt_of is None else self.prompt_of
        return [(owner * 31 + position * 7) % VOCAB_SIZE for position in range(self.prompt_len)]

    def answer(self) -> tuple[list[int], FinishReason]:
        """What must come out, computed without any scheduler."""
        history = self.prompt
        if self.max_tokens == 0:
            return [], FinishReason.LENGTH
        while True:
            history.append(next_token(history))
            emitted = history[self.prompt_len :]
            if emitted[-1] in self.stop_ids:
                return emitted, FinishReason.STOP
            if len(emitted) == self.max_tokens:
                return emitted, FinishReason.LENGTH


@dataclass(slots=True)
class Trace:
    """What one sequence saw: its tokens, and the step and time at which each came."""

    arrived_step: int
    arrived_s: float
    token_ids: list[int] = field(default_factory=list)
    token_steps: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    scored_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def first_wait_steps(self) -> int:
        """Steps from arrival to the first token; 1 is the least there is."""
        return self.token_steps[0] - self.arrived_step

    @property
    def max_gap_steps(self) -> int:
        """The most steps between two tokens; 1 when every step brought one."""
        pairs = zip(self.token_steps, self.token_steps[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0)

    @property
    def max_gap_s(self) -> float:
        pairs = zip(self.token_times_s, self.token_times_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Simulated seconds of a step."""

    per_step_s: float = 0.010
    per_token_s: float = 0.001

    def of(self, plan: StepPlan) -> float:
        return self.per_step_s + self.per_token_s * plan.num_tokens


class Simulator:
    """One scheduler, one fake model, one clock. Checks the table after every operation, and that every step moves."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        drafter: Drafter | None = None,
        forcer: Drafter | None = None,
        cost: StepCost | None = None,
    ) -> None:
        blocks = scheduler.table.blocks
        self.scheduler = scheduler
        self.table = scheduler.table
        self.model = FakeModel(blocks.num_total, blocks.block_size, forcer)
        self.traces: dict[int, Trace] = {}
        self.plans: list[StepPlan] = []
        self.draft_calls: list[list[DraftRequest]] = []
        self.now_s = 0.0
        self._drafter = drafter
        self._cost = cost or StepCost()

    @property
    def num_steps(self) -> int:
        return len(self.plans)

    def add(self, request: SimRequest) -> None:
        self.traces[request.seq_id] = Trace(self.num_steps, self.now_s)
        stops = StopRules(request.max_tokens, request.stop_ids)
        self.table.add(
            Sequence(
                request.seq_id,
                request.prompt,
                request.prompt_len,
                stops,
                cache_salt=request.cache_salt,
                priority=request.priority,
                tenant=request.tenant,
                request=request.request,
                num_unscored=request.prompt_len - 1 if request.is_scored else 0,
            )
        )
        self.table.check()

    def cancel(self, seq_id: int) -> bool:
        is_found = self.table.cancel(seq_id)
        if is_found:
            self.traces[seq_id].finish_reason = FinishReason.CANCELLED
        self.table.check()
        return is_found

    def step(self, *, cancel_between: Iterable[int] = (), fail: Iterable[int] = ()) -> StepPlan:
        """One plan, one fake forward, one commit; may cancel between plan and commit, and fail some rows."""
        plan = self.scheduler.plan(self._head if self._drafter else None)
        self.table.check()
        assert bool(plan.rows) != self.table.is_empty, "a plan is empty if and only if the table is"
        outcomes = self.model.run(plan)
        for index, row in enumerate(plan.rows):
            if row.seq_id in fail:
                outcomes[index] = RowOutcome(error="broken on purpose")
        for seq_id in cancel_between:
            self.cancel(seq_id)
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            if outcome.error is None and self.table.get(row.seq_id) is not None:
                self.traces[row.seq_id].scored_ids += row.scored_ids
        events = self.scheduler.commit(plan, outcomes)
        self.table.check()
        self.plans.append(plan)
        self.now_s += self._cost.of(plan)
        self._record(events)
        return plan

    def run(self, requests: Iterable[SimRequest], *, max_steps: int = 20_000) -> dict[int, Trace]:
        """Plays a whole load to its end; each request arrives, and may be cancelled, before the step it names."""
        coming = sorted(requests, key=lambda request: (request.arrives_at, request.seq_id))
        cancels = {request.seq_id: request.cancel_at for request in coming if request.cancel_at is not None}
        start = self.num_steps
        while coming or not self.table.is_empty:
            clock = self.num_steps - start
            assert clock < max_steps, f"no end after {max_steps} steps"
            while coming and coming[0].arrives_at <= clock:
                self.add(coming.pop(0))
            for seq_id in [seq_id for seq_id, at in cancels.items() if at <= clock and seq_id in self.traces]:
                self.cancel(seq_id)
                del cancels[seq_id]
            self.step()
        assert self.table.blocks.num_used == 0, "blocks are leaked"
        return self.traces

    def _record(self, events: list[SequenceEvent]) -> None:
        for event in events:
            trace = self.traces[event.seq_id]
            assert trace.finish_reason is None, "an event after the end"
            assert event.token_ids or event.finish_reason, "an event that says nothing"
            trace.token_ids.extend(event.token_ids)
            trace.token_steps.extend([self.num_steps] * len(event.token_ids))
            trace.token_times_s.extend([self.now_s] * len(event.token_ids))
            trace.finish_reason = event.finish_reason

    def _head(self, requests: Seq[DraftRequest]) -> list[list[int]]:
        """The drafter's guesses, cut to what was asked. Checks that what was built is what there is to build."""
        assert self._drafter is not None
        for request in requests:
            sequence = self.table.get(request.seq_id)
            assert sequence is not None
            assert list(request.token_ids) == sequence.token_ids[request.start : request.end]
            assert 1 <= request.start <= max(1, sequence.num_primed), "a slot was left out"
            assert request.end <= sequence.num_computed + 1, "the model hasn't come so far"
            assert request.depth == 0 or sequence.is_decoding
            assert request.depth == 0 or request.end == len(sequence.token_ids)
            assert request.end + request.depth <= max_entries(sequence), "past the answer"
        self.draft_calls.append(list(requests))
        return [self._drafter(self.table.get(r.seq_id).token_ids)[: r.depth] for r in requests]  # type: ignore[union-attr]


def make_speculator(depth: int = MAX_DEPTH) -> Speculator:
    """Every row drafts as deep as it may, up to `depth`; how many drafts there are is then the drafter's."""
    return Speculator(FixedDepth(depth), prefill_chunk_tokens=64)


def make_cohort_mode(table: SequenceTable, width: int, chunk: int, *, depth: int = MAX_DEPTH) -> MtpCohort:
    """The mode with its own speculator; what a drafter leaves out may still come from the index."""
    cohorts = Cohorts()
    speculator = SharedSpeculator(FixedDepth(depth), cohorts, prefill_chunk_tokens=64)
    return MtpCohort(table, max_running=width, prefill_chunk_tokens=chunk, cohorts=cohorts, speculator=speculator)


def make_table(
    num_blocks: int = 64, block_size: int = 4, *, max_overtaken: int = 8, shares: bool = False
) -> SequenceTable:
    """An empty table; one that `shares` has a prefix cache."""
    blocks = BlockAllocator(num_blocks, block_size)
    return SequenceTable(blocks, PrefixCache(blocks, b"fake", is_on=shares), max_overtaken=max_overtaken)
