"""`cooperative`: each step takes whatever work is ready, decode rows and prefill chunks mixed under one token budget.

A decoding sequence costs one token and goes first, prefill gets the rest and never less than a quarter, and within each
the least served comes first, where a newcomer counts as one turn behind the least served of those it joins. So every
stream moves in nearly every step, and a short prompt passes through beside long ones. What then is left of the budget
may go into drafts. When the head of the line has
waited too long, those that have had the most give way to it, if they got more out of their place than it cost.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from mtplx.batching.budget import share_out, split_mixed, split_phases
from mtplx.batching.drafting import DraftHead, Speculator
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import RowOutcome, SchedulerMode, Sequence, SequenceEvent, StepPlan

MAX_WAIT_STEPS = 64
"""Steps that the head of the line waits before others give way."""


class Cooperative:
    """`prefill_chunk_tokens` is a step's budget of tokens, and the default for `max_running`."""

    mode = SchedulerMode.COOPERATIVE

    def __init__(
        self,
        table: SequenceTable,
        *,
        max_running: int | None = None,
        prefill_chunk_tokens: int,
        max_wait_steps: int = MAX_WAIT_STEPS,
        speculator: Speculator | None = None,
    ) -> None:
        assert max_running is None or max_running >= 1
        assert prefill_chunk_tokens >= 1
        self.table = table
        self.max_running = prefill_chunk_tokens if max_running is None else max_running
        self.speculator = speculator
        self._budget = prefill_chunk_tokens
        self._max_wait_steps = max_wait_steps
        self._head_id: int | None = None  # who was at the head of the line after the last plan,
        self._head_steps = 0  # and in how many plans in a row it was left there

    def plan(self, head: DraftHead | None = None) -> StepPlan:
        self.table.secure_next_tokens()
        self._admit()
        phases = split_phases(sorted(self.table.running, key=_least_served_first))
        leading = self.table.prefix.without_twins(phases.prefilling)
        num_prefill_pending = sum(sequence.num_pending for sequence in leading)
        split = split_mixed(self._budget, len(phases.decoding), num_prefill_pending)
        decoding = phases.decoding[: split.num_decoding]
        if self.speculator:
            self.speculator.draft(
                self.table,
                head,
                decoding,
                phases.prefilling,
                max_drafts=max(0, self._budget - len(decoding) - split.num_prefill_tokens),
            )
        rows = [self.table.row(sequence, 1 + len(sequence.draft_ids)) for sequence in decoding]
        for share in share_out(leading, split.num_prefill_tokens):
            rows.append(self.table.row(share.sequence, share.num_tokens))
        return StepPlan(tuple(rows))

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome]) -> list[SequenceEvent]:
        if self.speculator:
            self.speculator.commit(plan, outcomes, self.table)
        return self.table.commit(plan, outcomes)

    def _admit(self) -> None:
        self.table.admit(self.max_running)
        if self._head_is_overdue() and self.table.make_way(self.max_running, self._yielding()):
            self.table.admit(self.max_running)
        self._count_head()

    def _head_is_overdue(self) -> bool:
        waiting = self.table.waiting
        return bool(waiting) and waiting[0].seq_id == self._head_id and self._head_steps >= self._max_wait_steps

    def _yielding(self) -> list[Sequence]:
        """Who could give way to the head of the line, the one with the most computed since its admission first."""
        priority = self.table.waiting[0].priority
        candidates = [
            sequence
            for sequence in self.table.running
            if sequence.priority <= priority and _has_paid_off(sequence, self._budget)
        ]
        return sorted(candidates, key=lambda sequence: (-sequence.num_computed, -sequence.seq_id))

    def _count_head(self) -> None:
        waiting = self.table.waiting
        head_id = waiting[0].seq_id if waiting else None
        self._head_steps = self._head_steps + 1 if head_id is not None and head_id == self._head_id else 0
        self._head_id = head_id


def _least_served_first(sequence: Sequence) -> tuple[int, int, int]:
    """Among equals the one that is done soonest, so that a short prompt waits for one round at most."""
    return sequence.num_served, sequence.num_pending, sequence.seq_id


def _has_paid_off(sequence: Sequence, budget: int) -> bool:
    """Whether it has emitted, since its admission, at least two tokens for each chunk that computing it again costs.

    Without this, two long sequences could take turns for ever and never get past their prefill.
    """
    num_chunks = -(-sequence.admitted_len // budget)
    return len(sequence.token_ids) - sequence.admitted_len >= 2 * num_chunks
