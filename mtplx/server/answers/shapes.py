"""The shapes of answers, as typed dictionaries: built, sent and described from here."""

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
    request_id: str | None


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


class AnswerHead(TypedDict):
    """What every answer and every chunk of it begin with; `seed` replays it where the fingerprint is equal."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    seed: int


class ChatCompletion(AnswerHead):
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


class ChatCompletionChunk(AnswerHead):
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


class Completion(AnswerHead):
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
