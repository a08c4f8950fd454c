"""What the engine has really done, counted where it happens; read by the status and the metrics pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from mtplx.batching.cohorts import CohortStatus
from mtplx.batching.prefix import PrefixStatus
from mtplx.batching.speculation import Costs
from mtplx.batching.state import FinishReason, SchedulerMode, StepPlan


@dataclass(slots=True)
class DraftCounts:
    """Rows that had drafts, their drafts, and those that were emitted; a row without drafts is no draft."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    depth_histogram: Counter[int] = field(default_factory=Counter)  # drafts of a decode row, 0 included, to rows
    drafted_by_position: Counter[int] = field(default_factory=Counter)  # from 0
    accepted_by_position: Counter[int] = field(default_factory=Counter)

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """Adds one decode row."""
        self.depth_histogram[num_drafts] += 1
        if num_drafts == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        self.drafted_by_position.update(range(num_drafts))
        self.accepted_by_position.update(range(num_accepted))

    def copy(self) -> DraftCounts:
        """One that stays as it is."""
        return DraftCounts(
            self.num_drafts,
            self.num_draft_tokens,
            self.num_accepted_tokens,
            self.depth_histogram.copy(),
            self.drafted_by_position.copy(),
            self.accepted_by_position.copy(),
        )


@dataclass(frozen=True, slots=True)
class DraftingStatus:
    """What drafting is doing now. `costs` is None where the depth is fixed and nothing asks for them."""

    last_depths: tuple[int, ...] = ()  # of the rows that decoded in the last step
    why_none: str | None = None  # why that step had no drafts; None if it had some or nothing decoded in it
    costs: Costs | None = None
    num_failed: int = 0  # calls of the head that raised


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot taken between two steps; the same numbers whoever asks. Histograms map a value to a count of steps."""

    scheduler_mode: SchedulerMode
    max_running: int
    num_running: int
    num_waiting: int
    num_steps: int
    last_step_width: int  # sequences in the last step
    last_step_at_s: float | None  # monotonic clock at its end; None before the first
    step_started_at_s: float | None  # monotonic clock at the start of the step in progress, else None
    width_histogram: Mapping[int, int]
    num_prefill_tokens: int
    num_decode_tokens: int
    num_blocks_used: int
    num_blocks_total: int
    block_size: int
    num_preemptions: int
    num_finished: Mapping[FinishReason, int]
    num_failed_steps: int
    drafts: DraftCounts = field(default_factory=lambda: DraftCounts())
    drafting: DraftingStatus = field(default_factory=lambda: DraftingStatus())
    prefix: PrefixStatus = field(default_factory=lambda: PrefixStatus(is_on=False))
    cohorts: CohortStatus | None = None  # None where the mode has none


@dataclass(slots=True)
class EngineCounters:
    """The running totals behind `EngineStatus`; one thread writes them."""

    num_steps: int = 0
    last_step_width: int = 0
    last_step_at_s: float | None = None
    step_started_at_s: float | None = None
    width_histogram: Counter[int] = field(default_factory=Counter)
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_finished: Counter[FinishReason] = field(default_factory=Counter)
    num_failed_steps: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    started_at_s: dict[int, float] = field(default_factory=dict)  # sequences whose first step nobody has been told of

    def note_starts(self, plan: StepPlan, decoding_ids: Set[int]) -> None:
        """Notes the step in progress for those in it for the first time; one of decoding alone costs a comparison."""
        if len(decoding_ids) == plan.width or self.step_started_at_s is None:
            return
        for row in plan.rows:
            if row.seq_id not in decoding_ids:
                self.started_at_s.setdefault(row.seq_id, self.step_started_at_s)

    def count_step(self, plan: StepPlan, num_decode: int, now_s: float) -> None:
        """Adds one step that ran; `num_decode` of its rows were a next token with its drafts, the others prompts."""
        self.num_steps += 1
        self.last_step_width = plan.width
        self.last_step_at_s = now_s
        self.width_histogram[plan.width] += 1
        self.num_decode_tokens += num_decode
        self.num_prefill_tokens += plan.num_tokens - num_decode - sum(row.num_drafts for row in plan.rows)
