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


class DraftStatus(TypedDict):
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


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
