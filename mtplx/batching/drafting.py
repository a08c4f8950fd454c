"""From the sequences of a step to requests to a draft head, and from what came of them to the depth policy."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from mtplx.batching.acceptance import AcceptanceBook
from mtplx.batching.depth import DepthPolicy, DraftRow
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import DraftRequest, Row, RowOutcome, Sequence, StepPlan

DraftHead = Callable[[Seq[DraftRequest]], Seq[Seq[int]] | None]
"""Answers each request with its guesses, in order: up to `depth` of them. None if it failed and nothing was built."""

_PRIME_FACTOR = 4  # a head has one layer or two: so many of its tokens cost less than one of the model's
_MIN_PRIMED = 256
_FORCED_GUESS = 0.9  # how often what a grammar forces is right: it leaves the model hardly a choice
_NO_PLACE = "the head's cache is still being built, or no blocks or budget are left for drafts"
_NO_ROOM = "no request had room or leave for a draft"


class Speculator:
    """Asks a head for the drafts of a step, within depth, answer, blocks and the cost of building the head's cache.

    What a grammar forces is a draft too, wherever more of it is expected to be right than of the head's.
    A head's slot needs nothing but what the model has computed, so slots are built when drafts are wanted, not before:
    without drafts a head costs nothing. `prefill_chunk_tokens` bounds what is built at once; a sequence that is further
    behind has no drafts until it has caught up.
    """

    def __init__(self, policy: DepthPolicy, *, prefill_chunk_tokens: int, max_depth: int = MAX_DEPTH) -> None:
        self.policy = policy
        self._max_depth = max_depth
        self._max_primed = max(_MIN_PRIMED, _PRIME_FACTOR * prefill_chunk_tokens)
        self._decoding: Seq[Sequence] = ()  # that the step in progress may draft for
        self._last: tuple[Seq[Row], Seq[Sequence]] = ((), ())  # the last step's rows, and for whom it might draft
        self._why_not: str | None = None
        self._has_room = True  # for a draft in some row of the last step
        self._known: dict[int, None] = {}  # whom the policy has heard of, in that order
        self._forced: dict[int, tuple[float, ...]] = {}  # whose drafts are forced in this step, and what is believed
        self._forced_book: AcceptanceBook[None] = AcceptanceBook(_FORCED_GUESS)

    @property
    def max_depth(self) -> int:
        """The most drafts that the head makes for a row."""
        return self._max_depth

    @property
    def last_depths(self) -> dict[int, int]:
        """Drafts of each sequence that decoded in the last step, by its id."""
        rows, decoding = self._last
        decoding_ids = {sequence.seq_id for sequence in decoding}
        return {row.seq_id: row.num_drafts for row in rows if row.seq_id in decoding_ids}

    @property
    def why_none(self) -> str | None:
        """Why the last step had no drafts, one sentence; None if it had some or nothing decoded in it."""
        depths = self.last_depths
        if any(depths.values()) or not depths:
            return None
        return self._why_not or (self.policy.why_none() if self._has_room else _NO_ROOM)

    def draft(
        self,
        table: SequenceTable,
        head: DraftHead | None,
        decoding: Seq[Sequence],
        prefilling: Seq[Sequence] = (),
        *,
        max_drafts: int | None = None,
    ) -> None:
        """Sets the drafts of sequences that will decode in this step, up to `max_drafts` in all.

        Those that prefill get their head's slots built on the way, if drafts are to be expected.
        """
        self._decoding = decoding
        self._find_forced(decoding, has_head=head is not None)
        if head is None and not self._forced:
            self._forget_gone(table)
            return
        budget = MAX_DEPTH * len(decoding) if max_drafts is None else max_drafts
        if head is not None and not (prefilling or self._forced):
            kept = self.policy.kept([sequence.seq_id for sequence in decoding])
            if kept is not None:
                self._go_on(table, head, decoding, kept, budget)
                return
        self._forget_gone(table)
        self._why_not = None
        rows = [self._row(sequence, self._forced.get(sequence.seq_id, ()), head) for sequence in decoding]
        self._has_room = any(row.limit for row in rows)
        depths = self.policy.choose(rows, len(prefilling))
        for sequence, row, depth in zip(decoding, rows, depths, strict=True):
            if row.made:
                table.propose(sequence, sequence.forced_ids[: min(depth, budget)])
                budget -= len(sequence.draft_ids)
        if head is not None:
            asked = [0 if row.made else depth for row, depth in zip(rows, depths, strict=True)]
            self._ask(table, head, decoding, asked, prefilling, budget)
        self._say_if_no_place(decoding, [depth if row.made else 0 for row, depth in zip(rows, depths, strict=True)])

    def _say_if_no_place(self, decoding: Seq[Sequence], depths_of_made: Seq[int]) -> None:
        """Notes why no row has drafts though some that are made were chosen."""
        if any(depths_of_made) and not (self._why_not or any(sequence.draft_ids for sequence in decoding)):
            self._why_not = _NO_PLACE

    def _go_on(
        self, table: SequenceTable, head: DraftHead, decoding: Seq[Sequence], depths: Seq[int], budget: int
    ) -> None:
        """Drafts as deep as these depths and each sequence's own limit allow, without a word to the policy."""
        self._has_room, self._why_not = any(self._limit(sequence) for sequence in decoding), None
        if any(depths):
            limited = [min(depth, self._limit(sequence)) for depth, sequence in zip(depths, decoding, strict=True)]
            self._ask(table, head, decoding, limited, (), budget)

    def _ask(
        self,
        table: SequenceTable,
        head: DraftHead,
        decoding: Seq[Sequence],
        depths: Seq[int],
        prefilling: Seq[Sequence],
        budget: int,
    ) -> None:
        requests: list[DraftRequest] = []
        work = _Work(self._max_primed, table.blocks.block_size)
        for sequence, depth in zip(decoding, depths, strict=True):
            depth = min(depth, budget)
            if depth:
                self._known[sequence.seq_id] = None
            slots = work.take(sequence) if depth else None
            if slots:
                requests.append(_request(table, sequence, slots, depth))
                budget -= requests[-1].depth
        if prefilling and self.policy.expects_drafts(len(decoding) + len(prefilling)):
            behind = [sequence for sequence in prefilling if num_unprimed(sequence)]
            requests += [_request(table, sequence, slots) for sequence in behind if (slots := work.take(sequence))]
        drafts = head(requests) if requests else None
        self._why_not = _why_not(depths, requests, drafts)
        if drafts is not None:
            for request, draft_ids in zip(requests, drafts, strict=True):
                table.set_drafts(request, draft_ids)

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome], table: SequenceTable) -> None:
        """Learns from what a step accepted; to be called before the table commits it, since the ended are forgotten."""
        self._last = (plan.rows, self._decoding)
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            if row.num_drafts and outcome.error is None:
                sequence = table.get(row.seq_id)
                if sequence is not None:
                    self._verified(sequence, row.num_drafts, len(outcome.token_ids) - 1)

    def _verified(self, sequence: Sequence, num_drafts: int, num_accepted: int) -> None:
        if sequence.seq_id in self._forced:
            self._forced_book.verified(None, num_drafts, num_accepted)
            return
        self.policy.verified(sequence.seq_id, num_drafts, num_accepted)
        self._known[sequence.seq_id] = None

    def _find_forced(self, decoding: Seq[Sequence], *, has_head: bool) -> None:
        """Whose forced tokens are this step's drafts: those with more to be expected than of the head's guesses."""
        self._forced = {}
        for sequence in (sequence for sequence in decoding if sequence.forced_ids):
            limit = min(self._reach(sequence), len(sequence.forced_ids))
            believed = self._forced_book.survivals(None, limit)
            if believed and sum(believed) >= self._head_believed(sequence, has_head=has_head):
                self._forced[sequence.seq_id] = tuple(believed)
            elif limit:
                self._forced_book.fade_common(0)

    def _head_believed(self, sequence: Sequence, *, has_head: bool) -> float:
        """How many of the head's drafts will be right, as is believed."""
        return sum(self.policy.survivals(sequence.seq_id, self._limit(sequence))) if has_head else 0.0

    def _row(self, sequence: Sequence, made: tuple[float, ...], head: DraftHead | None) -> DraftRow:
        """`made`: what is believed of drafts that need no head."""
        limit = self._limit(sequence) if head is not None else 0
        return DraftRow(sequence.seq_id, max(limit, len(made)), num_unprimed(sequence), made)

    def _forget_gone(self, table: SequenceTable) -> None:
        for seq_id in [seq_id for seq_id in self._known if table.get(seq_id) is None]:
            del self._known[seq_id]
            self.policy.forget(seq_id)

    def _reach(self, sequence: Sequence) -> int:
        """The most drafts of any source that it may have."""
        return min(most_useful(sequence), self.policy.max_depth)

    def _limit(self, sequence: Sequence) -> int:
        return min(self._max_depth, most_useful(sequence))


