"""The engine's calls of a draft head: their cost is told to the depth policy, and one that fails costs speed alone.

Knows neither steps nor answers; who is drafted for, and how deep, is decided in the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from mtplx.batching.drafting import DraftHead
from mtplx.batching.scheduler import Scheduler
from mtplx.batching.state import DraftRequest, SchedulerMode
from mtplx.decode.drafter import DraftChooser
from mtplx.decode.sampler import Sampler
from mtplx.model.runner import Runner, drafting_runner
from mtplx.telemetry.counters import DraftingStatus
from mtplx.telemetry.stages import Stage, StageRecorder

MAX_FAILED_DRAFTS = 16  # in a row: then the head isn't asked any more

log = logging.getLogger(__name__)


class HeadCalls:
    """Asks the runner's head where the mode drafts; after MAX_FAILED_DRAFTS failures in a row never again."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        sampler: Sampler,
        clock: Callable[[], float],
        recorder: StageRecorder,
    ) -> None:
        self._has_head = drafting_runner(runner) is not None
        self._runner = drafting_runner(runner) if scheduler.speculator else None
        self._scheduler = scheduler
        self._sampler = sampler
        self._clock = clock
        self._recorder = recorder
        self._num_failed = 0
        self._num_failed_in_a_row = 0
        self.seconds_of_step = 0.0  # that the calls of the step in progress have taken

    def for_step(self) -> DraftHead | None:
        """What a new step's plan may ask; None where there is nothing to ask."""
        self.seconds_of_step = 0.0
        return self._draft if self._runner else None

    def status(self) -> DraftingStatus:
        speculator = self._scheduler.speculator
        if speculator is None:
            return DraftingStatus(why_none=self._why_never())
        why_none = speculator.why_none
        if why_none and self._num_failed_in_a_row >= MAX_FAILED_DRAFTS:
            why_none = "the draft head failed too often"
        return DraftingStatus(
            last_depths=tuple(speculator.last_depths.values()),
            why_none=why_none,
            costs=speculator.policy.costs,
            num_failed=self._num_failed,
        )

    def _why_never(self) -> str:
        """Why nothing decides drafts here, one sentence."""
        if not self._has_head and self._scheduler.mode is not SchedulerMode.MTP_COHORT_EXPERIMENTAL:
            return "the model has no draft head"
        if self._scheduler.mode is SchedulerMode.AR_BATCH:
            return "ar_batch never drafts"
        return "the draft depth is 0: --draft-depth asks for more"

    def _draft(self, requests: Sequence[DraftRequest]) -> list[tuple[int, ...]] | None:
        """The head's guesses for each request, None if it failed, which costs speed and never an answer."""
        self._recorder.lap(Stage.PLAN)
        drafts = self._ask(requests)
        self._recorder.lap(Stage.DRAFT)
        return drafts

    def _ask(self, requests: Sequence[DraftRequest]) -> list[tuple[int, ...]] | None:
        assert self._runner is not None
        assert self._scheduler.speculator is not None
        start_s = self._clock()
        try:
            drafts = self._runner.draft(requests, DraftChooser(self._sampler, requests, self._runner.spec.vocab_size))
        except Exception:
            self.seconds_of_step += self._clock() - start_s
            log.exception("drafting for %d sequences failed; going on without drafts", len(requests))
            self._count_failed()
            return None
        self._num_failed_in_a_row = 0
        num_levels = max(request.depth for request in requests)
        num_tokens = sum(len(request.token_ids) + max(0, request.depth - 1) for request in requests)
        draft_s = self._clock() - start_s
        self.seconds_of_step += draft_s
        self._scheduler.speculator.policy.drafted(num_levels, num_tokens, draft_s)
        return drafts

    def _count_failed(self) -> None:
        self._num_failed += 1
        self._num_failed_in_a_row += 1
        if self._num_failed_in_a_row >= MAX_FAILED_DRAFTS:
            log.error("%d draft calls in a row have failed; serving without drafts", MAX_FAILED_DRAFTS)
            self._runner = None
