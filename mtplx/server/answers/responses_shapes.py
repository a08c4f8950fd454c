"""The shapes of what the Responses API answers, whole and in events."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from mtplx.server.answers.shapes import ChatTokenLogprob


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class OutputPart(TypedDict):
    """A piece of a message, or of reasoning."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: NotRequired[list[Any]]  # always empty
    logprobs: NotRequired[list[ChatTokenLogprob]]


class OutputItem(TypedDict):
    """A message, a call or reasoning; which other keys there are goes by the type."""

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: str
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[list[OutputPart]]
    summary: NotRequired[list[Any]]  # always empty
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]


class ResponseError(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: str


class ResponseObject(TypedDict):
    """An answer; `seed` replays it where `system_fingerprint` is equal. The rest is what was asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    system_fingerprint: str
    seed: int
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float | None
    top_p: float | None
    top_logprobs: int
    text: dict[str, Any]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    reasoning: dict[str, str | None]
    store: Literal[False]
    background: Literal[False]
    previous_response_id: None
    truncation: Literal["disabled"]
    service_tier: Literal["default"]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class ResponseEvent(TypedDict):
    """One event of a stream; which other keys there are goes by the type, which is also the event's name."""

    type: str
    sequence_number: int
    response: NotRequired[ResponseObject]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    item_id: NotRequired[str]
    item: NotRequired[OutputItem]
    part: NotRequired[OutputPart]
    delta: NotRequired[str]
    text: NotRequired[str]
    logprobs: NotRequired[list[ChatTokenLogprob]]
    name: NotRequired[str]
    arguments: NotRequired[str]
    code: NotRequired[str | None]
    message: NotRequired[str]
    param: NotRequired[str | None]
