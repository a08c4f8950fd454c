"""`mtp_batch`: all running sequences verify their own drafts in one step, and draft again before the next.

Each row has a depth of its own, 0 included, and emits between one token and one more than its drafts. Sequences join
whenever a place and blocks are free and leave in the step in which they end; chunks of prompts ride along in the same
step, half for who was admitted first, half for short prompts. With no drafts at all it is ar_batch without the turns.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from mtplx.batching.budget import Phases, share_out_short_first, split_phases
from mtplx.batching.drafting import DraftHead, Speculator
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import RowOutcome, SchedulerMode, SequenceEvent, StepPlan


class MtpBatch:
    """`prefill_chunk_tokens` is the most prompt tokens in one step, over all sequences."""

    mode = SchedulerMode.MTP_BATCH

    def __init__(
        self,
        table: SequenceTable,
        *,
        max_running: int,
        prefill_chunk_tokens: int,
        speculator: Speculator | None = None,
    ) -> None:
        assert max_running >= 1
        assert prefill_chunk_tokens >= 1
        self.table = table
        self.max_running = max_running
        self.speculator = speculator
        self._chunk_tokens = prefill_chunk_tokens

    def plan(self, head: DraftHead | None = None) -> StepPlan:
        self.table.secure_next_tokens()
        self.table.admit(self.max_running)
        return self._plan(split_phases(self.table.running), head)

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome]) -> list[SequenceEvent]:
        if self.speculator:
            self.speculator.commit(plan, outcomes, self.table)
        return self.table.commit(plan, outcomes)

    def _plan(self, phases: Phases, head: DraftHead | None) -> StepPlan:
        """Drafts for all that decode, then their rows and the chunks of prompts."""
        shares = share_out_short_first(self.table.prefix.without_twins(phases.prefilling), self._chunk_tokens)
        if self.speculator:
            self.speculator.draft(self.table, head, phases.decoding, phases.prefilling)
        rows = [self.table.row(sequence, 1 + len(sequence.draft_ids)) for sequence in phases.decoding]
        rows += [self.table.row(share.sequence, share.num_tokens) for share in shares]
        return StepPlan(tuple(rows))
