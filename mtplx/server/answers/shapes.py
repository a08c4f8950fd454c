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


class MessagesErrorBody(TypedDict):
    """The same in the shape of Anthropic's API."""

    type: Literal["error"]
    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    cached_tokens: int  # the beginning of the prompt, as far as earlier requests had it computed


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int  # spent on thoughts, their tags included


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]  # of models whose thoughts are told apart


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


class CalledFunction(TypedDict):
    name: str
    arguments: str  # JSON as the model wrote it


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class PromptLogprob(TypedDict):
    """Of one token at one place of a prompt; the likeliest there has rank 1. The fields are those of vLLM."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # one a token of the prompt, by token id; null for the first


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None  # null beside calls, where nothing else is said
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


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
    prompt_logprobs: NotRequired[PromptLogprobs]


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str  # the next piece


class ToolCallDelta(TypedDict):
    """The first one of a call has its id and name and no arguments yet, the later ones have only arguments."""

    index: int  # of the call in the message
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


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
    token_logprobs: list[float | None]  # null where nothing is known: the first token of an echoed prompt
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Completion(Answer):
    """A whole answer, or a chunk of one: text completions use one shape for both."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage]
    metrics: NotRequired[Metrics]
    prompt_token_ids: NotRequired[list[int]]


class Tokens(TypedDict):
    """What POST /tokenize answers; `token_strs` is null unless asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenizedText(TypedDict):
    prompt: str


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
