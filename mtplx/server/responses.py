"""The shapes of all JSON answers, as typed dictionaries: built, sent and described from here."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: ErrorDetail


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class SpeculativeDecoding(TypedDict):
    """How an answer's drafts fared, over the steps that had some; the fields are those of vLLM."""

    mean_acceptance_length: float  # tokens a step, the one that needs no draft included
    draft_acceptance_rate: float
    acceptance_histogram: list[int]  # at index n the steps of which n drafts were accepted
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int


class Metrics(TypedDict):
    """Null for several choices, and where no step had drafts."""

    speculative_decoding: SpeculativeDecoding | None


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatTokenLogprob]
    refusal: None


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: NotRequired[list[int]]


class Answer(TypedDict):
    """What every answer and every chunk of it begin with; `seed` replays it where the fingerprint is equal."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    seed: int


class ChatCompletion(Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: Metrics
    prompt_token_ids: NotRequired[list[int]]


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(Answer):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage]
    metrics: NotRequired[Metrics]
    prompt_token_ids: NotRequired[list[int]]


class CompletionLogprobs(TypedDict):
    """Parallel lists, one entry a token; `text_offset` counts characters of the choice's own text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]


class Completion(Answer):
    """A whole answer, or a chunk of one: text completions use one shape for both."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage]
    metrics: NotRequired[Metrics]
    prompt_token_ids: NotRequired[list[int]]


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
    """What the machine needs, as the choice of depths believes it now."""

    step: dict[str, float]  # by tokens in the step
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
    drafts: DraftStatus
