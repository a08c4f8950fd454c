"""From the settings to a scheduler: which mode runs, how wide, and which wishes are refused and why."""

from __future__ import annotations

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.scheduler import Scheduler
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import SchedulerMode
from mtplx.config import Settings
from mtplx.errors import ConfigError
from mtplx.server.ar_batch import ArBatch
from mtplx.server.cooperative import Cooperative
from mtplx.server.serial import Serial

DEFAULT_DECODE_BATCH_MAX = 16

_MISSING = {
    SchedulerMode.MTP_BATCH: "it needs multi-token-prediction heads, which this version cannot load yet",
    SchedulerMode.HYPER: "it runs mtp_batch at width 1, which needs multi-token-prediction heads",
    SchedulerMode.MTP_COHORT_EXPERIMENTAL: "it builds on mtp_batch and on a shared prefix cache, both still to come",
}


def resolve_mode(settings: Settings) -> SchedulerMode:
    """The mode that will run.

    Raises:
        ConfigError: the mode isn't there yet, or contradicts another setting.
    """
    mode = settings.scheduler_mode or SchedulerMode.AR_BATCH
    if mode in _MISSING:
        there = ", ".join(known for known in SchedulerMode if known not in _MISSING)
        raise ConfigError(
            f"--scheduler-mode {mode} is not available: {_MISSING[mode]}; choose one of {there}", "--scheduler-mode"
        )
    if settings.draft_depth > 0:
        why = "ar_batch never drafts" if mode is SchedulerMode.AR_BATCH else "this version cannot load draft heads yet"
        raise ConfigError(f"--draft-depth {settings.draft_depth} is not possible: {why}; use 0", "--draft-depth")
    return mode


def make_scheduler(
    mode: SchedulerMode, blocks: BlockAllocator, *, decode_batch_max: int | None, prefill_chunk_tokens: int
) -> Scheduler:
    """A scheduler of that mode over an empty table.

    `decode_batch_max` None is 16 for ar_batch and the step's token budget for cooperative; serial's width is 1, which
    is within any maximum.
    """
    table = SequenceTable(blocks)
    if mode is SchedulerMode.SERIAL:
        return Serial(table, prefill_chunk_tokens=prefill_chunk_tokens)
    if mode is SchedulerMode.COOPERATIVE:
        max_running = decode_batch_max or prefill_chunk_tokens
        return Cooperative(table, max_running=max_running, prefill_chunk_tokens=prefill_chunk_tokens)
    if mode is SchedulerMode.AR_BATCH:
        max_running = decode_batch_max or DEFAULT_DECODE_BATCH_MAX
        return ArBatch(table, max_running=max_running, prefill_chunk_tokens=prefill_chunk_tokens)
    raise AssertionError(f"{mode} passed resolve_mode")
