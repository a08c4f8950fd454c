"""`serial`: one sequence at a time, first come first served, each until it ends.

A step is either a chunk of that sequence's prompt or its next token, with drafts after it if they are asked for.
Nothing is shared, so an answer can't depend on anyone else, and the other modes are tested against this one. A request
waits for all those that came before it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from mtplx.batching.budget import share_out, split_phases
from mtplx.batching.drafting import DraftHead, Speculator
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import RowOutcome, SchedulerMode, SequenceEvent, StepPlan


class Serial:
    """Width 1. `prefill_chunk_tokens` is the most prompt tokens in one step."""

    mode = SchedulerMode.SERIAL
    max_running = 1

    def __init__(
        self, table: SequenceTable, *, prefill_chunk_tokens: int, speculator: Speculator | None = None
    ) -> None:
        assert prefill_chunk_tokens >= 1
        self.table = table
        self.speculator = speculator
        self._chunk_tokens = prefill_chunk_tokens

    def plan(self, head: DraftHead | None = None) -> StepPlan:
        self.table.secure_next_tokens()
        self.table.admit(self.max_running)
        phases = split_phases(self.table.running)
        if self.speculator:
            self.speculator.draft(self.table, head, phases.decoding, phases.prefilling)
        rows = [self.table.row(sequence, 1 + len(sequence.draft_ids)) for sequence in phases.decoding]
        shares = share_out(phases.prefilling, self._chunk_tokens)
        rows += [self.table.row(share.sequence, share.num_tokens) for share in shares]
        return StepPlan(tuple(rows))

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome]) -> list[SequenceEvent]:
        if self.speculator:
            self.speculator.commit(plan, outcomes, self.table)
        return self.table.commit(plan, outcomes)
