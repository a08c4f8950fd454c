"""The JSON of POST /v1/responses, whole and in events: a chat answer in the shapes of the Responses API."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from mtplx.decode.logprobs import TokenLogprobs
from mtplx.server.answers.answer import AnswerParts, Choice
from mtplx.server.answers.blocks import Block, BlockKind, BlockReader, Change, Grown, Opened, blocks_of
from mtplx.server.answers.chat import ChatAnswer
from mtplx.server.answers.logprobs import chat_logprobs
from mtplx.server.answers.responses_items import empty_response, item_id, item_of, parts_of, usage_of_response
from mtplx.server.answers.responses_shapes import OutputItem, ResponseEvent, ResponseObject
from mtplx.server.answers.shapes import ChatTokenLogprob, Usage
from mtplx.server.choice_text import Delta
from mtplx.server.error_bodies import answer_of
from mtplx.server.protocol.responses import ResponsesRequest
from mtplx.server.sse import KEEP_ALIVE, EventStyle

RESPONSES_EVENTS = EventStyle(is_named=True, keep_alive=KEEP_ALIVE, done=b"")

_PIECES = {
    BlockKind.TEXT: "response.output_text",
    BlockKind.REASONING: "response.reasoning_text",
    BlockKind.CALL: "response.function_call_arguments",
}
_CUT_BY = {"length": "max_output_tokens", "timeout": "timeout"}


class ResponsesAnswer:
    """One choice. Events are numbered; each block is an item, which begins, grows and ends before the next begins."""

    def __init__(self, body: ResponsesRequest, parts: AnswerParts) -> None:
        self._body = body
        self._head = parts.head
        self._parts = parts
        self._chat = ChatAnswer(replace(parts, has_logprobs=False))  # theirs aren't of the text alone
        self._reader = BlockReader()
        self._finish_reason: str | None = None
        self._numbers = itertools.count()

    def opening(self) -> list[ResponseEvent]:
        response = empty_response(self._head, self._body)
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def chunks(self, choice: Choice, delta: Delta) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        entries = self._logprobs(delta.logprobs, delta.num_reasoning_tokens)
        for chunk in self._chat.chunks(choice, delta):
            for piece in chunk["choices"]:
                own = entries if piece["delta"].get("content") else []
                entries = [] if own else entries
                events += self._events(self._reader.push(piece["delta"], own), "completed")
                self._finish_reason = piece["finish_reason"] or self._finish_reason
        return [*events, *self._events(self._reader.push_text("", entries), "completed")]

    def closing(self, choices: Sequence[Choice], usage: Usage) -> list[ResponseEvent]:
        response = self._ended(self._reader.blocks, self._finish_reason, usage)
        events = self._events(self._reader.close(), response["status"])
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def failure(self, error: Exception) -> list[ResponseEvent]:
        """An error event with its code, then the response as far as it came: clients wait for one or the other."""
        detail = answer_of(error).body["error"]
        response = self._with_items("failed", self._reader.blocks)
        response["error"] = {"code": "server_error", "message": detail["message"]}
        return [
            self._event("error", code=detail["code"], message=detail["message"], param=detail["param"]),
            self._event("response.failed", response=response),
        ]

    def whole(self, choices: Sequence[Choice], usage: Usage) -> ResponseObject:
        (chat_choice,) = self._chat.whole(choices, usage)["choices"]
        entries = self._logprobs(choices[0].logprobs, choices[0].num_reasoning_tokens)
        return self._ended(blocks_of(chat_choice["message"], entries), chat_choice["finish_reason"], usage)

    def _logprobs(self, entries: Sequence[TokenLogprobs], num_reasoning: int) -> list[ChatTokenLogprob]:
        """Those of a text, which comes after the tokens that were spent on reasoning."""
        if not self._parts.has_logprobs:
            return []
        return chat_logprobs(self._parts.tokenizer, entries[num_reasoning:])["content"]

    def _ended(self, blocks: Sequence[Block], finish_reason: str | None, usage: Usage) -> ResponseObject:
        cut_by = _CUT_BY.get(finish_reason or "")
        response = self._with_items("incomplete" if cut_by else "completed", blocks)
        response["incomplete_details"] = {"reason": cut_by} if cut_by else None
        response["usage"] = usage_of_response(usage)
        return response

    def _with_items(
        self, status: Literal["completed", "incomplete", "failed"], blocks: Sequence[Block]
    ) -> ResponseObject:
        """All items are complete but the last one, which has shared the fate of the response."""
        response = empty_response(self._head, self._body)
        response["status"] = status
        response["output"] = [self._item(block, "completed") for block in blocks]
        if blocks and status != "completed":
            response["output"][-1]["status"] = "incomplete"
        return response

    def _item(self, block: Block, status: str) -> OutputItem:
        return item_of(self._head, block, status, parts_of(block))

    def _events(self, changes: Iterable[Change], end_status: str) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        for change in changes:
            if isinstance(change, Opened):
                events += self._opened(change.block)
            elif isinstance(change, Grown):
                events.append(self._grown(change))
            else:
                events += self._closed(change.block, end_status)
        return events

    def _opened(self, block: Block) -> list[ResponseEvent]:
        item = item_of(self._head, block, "in_progress", [])
        added = self._event("response.output_item.added", output_index=block.number, item=item)
        parts = [self._about(block, "response.content_part.added", part=part) for part in parts_of(block)]
        return [added, *parts]

    def _grown(self, change: Grown) -> ResponseEvent:
        logprobs = {"logprobs": list(change.logprobs)} if change.block.kind is BlockKind.TEXT else {}
        return self._about(change.block, f"{_PIECES[change.block.kind]}.delta", delta=change.text, **logprobs)

    def _closed(self, block: Block, status: str) -> list[ResponseEvent]:
        whole: dict[str, Any] = {"text": block.text}
        if block.kind is BlockKind.CALL:
            whole = {"name": block.name, "arguments": block.text}
        elif block.kind is BlockKind.TEXT:
            whole["logprobs"] = list(block.logprobs)
        return [
            self._about(block, f"{_PIECES[block.kind]}.done", **whole),
            *(self._about(block, "response.content_part.done", part=part) for part in parts_of(block)),
            self._event("response.output_item.done", output_index=block.number, item=self._item(block, status)),
        ]

    def _about(self, block: Block, kind: str, **fields: Any) -> ResponseEvent:
        """An event about a block's one part, or about a call, which has no parts."""
        place = {} if block.kind is BlockKind.CALL else {"content_index": 0}
        return self._event(kind, item_id=item_id(self._head, block), output_index=block.number, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        event: Any = {"type": kind, "sequence_number": next(self._numbers), **fields}
        typed: ResponseEvent = event
        return typed
