"""What the engine asks of a mode: a plan, and a commit of what came of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

from mtplx.batching.cohorts import CohortStatus, Luck
from mtplx.batching.drafting import DraftHead, Speculator
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import RowOutcome, SchedulerMode, SequenceEvent, StepPlan


class Scheduler(Protocol):
    """One scheduler mode. Deterministic: the same adds, cancels and outcomes give the same plans."""

    @property
    def mode(self) -> SchedulerMode: ...

    @property
    def table(self) -> SequenceTable: ...

    @property
    def max_running(self) -> int:
        """The most sequences it admits at once; with the queue limit this bounds what the server accepts."""
        ...

    @property
    def speculator(self) -> Speculator | None:
        """What decides drafts; None where there are none."""
        ...

    def plan(self, head: DraftHead | None = None) -> StepPlan:
        """Admits, preempts, reserves blocks, and returns the next step's rows; empty when there is nothing to do.

        Without `head`, or without a speculator, the rows have no drafts.
        """
        ...

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome]) -> list[SequenceEvent]:
        """Applies the outcomes (one a row, in order) and returns an event for each sequence that moved or ended."""
        ...


@runtime_checkable
class CohortScheduler(Scheduler, Protocol):
    """A mode whose requests form cohorts."""

    @property
    def cohort_status(self) -> CohortStatus:
        """A snapshot."""
        ...

    def use_luck(self, luck: Luck) -> None:
        """Tells it whom to ask what a sequence would draw."""
        ...


def cohort_scheduler(scheduler: Scheduler) -> CohortScheduler | None:
    """The scheduler, if it has cohorts."""
    return scheduler if isinstance(scheduler, CohortScheduler) else None
