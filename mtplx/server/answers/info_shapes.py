"""The shapes of the pages that report: models, health, status, profile."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class Health(TypedDict):
    status: Literal["ok"]


class DraftCosts(TypedDict):
    """What the machine needs, as the choice of depths believes it now: corrected by every step since the start."""

    source: Literal["measured", "cached"]  # at this start, or at an earlier one on this machine
    step: dict[str, float]  # by tokens in the step,
    step_after_draft: dict[str, float]  # and where a draft came before it
    draft_level: float  # for each level of depth,
    draft_token: float  # and for each token that the head computes


class DraftStatus(TypedDict):
    """Drafts counted since the start, then what the last step did. A row without drafts is no draft."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    depth_histogram: dict[str, int]  # decode rows by their number of drafts, 0 included
    drafted_by_position: list[int]
    accepted_by_position: list[int]
    last_depths: list[int]  # of each row that decoded in the last step
    why_none: str | None  # why that step had no drafts
    num_failed: int  # calls of the draft head that failed
    costs_ms: DraftCosts | None  # null where the depth doesn't follow costs


class PrefixCacheStatus(TypedDict):
    """Blocks that can be shared now, and what sharing has done since the start."""

    is_on: bool
    num_blocks: int  # held or not; those that nobody holds count as free
    num_hits: int  # times that a sequence took over blocks
    num_queried_tokens: int  # of the sequences that were admitted
    num_saved_tokens: int  # that weren't computed
    num_evictions: int  # blocks whose place was needed


class SourceStatus(TypedDict):
    """Drafts of one source that were verified since the start."""

    num_draft_tokens: int
    num_accepted_tokens: int


class CohortsStatus(TypedDict):
    """Cohorts of two or more requests, past ones counted, and what they have brought since the start."""

    num_cohorts: int  # that have a member now
    num_members: int  # in those
    num_saved_tokens: int  # that members took over computed
    num_indexes: int  # all there are, also of cohorts of one and of those that wait for new members
    index_bytes: int
    head: SourceStatus
    index: SourceStatus


class DraftHead(TypedDict):
    """What guesses drafts; the acceptance is the stored one, greedy and conditional, by depth."""

    name: str
    num_blocks: int
    draft_vocab_size: int
    greedy_acceptance: list[float]


class Status(TypedDict):
    """What the engine did up to its last step, never what a flag asked for."""

    scheduler_mode: str
    model: str
    runner: str
    device: str
    dtype: str
    build: str | None
    quantization: str | None
    kv_cache_dtype: str | None
    exact: bool
    exact_note: str
    version: str
    system_fingerprint: str
    alive: bool
    uptime_s: float
    max_model_len: int
    max_running: int
    num_running: int
    num_waiting: int
    num_steps: int
    last_step_width: int
    width_histogram: dict[str, int]
    seconds_since_last_step: float | None
    num_prefill_tokens: int
    num_decode_tokens: int
    cache_blocks_used: int
    cache_blocks_total: int
    cache_block_size: int
    num_preemptions: int
    num_failed_steps: int
    num_finished: dict[str, int]
    tool_parser: str
    reasoning_parser: str
    draft_head: DraftHead | None
    drafts: DraftStatus
    prefix_cache: PrefixCacheStatus
    cohorts: CohortsStatus | None  # null where the mode has none


class StageRow(TypedDict):
    """One stage; a share is of the time that all steps took."""

    stage: str
    num_tokens: int | None  # of the steps that the row is about; null is all of them
    num_calls: int
    median_ms: float
    total_ms: float
    share: float


class ProfilePage(TypedDict):
    """The steps after the number that was asked for, as far as they are still kept."""

    model: str
    num_steps: int
    last_step: int  # asked for as after_step later, it leaves out what is here
    num_dropped: int  # steps that are no longer kept
    steps_ms: float
    num_decode_steps: int
    num_decode_tokens: int  # emitted by those
    tokens_per_step: float | None
    num_draft_tokens: int
    num_accepted_tokens: int
    stages: list[StageRow]  # plan to commit are the steps; hand_over and detokenise run beside the next one
    forward_by_tokens: list[StageRow]
