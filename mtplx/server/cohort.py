"""`mtp_cohort_experimental`: mtp_batch, and requests of one cohort share what they have in common.

Drafts also come from the texts of the cohort, where these are expected to be right for longer than the head. It runs
without a head too. Who is in a cohort with whom changes at every step and changes no answer.
"""

from __future__ import annotations

from mtplx.batching.budget import split_phases
from mtplx.batching.cohorts import Cohorts, CohortStatus, Luck
from mtplx.batching.drafting import DraftHead
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.shared_drafts import SharedSpeculator
from mtplx.batching.state import SchedulerMode, StepPlan
from mtplx.server.mtp_batch import MtpBatch


class MtpCohort(MtpBatch):
    """`cohorts` is the speculator's own, if there is one."""

    mode = SchedulerMode.MTP_COHORT_EXPERIMENTAL

    def __init__(
        self,
        table: SequenceTable,
        *,
        max_running: int,
        prefill_chunk_tokens: int,
        cohorts: Cohorts,
        speculator: SharedSpeculator | None = None,
    ) -> None:
        super().__init__(
            table, max_running=max_running, prefill_chunk_tokens=prefill_chunk_tokens, speculator=speculator
        )
        self.cohorts = cohorts

    @property
    def cohort_status(self) -> CohortStatus:
        """A snapshot, without whoever has ended since the last plan: on an idle server no other plan follows."""
        self.cohorts.sync(self.table)
        return self.cohorts.status()

    def use_luck(self, luck: Luck) -> None:
        self.cohorts.use_luck(luck)

    def plan(self, head: DraftHead | None = None) -> StepPlan:
        self.table.secure_next_tokens()
        self.table.admit(self.max_running)
        self.cohorts.sync(self.table)
        return self._plan(split_phases(self.table.running), head)
