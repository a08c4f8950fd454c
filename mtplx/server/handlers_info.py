"""The endpoints that report: models, status, health, metrics. None waits for the engine or is refused by load."""

from __future__ import annotations

import time

from starlette.responses import Response

from mtplx.batching.speculation import Costs
from mtplx.errors import EngineDeadError
from mtplx.server.context import ServerContext
from mtplx.server.handlers import check_model_name
from mtplx.server.responses import DraftCosts, DraftStatus, Health, ModelCard, ModelList, Status
from mtplx.telemetry.counters import EngineStatus
from mtplx.telemetry.metrics import CONTENT_TYPE, HttpMetrics

_COST_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_NO_HEAD = "nothing drafts: this mode doesn't, its depth is 0, or the model has no draft head"


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
        """Says ok, or 503 when nothing will be generated any more."""
        if not self._context.streams.is_alive():
            raise EngineDeadError("the engine is not running")
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
            "drafts": _draft_status(engine),
        }

    def _card(self) -> ModelCard:
        return {
            "id": self._context.model_name,
            "object": "model",
            "created": self._context.created,
            "owned_by": "mtplx",
            "max_model_len": self._context.streams.max_model_len,
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
        "last_depths": list(now.last_depths) if now else [],
        "why_none": now.why_none if now else _NO_HEAD,
        "num_failed": now.num_failed if now else 0,
        "costs_ms": _costs_ms(now.costs) if now and now.costs else None,
    }


def _costs_ms(costs: Costs) -> DraftCosts:
    return {
        "step": {str(size): 1000 * costs.step.of(size) for size in _COST_SIZES},
        "draft_level": 1000 * costs.draft.per_level_s,
        "draft_token": 1000 * costs.draft.per_token_s,
    }
