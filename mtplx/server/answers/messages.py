"""The JSON of POST /v1/messages, whole and in events: a chat answer in the shapes of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mtplx.server.answers.answer import AnswerParts, Choice
from mtplx.server.answers.blocks import Block, BlockKind, BlockReader, Change, Grown, Opened, blocks_of
from mtplx.server.answers.chat import ChatAnswer
from mtplx.server.answers.messages_shapes import ContentBlock, MessageAnswer, MessageEvent, MessageUsage
from mtplx.server.answers.shapes import MessagesErrorBody, Usage
from mtplx.server.choice_text import Delta
from mtplx.server.error_bodies import answer_of
from mtplx.server.sse import EventStyle
from mtplx.telemetry.logs import REQUEST_ID

MESSAGES_EVENTS = EventStyle(is_named=True, keep_alive=b'event: ping\ndata: {"type":"ping"}\n\n', done=b"")

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_EMPTY: dict[BlockKind, ContentBlock] = {
    BlockKind.REASONING: {"type": "thinking", "thinking": "", "signature": ""},
    BlockKind.TEXT: {"type": "text", "text": ""},
}


class MessagesAnswer:
    """One choice. In a stream a block begins, grows and ends before the next one begins."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts
        self._chat = ChatAnswer(parts)
        self._reader = BlockReader()
        self._finish_reason: str | None = None

    def opening(self) -> list[MessageEvent]:
        num_prompt_tokens = sum(len(prompt) for prompt in self._parts.prompts)
        usage: MessageUsage = {
            "input_tokens": num_prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        return [{"type": "message_start", "message": self._message([], None, None, usage)}]

    def chunks(self, choice: Choice, delta: Delta) -> list[MessageEvent]:
        events: list[MessageEvent] = []
        for chunk in self._chat.chunks(choice, delta):
            for piece in chunk["choices"]:
                events += map(_event, self._reader.push(piece["delta"]))
                self._finish_reason = piece["finish_reason"] or self._finish_reason
        return events

    def closing(self, choices: Sequence[Choice], usage: Usage) -> list[MessageEvent]:
        reason, stop_sequence = _end(self._finish_reason, choices[0])
        end: MessageEvent = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop_sequence},
            "usage": _usage(usage),
        }
        return [*map(_event, self._reader.close()), end, {"type": "message_stop"}]

    def failure(self, error: Exception) -> list[MessagesErrorBody]:
        return [answer_of(error).messages_body(REQUEST_ID.get())]

    def whole(self, choices: Sequence[Choice], usage: Usage) -> MessageAnswer:
        (chat_choice,) = self._chat.whole(choices, usage)["choices"]
        content = [_content(block) for block in blocks_of(chat_choice["message"])]
        reason, stop_sequence = _end(chat_choice["finish_reason"], choices[0])
        return self._message(content, reason, stop_sequence, _usage(usage))

    def _message(
        self, content: list[ContentBlock], reason: str | None, stop_sequence: str | None, usage: MessageUsage
    ) -> MessageAnswer:
        head = self._parts.head
        return {
            "id": head.id,
            "type": "message",
            "role": "assistant",
            "model": head.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop_sequence,
            "usage": usage,
            "system_fingerprint": head.fingerprint,
            "seed": head.seed,
        }


def _end(finish_reason: str | None, choice: Choice) -> tuple[str | None, str | None]:
    """Why the answer ended, and the stop sequence that ended it."""
    if finish_reason == "stop" and choice.stop_string is not None:
        return "stop_sequence", choice.stop_string
    return _STOP_REASONS.get(finish_reason or "", finish_reason), None


def _usage(usage: Usage) -> MessageUsage:
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    counts: MessageUsage = {
        "input_tokens": usage["prompt_tokens"] - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": usage["completion_tokens"],
    }
    if "completion_tokens_details" in usage:
        counts["output_tokens_details"] = {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]}
    return counts


def _event(change: Change) -> MessageEvent:
    number = change.block.number
    if isinstance(change, Opened):
        return {"type": "content_block_start", "index": number, "content_block": _opened(change.block)}
    if isinstance(change, Grown):
        return {"type": "content_block_delta", "index": number, "delta": _delta(change)}
    return {"type": "content_block_stop", "index": number}


def _delta(change: Grown) -> dict[str, str | None]:
    if change.block.kind is BlockKind.REASONING:
        return {"type": "thinking_delta", "thinking": change.text}
    if change.block.kind is BlockKind.TEXT:
        return {"type": "text_delta", "text": change.text}
    return {"type": "input_json_delta", "partial_json": change.text}


def _opened(block: Block) -> ContentBlock:
    if block.kind is BlockKind.CALL:
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
    return {**_EMPTY[block.kind]}


def _content(block: Block) -> ContentBlock:
    content = _opened(block)
    if block.kind is BlockKind.REASONING:
        content["thinking"] = block.text
    elif block.kind is BlockKind.TEXT:
        content["text"] = block.text
    else:
        content["input"] = _arguments(block.text)
    return content


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; a call that was cut off in the middle has none that can be read."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}
