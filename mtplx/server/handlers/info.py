"""The endpoints that report: models, status, health, metrics. None waits for the engine or is refused by load."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import JSONResponse, Response

from mtplx.batching.cohorts import CohortStatus, SourceCounts
from mtplx.batching.prefix import PrefixStatus
from mtplx.batching.speculation import Costs
from mtplx.errors import EngineDeadError, RequestError, StepOverdueError
from mtplx.model.spec import HeadInfo
from mtplx.server.answers.info_shapes import (
    CohortsStatus,
    DraftCosts,
    DraftHead,
    DraftStatus,
    Health,
    ModelCard,
    ModelList,
    PrefixCacheStatus,
    ProfilePage,
    SourceStatus,
    StageRow,
    Status,
)
from mtplx.server.context import ServerContext
from mtplx.server.handlers.checks import check_model_name
from mtplx.telemetry.counters import EngineStatus
from mtplx.telemetry.metrics import CONTENT_TYPE, HttpMetrics
from mtplx.telemetry.profile import Profile, StageTimes, profile_of
from mtplx.telemetry.stages import Recording
from mtplx.telemetry.trace import chrome_trace

_COST_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class InfoHandlers:
    """Reads snapshots; `started_at_s` is in seconds of the monotonic clock."""

    def __init__(self, context: ServerContext, metrics: HttpMetrics, started_at_s: float) -> None:
        self._context = context
        self._metrics = metrics
        self._started_at_s = started_at_s

    async def list_models(self) -> ModelList:
        """The one model that is served."""
        return {"object": "list", "data": [self._card()]}

    async def get_model(self, model_id: str) -> ModelCard:
        """The served model by its name."""
        check_model_name(model_id, self._context)
        return self._card()

    async def health(self) -> Health:
        """Says ok, or 503 when nothing will be generated any more, or a step has taken so long that it may hang."""
        if not self._context.streams.is_alive():
            raise EngineDeadError("the engine is not running")
        started_at_s, limit_s = self._context.streams.step_started_at_s(), self._context.settings.step_timeout_s
        if started_at_s is not None and time.monotonic() - started_at_s > limit_s:
            raise StepOverdueError(f"a step has been running for more than {limit_s:g} seconds")
        return {"status": "ok"}

    async def metrics(self) -> Response:
        """Counters, gauges and histograms for Prometheus."""
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def status(self) -> Status:
        """What the engine is and has done, as of its last step."""
        context, engine = self._context, self._context.streams.status()
        now_s = time.monotonic()
        return {
            "scheduler_mode": str(engine.scheduler_mode),
            "model": context.model_name,
            "runner": context.runner_info.runner,
            "device": context.runner_info.device,
            "dtype": context.runner_info.dtype,
            "build": context.runner_info.build,
            "quantization": context.runner_info.quantization,
            "kv_cache_dtype": context.runner_info.kv_cache_dtype,
            "exact": context.runner_info.exact,
            "exact_note": context.runner_info.exact_note,
            "version": context.version,
            "system_fingerprint": context.fingerprint,
            "alive": context.streams.is_alive(),
            "uptime_s": now_s - self._started_at_s,
            "max_model_len": context.streams.max_model_len,
            "max_running": engine.max_running,
            "num_running": engine.num_running,
            "num_waiting": engine.num_waiting,
            "num_steps": engine.num_steps,
            "last_step_width": engine.last_step_width,
            "width_histogram": {str(width): count for width, count in sorted(engine.width_histogram.items())},
            "seconds_since_last_step": None if engine.last_step_at_s is None else now_s - engine.last_step_at_s,
            "num_prefill_tokens": engine.num_prefill_tokens,
            "num_decode_tokens": engine.num_decode_tokens,
            "cache_blocks_used": engine.num_blocks_used,
            "cache_blocks_total": engine.num_blocks_total,
            "cache_block_size": engine.block_size,
            "num_preemptions": engine.num_preemptions,
            "num_failed_steps": engine.num_failed_steps,
            "num_finished": {str(reason): count for reason, count in sorted(engine.num_finished.items())},
            "tool_parser": context.answer_format.tool_parser,
            "reasoning_parser": context.answer_format.reasoning_parser,
            "draft_head": _draft_head(context.runner_info.head),
            "drafts": _draft_status(engine),
            "prefix_cache": _prefix_status(engine.prefix),
            "cohorts": _cohorts_status(engine.cohorts) if engine.cohorts else None,
        }

    def profile(
        self,
        after_step: Annotated[int, Query(ge=0, description="only steps after this number")] = 0,
        form: Annotated[
            Literal["table", "trace"], Query(alias="format", description="trace: for Perfetto and chrome://tracing")
        ] = "table",
    ) -> ProfilePage | Response:
        """Where the time of hyper's steps went, stage by stage. Runs on a thread: a trace is large."""
        recording = self._recording(after_step)
        if form == "trace":
            return JSONResponse(chrome_trace(recording))
        return _profile_page(self._context.model_name, profile_of(recording))

    def _recording(self, after_step: int) -> Recording:
        recording = self._context.recorder.recording(after_step)
        if recording is None:
            mode = self._context.streams.status().scheduler_mode
            raise RequestError(
                f"this server runs {mode}, and only hyper records its stages: start one with --scheduler-mode hyper",
                code="hyper_only",
            )
        return recording

    def _card(self) -> ModelCard:
        return {
            "id": self._context.model_name,
            "object": "model",
            "created": self._context.created,
            "owned_by": "mtplx",
            "max_model_len": self._context.streams.max_model_len,
        }


