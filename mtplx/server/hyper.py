"""`hyper`: mtp_batch at width 1, for the lowest latency of one client and for looking at the stages of a step.

It is mtp_batch's own code with one place: what is measured here is what runs there. In this mode alone the engine
records the stages of its steps. A request waits for those that came before it.
"""

from __future__ import annotations

from mtplx.batching.drafting import Speculator
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import SchedulerMode
from mtplx.server.mtp_batch import MtpBatch


class Hyper(MtpBatch):
    """`prefill_chunk_tokens` is the most prompt tokens in one step."""

    mode = SchedulerMode.HYPER

    def __init__(
        self, table: SequenceTable, *, prefill_chunk_tokens: int, speculator: Speculator | None = None
    ) -> None:
        super().__init__(table, max_running=1, prefill_chunk_tokens=prefill_chunk_tokens, speculator=speculator)
