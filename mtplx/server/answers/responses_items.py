"""The parts of a response: its items made of blocks, what was asked for, and what was counted."""

from __future__ import annotations

from typing import Any

from mtplx.server.answers.answer import Head
from mtplx.server.answers.blocks import Block, BlockKind
from mtplx.server.answers.responses_shapes import OutputItem, OutputPart, ResponseObject, ResponseUsage
from mtplx.server.answers.shapes import Usage
from mtplx.server.protocol.responses import ResponsesRequest

_ID_PREFIXES = {BlockKind.TEXT: "msg_", BlockKind.CALL: "fc_", BlockKind.REASONING: "rs_"}


def item_id(head: Head, block: Block) -> str:
    """The same in each event about the item, and in the whole response."""
    return f"{_ID_PREFIXES[block.kind]}{head.id.removeprefix('resp_')}{block.number}"


def item_of(head: Head, block: Block, status: str, parts: list[OutputPart]) -> OutputItem:
    """An item with these parts; a call has none, its arguments are the block's text so far."""
    own_id = item_id(head, block)
    if block.kind is BlockKind.TEXT:
        return {"id": own_id, "type": "message", "status": status, "role": "assistant", "content": parts}
    if block.kind is BlockKind.REASONING:
        return {"id": own_id, "type": "reasoning", "status": status, "summary": [], "content": parts}
    return {
        "id": own_id,
        "type": "function_call",
        "status": status,
        "call_id": block.call_id,
        "name": block.name,
        "arguments": block.text,
    }


def parts_of(block: Block) -> list[OutputPart]:
    """The one part that a block's text is, as far as it has come; none for a call."""
    if block.kind is BlockKind.CALL:
        return []
    if block.kind is BlockKind.REASONING:
        return [{"type": "reasoning_text", "text": block.text}]
    return [{"type": "output_text", "text": block.text, "annotations": [], "logprobs": list(block.logprobs)}]


def usage_of_response(usage: Usage) -> ResponseUsage:
    details = usage.get("completion_tokens_details", {"reasoning_tokens": 0})
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": details["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }


def empty_response(head: Head, body: ResponsesRequest) -> ResponseObject:
    """A response that has just begun, with all that was asked for."""
    text, choice = body.text, body.tool_choice
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": head.model,
        "output": [],
        "usage": None,
        "system_fingerprint": head.fingerprint,
        "seed": head.seed,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": {"format": (text and text.format) or {"type": "text"}},
        "tools": [_asked(tool) for tool in body.tools or ()],
        "tool_choice": choice or "auto" if choice is None or isinstance(choice, str) else choice.model_dump(),
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": False,
        "background": False,
        "previous_response_id": None,
        "truncation": "disabled",
        "service_tier": "default",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _asked(tool: Any) -> dict[str, Any]:
    """A tool as the response repeats it; a schema and strictness are there, null or not."""
    asked: dict[str, Any] = tool.model_dump(include={"type", "name", "description", "parameters", "strict"})
    return asked