def _draft_head(head: HeadInfo | None) -> DraftHead | None:
    if head is None:
        return None
    return {
        "name": head.name,
        "num_blocks": head.num_blocks,
        "draft_vocab_size": head.draft_vocab_size,
        "greedy_acceptance": list(head.greedy_acceptance),
    }


def _draft_status(engine: EngineStatus) -> DraftStatus:
    counts, now = engine.drafts, engine.drafting
    num_positions = 1 + max(counts.drafted_by_position, default=-1)
    return {
        "num_drafts": counts.num_drafts,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted_tokens": counts.num_accepted_tokens,
        "depth_histogram": {str(depth): rows for depth, rows in sorted(counts.depth_histogram.items())},
        "drafted_by_position": [counts.drafted_by_position[position] for position in range(num_positions)],
        "accepted_by_position": [counts.accepted_by_position[position] for position in range(num_positions)],
        "last_depths": list(now.last_depths),
        "why_none": now.why_none,
        "num_failed": now.num_failed,
        "costs_ms": _costs_ms(now.costs) if now.costs else None,
    }


def _prefix_status(prefix: PrefixStatus) -> PrefixCacheStatus:
    return {
        "is_on": prefix.is_on,
        "num_blocks": prefix.num_blocks,
        "num_hits": prefix.num_hits,
        "num_queried_tokens": prefix.num_queried_tokens,
        "num_saved_tokens": prefix.num_saved_tokens,
        "num_evictions": prefix.num_evictions,
    }


def _cohorts_status(cohorts: CohortStatus) -> CohortsStatus:
    return {
        "num_cohorts": cohorts.num_cohorts,
        "num_members": cohorts.num_members,
        "num_saved_tokens": cohorts.num_saved_tokens,
        "num_indexes": cohorts.num_indexes,
        "index_bytes": cohorts.index_bytes,
        "head": _source_status(cohorts.head),
        "index": _source_status(cohorts.index),
    }


def _source_status(counts: SourceCounts) -> SourceStatus:
    return {"num_draft_tokens": counts.num_draft_tokens, "num_accepted_tokens": counts.num_accepted_tokens}


def _costs_ms(costs: Costs) -> DraftCosts:
    return {
        "source": "cached" if costs.is_cached else "measured",
        "step": _step_ms(costs, is_after_draft=False),
        "step_after_draft": _step_ms(costs, is_after_draft=True),
        "draft_level": 1000 * costs.draft.per_level_s,
        "draft_token": 1000 * costs.draft.per_token_s,
    }


def _step_ms(costs: Costs, *, is_after_draft: bool) -> dict[str, float]:
    return {str(size): 1000 * costs.step_s(1, size - 1, is_after_draft=is_after_draft) for size in _COST_SIZES}


def _profile_page(model_name: str, profile: Profile) -> ProfilePage:
    return {
        "model": model_name,
        "num_steps": profile.num_steps,
        "last_step": profile.last_step,
        "num_dropped": profile.num_dropped,
        "steps_ms": 1000 * profile.steps_s,
        "num_decode_steps": profile.num_decode_steps,
        "num_decode_tokens": profile.num_decode_tokens,
        "tokens_per_step": profile.tokens_per_step,
        "num_draft_tokens": profile.num_draft_tokens,
        "num_accepted_tokens": profile.num_accepted_tokens,
        "stages": [_stage_row(times) for times in profile.stages],
        "forward_by_tokens": [_stage_row(times) for times in profile.forward_by_tokens],
    }


def _stage_row(times: StageTimes) -> StageRow:
    return {
        "stage": str(times.stage),
        "num_tokens": times.num_tokens,
        "num_calls": times.num_calls,
        "median_ms": 1000 * times.median_s,
        "total_ms": 1000 * times.total_s,
        "share": times.share,
    }
