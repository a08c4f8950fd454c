"""`ar_batch`: all running sequences advance together by exactly one token a step, and never speculate.

Sequences join whenever a place and blocks are free and leave in the step in which they end. While some have prompt left
to compute, prefill steps (one chunk's worth of tokens in all, half of it for whoever was admitted first, half for short
prompts) alternate with decode steps. So a running stream waits for at most one chunk between two of its tokens, and a
newcomer neither for anyone's end, but a place's, nor for a long prompt's.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from mtplx.batching.budget import share_out_short_first, split_phases
from mtplx.batching.drafting import DraftHead
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import RowOutcome, SchedulerMode, SequenceEvent, StepPlan


class ArBatch:
    """`prefill_chunk_tokens` is the most prompt tokens in one step, over all sequences."""

    mode = SchedulerMode.AR_BATCH
    speculator = None

    def __init__(self, table: SequenceTable, *, max_running: int, prefill_chunk_tokens: int) -> None:
        assert max_running >= 1
        assert prefill_chunk_tokens >= 1
        self.table = table
        self.max_running = max_running
        self._chunk_tokens = prefill_chunk_tokens
        self._prefilled_last = False

    def plan(self, head: DraftHead | None = None) -> StepPlan:
        self.table.secure_next_tokens()
        self.table.admit(self.max_running)
        phases = split_phases(self.table.running)
        is_decode_turn = bool(phases.decoding) and (self._prefilled_last or not phases.prefilling)
        self._prefilled_last = bool(phases.prefilling) and not is_decode_turn
        if is_decode_turn:
            return StepPlan(tuple(self.table.row(sequence, 1) for sequence in phases.decoding))
        leading = self.table.prefix.without_twins(phases.prefilling)
        shares = share_out_short_first(leading, self._chunk_tokens)
        return StepPlan(tuple(self.table.row(share.sequence, share.num_tokens) for share in shares))

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome]) -> list[SequenceEvent]:
        return self.table.commit(plan, outcomes)