def most_useful(sequence: Sequence) -> int:
    """The most drafts that can be of use: one token comes without a draft, and none may lie past the answer."""
    asked = MAX_DEPTH if sequence.max_draft_depth is None else sequence.max_draft_depth
    return max(0, min(MAX_DEPTH, asked, sequence.stops.max_tokens - sequence.num_emitted - 1))


def num_unprimed(sequence: Sequence) -> int:
    """How many slots of the head could be built and aren't."""
    return sequence.num_computed + 1 - max(1, sequence.num_primed)


@dataclass(slots=True)
class _Work:
    """What one call of the head builds: so many slots more, and none of a block that an earlier request has in it.

    Sequences that share blocks would build the same slots; one of them does, and the others go on from there next time.
    """

    num_left: int
    block_size: int
    block_ids: set[int] = field(default_factory=set)

    def take(self, sequence: Sequence) -> range | None:
        """The next slots to be built for a sequence; None if that must wait for the next call."""
        start = _first_slot(sequence)
        end = min(sequence.num_computed + 1, start + self.num_left)
        block_ids = sequence.block_ids[start // self.block_size : -(-end // self.block_size)]
        if start >= end or not self.block_ids.isdisjoint(block_ids):
            return None
        self.block_ids.update(block_ids)
        self.num_left -= end - start
        return range(start, end)


def _request(table: SequenceTable, sequence: Sequence, slots: range, depth: int = 0) -> DraftRequest:
    """The request to build those slots, and to guess up to `depth` tokens if these are all there are to build."""
    if depth:
        depth = table.reserve_drafts(sequence, depth) if slots.stop == sequence.num_computed + 1 else 0
    token_ids = tuple(sequence.token_ids[slots.start : slots.stop])
    return DraftRequest(sequence.seq_id, slots.start, token_ids, tuple(sequence.block_ids), depth)


def _why_not(depths: Seq[int], requests: Seq[DraftRequest], drafts: Seq[Seq[int]] | None) -> str | None:
    """Why there are no drafts although depths were chosen, one sentence; None if there are, or none were chosen."""
    if not any(depths):
        return None
    if not any(request.depth for request in requests):
        return _NO_PLACE
    if drafts is None:
        return "the draft head failed"
    return None if any(drafts) else "the draft head expects the end of the answer"


def _first_slot(sequence: Sequence) -> int:
    """Where building goes on. The last slot that can be built is built again if need be: guesses start from it."""
    return max(1, min(sequence.num_primed, sequence.num_computed))
