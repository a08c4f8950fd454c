"""The vocabulary of scheduling: modes, sequences, rows, plans and events. Ints in, ints out; no tensors, no HTTP.

A step is a list of rows; a row is "these tokens of this sequence, from this position, logits wanted at its end".
Between steps a decoding sequence has `num_computed == len(token_ids) - 1`; cache beyond `num_computed` is dead.

    token_ids   p p p p p p e e e        p: prompt, e: emitted
    computed    |---------------|        num_computed = 8, num_pending = 1
    next row                    e d d    the pending token and two drafts: three rows of logits
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class SchedulerMode(StrEnum):
    """How concurrent requests share the model; the values are what users write."""

    SERIAL = "serial"
    COOPERATIVE = "cooperative"
    AR_BATCH = "ar_batch"
    MTP_BATCH = "mtp_batch"
    MTP_COHORT_EXPERIMENTAL = "mtp_cohort_experimental"
    HYPER = "hyper"


class FinishReason(StrEnum):
    STOP = "stop"
    TOOL_CALLS = "tool_calls"  # a stop behind calls, which shows in the text alone
    LENGTH = "length"
    TIMEOUT = "timeout"  # its deadline came first
    CANCELLED = "cancelled"
    ERROR = "error"


class SequenceStatus(StrEnum):
    WAITING = "waiting"  # holds no blocks; num_computed is 0
    RUNNING = "running"  # admitted; holds the blocks of its computed tokens at least
    FINISHED = "finished"  # left the table


Likely = tuple[tuple[int, ...], tuple[float, ...]]
"""What might have come at a place: a few ids, the likeliest first, and how far their logits are below the largest."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """Where a sequence ends, as far as token ids tell; stop strings are the text side's business.

    `stop_ids` holds the end-of-sequence ids (unless the request ignores them) and the request's own stop ids. The id
    that stops a sequence is emitted as its last token.
    """

    max_tokens: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Sequence:
    """One choice of one request. Only `SequenceTable` moves its status, blocks and counters."""

    seq_id: int  # rises with arrival
    token_ids: list[int]  # prompt, then emitted
    prompt_len: int
    stops: StopRules
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    draft_ids: list[int] = field(default_factory=list)  # guesses to be verified in the next step
    forced_ids: tuple[int, ...] = ()  # guesses behind its last token, that its grammar makes
    num_served: int = 0  # turns it had, counted from the least of those it joined, for fairness
    num_overtaken: int = 0  # times a later arrival was admitted before it
    priority: int = 0  # who waits with a higher one starts first
    tenant: bytes = b""  # whose it is: those who wait take turns
    turn: int = 0  # its place among those of its priority, given by the line
    num_passed: int = 0  # later arrivals of a higher priority that have started before it
    num_preempted: int = 0
    admitted_len: int = 0  # tokens it had when it was last admitted
    max_draft_depth: int | None = None  # the request's own cap; None leaves it to the server
    num_primed: int = 0  # slots of the draft head's cache that are built from the model's own hidden states
    cache_salt: bytes = b""  # whose prefixes it may share: those with the same salt
    request: int | None = None  # the same for all choices of one request, which always share its prompt; None for one
    num_unscored: int = 0  # the last so many prompt tokens whose scores are wanted and not yet computed
    prefix_keys: list[bytes] = field(default_factory=list)  # of its first full blocks, as far as they were asked for
    num_published: int = 0  # its first so many blocks are full and were offered to the prefix cache, or come from there
    num_cached: int = 0  # prompt tokens that were there before it had computed any
    num_saved: int = 0  # tokens that it took over computed, whenever that was
    cohort: bytes = b""  # whom it shares drafts with by the request's own word; empty leaves it to its beginning

    @property
    def num_emitted(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def num_pending(self) -> int:
        """Tokens whose cache entries are still to be computed; 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def reads_prefix(self) -> bool:
        """Whether it may take over computed blocks: scores come from logits, and those of others aren't kept."""
        return self.num_unscored == 0

    @property
    def is_decoding(self) -> bool:
        return self.num_pending == 1 and self.num_emitted > 0


@dataclass(slots=True)  # never changed; frozen it would take three times as long to make, and there is one a token
class Row:
    """`token_ids` of sequence `seq_id` from absolute position `start`; the last `num_drafts` of them are guesses.

    Logits are wanted for the last `num_logits` tokens. The first of these lines score `scored_ids`, prompt tokens that
    are known: each the token behind its line's. The others say what comes next: `num_drawn` is 0 for a chunk inside the
    prompt, else 1 + num_drafts. `block_ids` are the sequence's cache blocks in order; they cover position
    start + len(token_ids) - 1.

        prompt p q r s, tokens p q, all to be scored:        scored_ids q r, num_logits 2, num_drawn 0
        then tokens r s:                                     scored_ids s,   num_logits 2, num_drawn 1
    """

    seq_id: int
    start: int
    token_ids: tuple[int, ...]
    block_ids: tuple[int, ...]
    num_logits: int
    num_drafts: int = 0
    scored_ids: tuple[int, ...] = ()

    @property
    def num_drawn(self) -> int:
        return self.num_logits - len(self.scored_ids)

    @property
    def draft_ids(self) -> tuple[int, ...]:
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    @property
    def end(self) -> int:
        """One past the absolute position of the last token."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one forward pass computes; the runner never asks which mode made it."""

    rows: tuple[Row, ...]

    @property
    def width(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def num_logits(self) -> int:
        return sum(row.num_logits for row in self.rows)


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What a draft head does for one sequence: build its cache slots for `token_ids`, then guess `depth` tokens more.

    Slot p is built from the model's hidden state of position p - 1 and token p, so `start` is at least 1. With depth 0
    the slots are built and nothing is guessed. `block_ids` cover position end + depth - 1.

        prompt of 6, nothing built yet, first token emitted:  start 1, token_ids p p p p p e, depth 2
        then one draft of two accepted:                       start 7, token_ids e e, depth 2
    """

    seq_id: int
    start: int
    token_ids: tuple[int, ...]
    block_ids: tuple[int, ...]
    depth: int

    @property
    def end(self) -> int:
        """One past the last token; the first guess is of this position."""
        return self.start + len(self.token_ids)


@dataclass(slots=True)  # as `Row`
class RowOutcome:
    """What the next-token function said for one row: the accepted drafts and one more token; empty inside a prompt.

    `error` set means that this row has no token (NaN logits, a failed forward) and its sequence fails, by what the
    request itself asks for where it `is_clients_fault`. `forced_ids` are what its grammar will hardly let be anything
    else behind them: good drafts, and no more than that. `likely` has an entry for each of the tokens if they were
    drawn by chance and somebody wants to know.
    """

    token_ids: tuple[int, ...] = ()
    error: str | None = None
    forced_ids: tuple[int, ...] = ()
    is_clients_fault: bool = False
    likely: tuple[Likely, ...] = ()


@dataclass(slots=True)  # one a token, as `Row`
class SequenceEvent:
    """What one step did for one sequence: tokens that were really emitted, and how it ended if it did.

    `num_cached` of its prompt's tokens came from the prefix cache.
    """

    seq_id: int
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    num_cached: int = 0
    is_clients_fault: bool = False  # the error
