"""The synchronous engine: one `step()` is plan, forward, next-token function, commit. No threads, no HTTP, no text.

Drafts are made inside the plan, at the step's beginning: the tokens of the step before are delivered by then, whoever
has left is not drafted for, and the depth is chosen with the newcomers in sight.

Submit, Cancel  ->  step()  ->  SequenceOutput
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtplx.batching.scheduler import Scheduler, cohort_scheduler
from mtplx.batching.state import (
    FinishReason,
    Row,
    RowOutcome,
    SequenceEvent,
    StepPlan,
    StopRules,
)
from mtplx.batching.state import Sequence as Seq
from mtplx.batching.suffix_index import NUM_LIKELY
from mtplx.decode.logprobs import TokenLogprobs
from mtplx.decode.sampler import SampledRow, Sampler
from mtplx.errors import EngineDeadError
from mtplx.model.runner import Logits, Runner, run_of
from mtplx.sampling_params import SamplingParams
from mtplx.server.head_calls import HeadCalls
from mtplx.telemetry.counters import EngineCounters, EngineStatus
from mtplx.telemetry.stages import NullRecorder, Stage, StageRecorder
from mtplx.text.grammar import CompiledGrammar

MAX_FAILED_STEPS = 16  # in a row, with no token between them: then the device is taken to be gone
_FAILED = "the model failed on this request"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submit:
    """One choice of one request, checked and complete: nothing in it can be refused any more."""

    seq_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    choice: int
    stops: StopRules
    cache_salt: bytes = b""  # prompts share computation only where it is equal
    cohort: bytes = b""  # whom it shares drafts with, where the mode has cohorts
    request: int | None = None  # the same for all choices of one request; None where there is one
    priority: int = 0  # who waits with a higher one starts first
    tenant: bytes = b""  # whose it is: among those of a priority tenants take turns
    grammar: CompiledGrammar | None = None  # that of the params
    deadline_s: float | None = None  # on the engine's clock: then it ends with what it has

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's logprobs come with this choice: they are the same for all, so one computes them."""
        return self.params.prompt_logprobs is not None and self.choice == 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a sequence; `reason` is what it counts as: STOP when its text reached a stop string."""

    seq_id: int
    reason: FinishReason = FinishReason.CANCELLED


@dataclass(slots=True)  # one a token, as `Row`
class SequenceOutput:
    """What a step did for one sequence; `logprobs` is empty or has one entry a token.

    `prompt_logprobs` are those of the next prompt tokens, in order; a step inside a prompt has nothing else to tell.
    `num_accepted_tokens` of the `num_draft_tokens` that the step verified are among its first tokens.
    `num_cached_tokens` of the prompt came from the prefix cache, the same in every output of a sequence with tokens.
    `at_s` is the monotonic clock at the step's end, `started_at_s` that at the start of the first one; told once.
    """

    seq_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    is_clients_fault: bool = False  # the error
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    at_s: float = 0.0
    started_at_s: float | None = None


class EngineCore:
    """Owns the runner, the scheduler and the sampler; used by one thread at a time.

    Invariant: the sampler knows exactly the sequences that the scheduler's table holds.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.monotonic,
        recorder: StageRecorder | None = None,
    ) -> None:
        self.runner = runner
        self._run = run_of(runner)
        self.scheduler = scheduler
        self.recorder = recorder or NullRecorder()
        self.counters = EngineCounters()
        self._cohorts = cohort_scheduler(scheduler)
        self._sampler = Sampler(
            runner.spec.vocab_size,
            tells_forced=scheduler.speculator is not None,
            num_likely=NUM_LIKELY if self._cohorts else 0,
        )
        if self._cohorts:
            self._cohorts.use_luck(self._sampler.lucky)
        self._clock = clock
        self._deadlines_s: dict[int, float] = {}
        self._num_failed_in_a_row = 0
        self._head_calls = HeadCalls(runner, scheduler, self._sampler, clock, self.recorder)

    @property
    def has_work(self) -> bool:
        return not self.scheduler.table.is_empty

    def add(self, submit: Submit) -> None:
        """Puts a sequence in line; if that raises, nothing has changed."""
        self.scheduler.table.add(
            Seq(
                submit.seq_id,
                list(submit.prompt_ids),
                prompt_len=len(submit.prompt_ids),
                stops=submit.stops,
                max_draft_depth=submit.params.draft_depth,
                cache_salt=submit.cache_salt,
                cohort=submit.cohort,
                request=submit.request,
                priority=submit.priority,
                tenant=submit.tenant,
                num_unscored=len(submit.prompt_ids) - 1 if submit.scores_prompt else 0,
            )
        )
        try:
            self._sampler.add(
                submit.seq_id,
                submit.params,
                seed=submit.seed,
                choice=submit.choice,
                prompt_ids=submit.prompt_ids,
                stop_ids=submit.stops.stop_ids,
                grammar=submit.grammar,
            )
        except BaseException:
            self.scheduler.table.cancel(submit.seq_id)
            raise
        if submit.deadline_s is not None:
            self._deadlines_s[submit.seq_id] = submit.deadline_s

    def cancel(self, cancel: Cancel) -> None:
        """Ends a sequence in any state; one that has already ended is none of our business."""
        if self.scheduler.table.cancel(cancel.seq_id):
            self._forget(cancel.seq_id, cancel.reason)

    def step(self) -> list[SequenceOutput]:
        """Runs one step and returns what it did; nothing when there is nothing to do.

        Raises:
            EngineDeadError: step after step has failed; the engine must not be used any more.
        """
        start_s = self.counters.step_started_at_s = self._clock()
        self.recorder.start()
        overdue = self._end_overdue()
        plan = self.scheduler.plan(self._head_calls.for_step())
        self.recorder.lap(Stage.PLAN)
        if not plan.rows:
            self.counters.step_started_at_s = None
            return overdue
        decoding_ids = self._decoding_ids(plan)
        self.counters.note_starts(plan, decoding_ids)
        num_failed = self.counters.num_failed_steps
        sampled = self._compute(plan)
        has_raised = self.counters.num_failed_steps > num_failed
        self._count_in_a_row([row.outcome for row in sampled], has_raised=has_raised)
        events = self.scheduler.commit(plan, [row.outcome for row in sampled])
        self.counters.count_step(plan, len(decoding_ids), self._clock())
        self.counters.step_started_at_s = None
        outputs = self._outputs(plan, sampled, events)
        self._count_drafts(outputs, decoding_ids)
        is_decode = len(decoding_ids) == plan.width
        if is_decode and not has_raised:  # prompts cost something else
            self._tell_cost(plan, self._clock() - start_s)
        self.recorder.lap(Stage.COMMIT)
        self.recorder.end(plan, outputs, is_decode=is_decode)
        return overdue + outputs

    def fail_all(self, message: str) -> list[SequenceOutput]:
        """Ends every sequence with an error and gives all blocks back."""
        table = self.scheduler.table
        seq_ids = [seq.seq_id for seq in (*table.running, *table.waiting)]
        return [
            self._finish(SequenceOutput(event.seq_id, finish_reason=event.finish_reason, error=event.error))
            for event in table.fail(seq_ids, message)
        ]

    def status(self) -> EngineStatus:
        table, counters = self.scheduler.table, self.counters
        return EngineStatus(
            scheduler_mode=self.scheduler.mode,
            max_running=self.scheduler.max_running,
            num_running=table.num_running,
            num_waiting=table.num_waiting,
            num_steps=counters.num_steps,
            last_step_width=counters.last_step_width,
            last_step_at_s=counters.last_step_at_s,
            step_started_at_s=counters.step_started_at_s,
            width_histogram=dict(counters.width_histogram),
            num_prefill_tokens=counters.num_prefill_tokens,
            num_decode_tokens=counters.num_decode_tokens,
            num_blocks_used=table.blocks.num_used,
            num_blocks_total=table.blocks.num_total,
            block_size=table.blocks.block_size,
            num_preemptions=table.num_preemptions,
            num_finished=dict(counters.num_finished),
            num_failed_steps=counters.num_failed_steps,
            drafts=counters.drafts.copy(),
            drafting=self._head_calls.status(),
            prefix=table.prefix.status(),
            cohorts=self._cohorts.cohort_status if self._cohorts else None,
        )

    def _end_overdue(self) -> list[SequenceOutput]:
        """Ends whoever is past its deadline, in whatever state."""
        if not self._deadlines_s:
            return []
        now_s = self._clock()
        overdue = [seq_id for seq_id, deadline_s in self._deadlines_s.items() if deadline_s <= now_s]
        for seq_id in overdue:
            self.cancel(Cancel(seq_id, FinishReason.TIMEOUT))
        return [SequenceOutput(seq_id, finish_reason=FinishReason.TIMEOUT, at_s=now_s) for seq_id in overdue]

    def _decoding_ids(self, plan: StepPlan) -> frozenset[int]:
        """The sequences whose row is their next token and drafts; a chunk's last token looks the same in a plan."""
        sequences = (self.scheduler.table.get(row.seq_id) for row in plan.rows)
        return frozenset(sequence.seq_id for sequence in sequences if sequence and sequence.is_decoding)

    def _count_drafts(self, outputs: Sequence[SequenceOutput], decoding_ids: frozenset[int]) -> None:
        for output in outputs:
            if output.error is None and output.seq_id in decoding_ids:
                self.counters.drafts.count(output.num_draft_tokens, output.num_accepted_tokens)

    def _compute(self, plan: StepPlan) -> list[SampledRow]:
        """Forward and next tokens of every row; a row that can't be computed carries an error instead."""
        try:
            logits_WV, argmax_W = self._run(plan)
        except Exception:
            # Anything can come out of a forward pass, and one request must not take the others down.
            log.exception("a step of %d rows failed; running its rows one by one", plan.width)
            self.counters.num_failed_steps += 1
            return [self._compute_row(row) for row in plan.rows]  # running a row again changes nothing
        self.recorder.lap(Stage.FORWARD)
        return self._sample(plan, logits_WV, argmax_W)

    def _tell_cost(self, plan: StepPlan, step_s: float) -> None:
        """Lets the depth policy hear what a step took beside its drafts, planning and committing them included."""
        speculator = self.scheduler.speculator
        if speculator:
            speculator.policy.stepped(plan.num_tokens, step_s - self._head_calls.seconds_of_step)

    def _sample(self, plan: StepPlan, logits_WV: Logits, argmax_W: Sequence[int] | None) -> list[SampledRow]:
        """The next tokens of a step. If that raises, nobody knows how far it came: whoever waits for a token fails."""
        try:
            return self._sampler.decode(plan, logits_WV, argmax_W)
        except Exception:
            log.exception("no tokens could be drawn from a step of %d rows", plan.width)
            self.counters.num_failed_steps += 1
            return [SampledRow(RowOutcome(error=_FAILED if row.num_logits else None)) for row in plan.rows]
        finally:
            self.recorder.lap(Stage.SAMPLE)

    def _compute_row(self, row: Row) -> SampledRow:
        """One row of a failed step, as a step of its own."""
        plan = StepPlan((row,))
        stage = Stage.FORWARD
        try:
            logits_WV, argmax_W = self._run(plan)
            self.recorder.lap(stage)
            stage = Stage.SAMPLE
            [sampled] = self._sampler.decode(plan, logits_WV, argmax_W)
        except Exception as error:
            log.warning("sequence %d failed: %s", row.seq_id, error)
            return SampledRow(RowOutcome(error=_FAILED))
        finally:
            self.recorder.lap(stage)
        return sampled

    def _count_in_a_row(self, outcomes: Sequence[RowOutcome], *, has_raised: bool) -> None:
        """Steps that only compute prompts count neither way: they don't show that anybody gets a token.

        Raises:
            EngineDeadError: nothing could be computed, as in many steps before.
        """
        if any(outcome.token_ids for outcome in outcomes):
            self._num_failed_in_a_row = 0
        elif has_raised and all(outcome.error for outcome in outcomes):
            self._num_failed_in_a_row += 1
            if self._num_failed_in_a_row >= MAX_FAILED_STEPS:
                raise EngineDeadError(f"{MAX_FAILED_STEPS} steps in a row have failed")

    def _outputs(
        self, plan: StepPlan, sampled: Sequence[SampledRow], events: Sequence[SequenceEvent]
    ) -> list[SequenceOutput]:
        """One output a row, in order; a row inside a prompt has no event, and no output unless it has scores."""
        event_of = {event.seq_id: event for event in events}
        outputs = []
        for row, result in zip(plan.rows, sampled, strict=True):
            event = event_of.get(row.seq_id)
            if event is not None:
                outputs.append(self._output(event, row, result))
            elif result.prompt_logprobs:
                outputs.append(SequenceOutput(row.seq_id, prompt_logprobs=result.prompt_logprobs))
        return outputs

    def _output(self, event: SequenceEvent, row: Row, result: SampledRow) -> SequenceOutput:
        num_accepted = 0
        if event.error is None:
            num_accepted = min(len(result.outcome.token_ids) - 1, len(event.token_ids))
        return self._finish(
            SequenceOutput(
                seq_id=event.seq_id,
                token_ids=event.token_ids,
                logprobs=result.logprobs[: len(event.token_ids)],
                finish_reason=event.finish_reason,
                error=event.error,
                is_clients_fault=event.is_clients_fault,
                num_draft_tokens=row.num_drafts,
                num_accepted_tokens=num_accepted,
                num_cached_tokens=event.num_cached,
                prompt_logprobs=result.prompt_logprobs,
                at_s=self.counters.last_step_at_s or 0.0,
                started_at_s=self.counters.started_at_s.pop(event.seq_id, None),
            )
        )

    def _finish(self, output: SequenceOutput) -> SequenceOutput:
        if output.finish_reason is not None:
            self._forget(output.seq_id, output.finish_reason)
        return output

    def _forget(self, seq_id: int, reason: FinishReason) -> None:
        """Drops what is kept beside the table of a sequence that has left it."""
        self._sampler.remove(seq_id)
        self._deadlines_s.pop(seq_id, None)
        self.counters.started_at_s.pop(seq_id, None)
        self.counters.num_finished[reason] += 1
