"""A choice's parts in the shapes of chat completions: what is said, what is thought, what is called."""

from __future__ import annotations

from collections.abc import Iterator

from mtplx.server.answers.answer import Call, Choice, parts_of
from mtplx.server.answers.shapes import ChatDelta, ChatMessage
from mtplx.server.choice_text import Delta
from mtplx.text.tools.parts import CallArguments, CallBegin, Reasoning, Text


def chat_message(choice: Choice, *, must_call: bool) -> ChatMessage:
    """The whole message. One that must be calls has no content, even if it was cut before the first."""
    message: ChatMessage = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls or must_call:
        message["content"] = choice.content or None
    if choice.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    return message


def chat_deltas(choice: Choice, delta: Delta) -> Iterator[ChatDelta]:
    """What a delta, which has been added to `choice` already, adds to the message, in order."""
    parts = parts_of(delta)
    index = len(choice.calls) - 1 - sum(isinstance(part, CallBegin) for part in parts)
    for part in parts:
        match part:
            case Text(text):
                yield {"content": text}
            case Reasoning(text):
                yield {"reasoning_content": text}
            case CallBegin():
                index += 1
                yield _beginning(index, choice.calls[index])
            case CallArguments(text):
                yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _beginning(index: int, call: Call) -> ChatDelta:
    return {
        "tool_calls": [
            {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        ]
    }
