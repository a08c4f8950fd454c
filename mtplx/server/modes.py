"""From the settings to a scheduler: which mode runs, how wide, how deep it drafts, and which wishes are refused."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.cohorts import Cohorts
from mtplx.batching.depth import AdaptiveDepth, DepthPolicy, FixedDepth
from mtplx.batching.drafting import Speculator
from mtplx.batching.prefix import PrefixCache
from mtplx.batching.scheduler import Scheduler
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.shared_drafts import SharedSpeculator
from mtplx.batching.speculation import MAX_DEPTH, Costs
from mtplx.batching.state import SchedulerMode
from mtplx.config import AUTO, Settings
from mtplx.errors import ConfigError
from mtplx.server.ar_batch import ArBatch
from mtplx.server.cohort import MtpCohort
from mtplx.server.cooperative import Cooperative
from mtplx.server.hyper import Hyper
from mtplx.server.mtp_batch import MtpBatch
from mtplx.server.serial import Serial

DEFAULT_DECODE_BATCH_MAX = 16

WIDTH_ONE = (SchedulerMode.SERIAL, SchedulerMode.HYPER)
_NEEDS_HEAD = frozenset({SchedulerMode.MTP_BATCH, SchedulerMode.HYPER})
_GET_HEAD = "name a file with --draft-head (docs/heads.md says which there are), or make one with mtplx train-head"
_NO_HEAD = f"it needs a draft head, and there is none: {_GET_HEAD}"
_NEEDS_OPT_IN = (
    "it is an experiment, which --experimental-mtp-cohorts or MTPLX_EXPERIMENTAL_MTP_COHORTS=1 at its start opens"
)


def resolve_mode(settings: Settings, *, max_draft_depth: int = 0) -> SchedulerMode:
    """The mode that will run on a runner that drafts up to `max_draft_depth` tokens; 0 is one without a head.

    Raises:
        ConfigError: the mode isn't there, or contradicts the runner or another setting.
    """
    default = SchedulerMode.MTP_BATCH if max_draft_depth else SchedulerMode.AR_BATCH
    mode = settings.scheduler_mode or default
    if mode is SchedulerMode.MTP_COHORT_EXPERIMENTAL and not settings.experimental_mtp_cohorts:
        raise _not_available(mode, _NEEDS_OPT_IN, settings, max_draft_depth)
    if mode in _NEEDS_HEAD and not max_draft_depth:
        raise _not_available(mode, _NO_HEAD, settings, max_draft_depth)
    if mode in WIDTH_ONE and settings.decode_batch_max not in (None, 1):
        raise ConfigError(
            f"--decode-batch-max {settings.decode_batch_max} contradicts --scheduler-mode {mode}, whose width is 1",
            "--decode-batch-max",
        )
    _check_depth(settings, mode, max_draft_depth)
    return mode


def resolve_depth(settings: Settings, mode: SchedulerMode, *, max_draft_depth: int) -> int | None:
    """The fixed draft depth of a mode that `resolve_mode` has passed; None leaves it to acceptance and cost."""
    can_draft = max_draft_depth > 0 or mode is SchedulerMode.MTP_COHORT_EXPERIMENTAL
    if mode is SchedulerMode.AR_BATCH or not can_draft:
        return 0
    if settings.draft_depth == AUTO:
        return 0 if mode is SchedulerMode.SERIAL else None
    return settings.draft_depth


def make_speculator(
    depth: int | None, costs: Costs | None, *, prefill_chunk_tokens: int, max_draft_depth: int = MAX_DEPTH
) -> Speculator | None:
    """What decides drafts, at a fixed depth or at depth None by `costs`; None for depth 0, where nothing is left to."""
    if depth == 0:
        return None
    policy: DepthPolicy
    if depth is None:
        assert costs is not None, "an adaptive depth follows costs"
        policy = AdaptiveDepth(costs)
    else:
        policy = FixedDepth(depth)
    return Speculator(policy, prefill_chunk_tokens=prefill_chunk_tokens, max_depth=max_draft_depth)


def decode_width(mode: SchedulerMode, decode_batch_max: int | None, prefill_chunk_tokens: int) -> int:
    """The most sequences that the mode runs at once.

    `decode_batch_max` None is 16 for those that batch, and for cooperative the step's token budget; the width of serial
    and hyper is 1, which is within any maximum.
    """
    if mode in WIDTH_ONE:
        return 1
    default = prefill_chunk_tokens if mode is SchedulerMode.COOPERATIVE else DEFAULT_DECODE_BATCH_MAX
    return decode_batch_max or default


def make_scheduler(
    mode: SchedulerMode,
    blocks: BlockAllocator,
    *,
    decode_batch_max: int | None,
    prefill_chunk_tokens: int,
    speculator: Speculator | None = None,
    prefix_salt: bytes | None = None,
    template_ids: Seq[int] = (),
) -> Scheduler:
    """A scheduler of that mode, as wide as `decode_width` says, over an empty table.

    `prefix_salt` names the model for a prefix cache; without it nothing is computed once for several. `template_ids` is
    what the chat template writes before every first message: having it in common makes no cohort.
    """
    prefix = PrefixCache(blocks, prefix_salt or b"", is_on=prefix_salt is not None)
    table = SequenceTable(blocks, prefix)
    chunk = prefill_chunk_tokens
    max_running = decode_width(mode, decode_batch_max, chunk)
    if mode is SchedulerMode.SERIAL:
        return Serial(table, prefill_chunk_tokens=chunk, speculator=speculator)
    if mode is SchedulerMode.COOPERATIVE:
        return Cooperative(table, max_running=max_running, prefill_chunk_tokens=chunk, speculator=speculator)
    if mode is SchedulerMode.AR_BATCH:
        assert speculator is None, "ar_batch never drafts"
        return ArBatch(table, max_running=max_running, prefill_chunk_tokens=chunk)
    if mode is SchedulerMode.MTP_BATCH:
        return MtpBatch(table, max_running=max_running, prefill_chunk_tokens=chunk, speculator=speculator)
    if mode is SchedulerMode.HYPER:
        return Hyper(table, prefill_chunk_tokens=chunk, speculator=speculator)
    cohorts = Cohorts(template_ids)
    shared = None
    if speculator:
        policy, max_depth = speculator.policy, speculator.max_depth
        shared = SharedSpeculator(policy, cohorts, prefill_chunk_tokens=chunk, max_depth=max_depth)
    return MtpCohort(table, max_running=max_running, prefill_chunk_tokens=chunk, cohorts=cohorts, speculator=shared)


def _not_available(mode: SchedulerMode, why: str, settings: Settings, max_draft_depth: int) -> ConfigError:
    missing = set() if max_draft_depth else set(_NEEDS_HEAD)
    if not settings.experimental_mtp_cohorts:
        missing.add(SchedulerMode.MTP_COHORT_EXPERIMENTAL)
    there = ", ".join(known for known in SchedulerMode if known not in missing)
    return ConfigError(f"--scheduler-mode {mode} is not available: {why}; choose one of {there}", "--scheduler-mode")


def _check_depth(settings: Settings, mode: SchedulerMode, max_draft_depth: int) -> None:
    depth = settings.draft_depth
    if depth == AUTO or depth == 0:
        return
    if settings.scheduler_mode is SchedulerMode.AR_BATCH:
        why = "ar_batch never drafts"
    elif mode is SchedulerMode.MTP_COHORT_EXPERIMENTAL:
        return  # the head guesses what it can, and the cohort's texts have no limit of their own
    elif not max_draft_depth:
        why = f"there is no draft head: {_GET_HEAD}"
    elif depth > max_draft_depth:
        raise ConfigError(
            f"--draft-depth {depth} is not possible: this head guesses at most {max_draft_depth} tokens",
            "--draft-depth",
        )
    else:
        return
    raise ConfigError(f"--draft-depth {depth} is not possible, {why}; else use 0", "--draft-depth")
