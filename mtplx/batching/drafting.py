"""From the sequences of a step to requests to a draft head, and from what came of them to the depth policy."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from mtplx.batching.depth import DepthPolicy, DraftRow
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import DraftRequest, RowOutcome, Sequence, StepPlan

DraftHead = Callable[[Seq[DraftRequest]], Seq[Seq[int]] | None]
"""Answers each request with its guesses, in order: up to `depth` of them. None if it failed and nothing was built."""

_PRIME_FACTOR = 4  # a head has one layer or two: so many of its tokens cost less than one of the model's
_MIN_PRIMED = 256


class Speculator:
    """Asks a head for the drafts of a step, within depth, answer, blocks and the cost of building the head's cache.

    A head's slot needs nothing but what the model has computed, so slots are built when drafts are wanted, not before:
    without drafts a head costs nothing. `prefill_chunk_tokens` bounds what is built at once; a sequence that is further
    behind has no drafts until it has caught up.
    """

    def __init__(self, policy: DepthPolicy, *, prefill_chunk_tokens: int, max_depth: int = MAX_DEPTH) -> None:
        self.policy = policy
        self._max_depth = max_depth
        self._max_primed = max(_MIN_PRIMED, _PRIME_FACTOR * prefill_chunk_tokens)
        self._last_depths: dict[int, int] = {}
        self._known: dict[int, None] = {}  # whom the policy has heard of, in that order

    @property
    def last_depths(self) -> dict[int, int]:
        """Drafts of each sequence that decoded in the last step, by its id."""
        return self._last_depths

    @property
    def why_none(self) -> str | None:
        """Why the last step had no drafts, one sentence; None if it had some or nothing decoded in it."""
        if any(self._last_depths.values()) or not self._last_depths:
            return None
        return self.policy.why_none()

    def draft(
        self,
        table: SequenceTable,
        head: DraftHead,
        decoding: Seq[Sequence],
        prefilling: Seq[Sequence] = (),
        *,
        num_prefill_tokens: int = 0,
        max_drafts: int | None = None,
    ) -> None:
        """Sets the drafts of sequences that will decode in this step, up to `max_drafts` in all.

        Those that prefill get their head's slots built on the way, if drafts are to be expected.
        """
        self._forget_gone(table)
        rows = [DraftRow(sequence.seq_id, self._limit(sequence), num_unprimed(sequence)) for sequence in decoding]
        depths = self.policy.choose(rows, num_prefill_tokens)
        requests, num_left = [], self._max_primed
        budget = MAX_DEPTH * len(rows) if max_drafts is None else max_drafts
        for sequence, depth in zip(decoding, depths, strict=True):
            depth = min(depth, budget)
            if depth == 0 or num_left == 0:
                continue
            request = self._request(table, sequence, depth, num_left)
            num_left -= len(request.token_ids)
            budget -= request.depth
            requests.append(request)
        if self.policy.expects_drafts:
            requests += self._prime_only(prefilling, num_left)
        drafts = head(requests) if requests else None
        if drafts is not None:
            for request, draft_ids in zip(requests, drafts, strict=True):
                table.set_drafts(request, draft_ids)

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome], table: SequenceTable) -> None:
        """Learns from what a step accepted; to be called before the table commits it, since the ended are forgotten."""
        self._last_depths = {}
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            is_decode_row = len(row.token_ids) == row.num_logits
            if is_decode_row:
                self._last_depths[row.seq_id] = row.num_drafts
            if row.num_drafts and outcome.error is None and table.get(row.seq_id) is not None:
                self.policy.verified(row.seq_id, row.num_drafts, len(outcome.token_ids) - 1)
                self._known[row.seq_id] = None

    def _forget_gone(self, table: SequenceTable) -> None:
        for seq_id in [seq_id for seq_id in self._known if table.get(seq_id) is None]:
            del self._known[seq_id]
            self.policy.forget(seq_id)

    def _limit(self, sequence: Sequence) -> int:
        """The most drafts that can be of use: one token comes without a draft, and none may lie past the answer."""
        asked = MAX_DEPTH if sequence.max_draft_depth is None else sequence.max_draft_depth
        return max(0, min(self._max_depth, asked, sequence.stops.max_tokens - sequence.num_emitted - 1))

    def _request(self, table: SequenceTable, sequence: Sequence, depth: int, max_primed: int) -> DraftRequest:
        start = _first_slot(sequence)
        end = min(sequence.num_computed + 1, start + max_primed)
        has_caught_up = end == sequence.num_computed + 1
        depth = table.reserve_drafts(sequence, depth) if has_caught_up else 0
        return DraftRequest(
            sequence.seq_id, start, tuple(sequence.token_ids[start:end]), tuple(sequence.block_ids), depth
        )

    def _prime_only(self, prefilling: Seq[Sequence], max_primed: int) -> list[DraftRequest]:
        requests = []
        for sequence in prefilling:
            start = _first_slot(sequence)
            end = min(sequence.num_computed + 1, start + max_primed)
            if sequence.num_computed == 0 or end <= max(start, sequence.num_primed):
                continue
            max_primed -= end - start
            token_ids, block_ids = tuple(sequence.token_ids[start:end]), tuple(sequence.block_ids)
            requests.append(DraftRequest(sequence.seq_id, start, token_ids, block_ids, depth=0))
        return requests


def num_unprimed(sequence: Sequence) -> int:
    """How many slots of the head could be built and aren't."""
    return sequence.num_computed + 1 - max(1, sequence.num_primed)


def _first_slot(sequence: Sequence) -> int:
    """Where building goes on. The last slot that can be built is built again if need be: guesses start from it."""
    return max(1, min(sequence.num_primed, sequence.num_computed))
