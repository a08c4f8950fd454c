"""The shapes of what Anthropic's API answers, whole and in events."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class OutputTokensDetails(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    """The prompt's tokens are those of `input_tokens` and those that were read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[OutputTokensDetails]


class ContentBlock(TypedDict):
    """A text, some thinking, or a call of a tool; which other keys there are goes by the type."""

    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]  # always empty: thinking isn't signed
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[dict[str, Any]]


class MessageAnswer(TypedDict):
    """An answer; `seed` replays it where `system_fingerprint` is equal."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    system_fingerprint: str
    seed: int


class MessageEvent(TypedDict):
    """One event of a stream; which other keys there are goes by the type, which is also the event's name."""

    type: str
    message: NotRequired[MessageAnswer]
    index: NotRequired[int]
    content_block: NotRequired[ContentBlock]
    delta: NotRequired[dict[str, str | None]]
    usage: NotRequired[MessageUsage]


class TokenCount(TypedDict):
    input_tokens: int
