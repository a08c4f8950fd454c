"""From a request of Anthropic's API to the same request of chat completions; knows nothing of answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from mtplx.errors import RequestError
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.messages import (
    CountTokensRequest,
    MessagesRequest,
    OutputConfig,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from mtplx.server.protocol.translated import Fields, Names, Placed, chat_request, engine_fields, finished, joined

_PATTERNS = {
    r"messages": "messages",
    r"continue_final_message": "messages",
    r"stop": "stop_sequences",
    r"tools\.(\d+)\.function\.parameters": r"tools.\1.input_schema",
    r"tools\.(\d+)\.function": r"tools.\1",
    r"tool_choice(\..*)?": "tool_choice",
    r"parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    r"response_format\.json_schema": "output_config.format",
    r"response_format": "output_config.format",
}


def chat_of_messages(body: CountTokensRequest) -> tuple[ChatCompletionRequest, Names]:
    """The request, and what its fields are called by whoever sent `body`.

    Raises:
        RequestError: chat completions refuse it, or a block is in a turn of the wrong role.
    """
    placed = joined(_turns(body), roles=("user", "assistant", "system"))
    thinking = _thinking_fields(body)
    effort = "thinking" if thinking.get("reasoning_effort") == "none" else "output_config.effort"
    names = Names([path for path, _ in placed], {**_PATTERNS, "reasoning_effort": effort})
    fields = {
        "model": body.model,
        "messages": [finished(message) for _, message in placed],
        "continue_final_message": _goes_on(placed[-1][1]),
        **_tool_fields(body.tools, body.tool_choice),
        **_answer_fields(body.output_config),
        **thinking,
        **(_generation_fields(body) if isinstance(body, MessagesRequest) else {}),
    }
    return chat_request(fields, names), names


def _generation_fields(body: MessagesRequest) -> Fields:
    return {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        **engine_fields(body),
    }


def _tool_fields(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> Fields:
    fields: Fields = {}
    if tools:
        fields["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
    if choice is None:
        return fields
    if (choice.type == "tool") != (choice.name is not None):
        raise RequestError("tool_choice.name goes with the type tool, and with no other", "tool_choice.name")
    if choice.type == "any" and not tools:
        raise RequestError("tool_choice: the type any needs tools", "tool_choice")
    named = {"type": "function", "function": {"name": choice.name}}
    fields["tool_choice"] = {"any": "required", "tool": named}.get(choice.type, choice.type)
    if choice.disable_parallel_tool_use is not None and choice.type != "none":
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return fields


def _function(tool: Tool) -> Fields:
    function: Fields = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {key: value for key, value in function.items() if value is not None}


def _answer_fields(config: OutputConfig | None) -> Fields:
    if config is None or config.format is None:
        return {}
    known = config.format.keys() <= {"type", "schema"}
    if not known or config.format.get("type") != "json_schema" or "schema" not in config.format:
        raise RequestError(
            'output_config.format: must be {"type": "json_schema", "schema": {...}}', "output_config.format"
        )
    schema = {"name": "answer", "schema": config.format["schema"]}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _thinking_fields(body: CountTokensRequest) -> Fields:
    is_disabled = body.thinking is not None and body.thinking.type == "disabled"
    effort = body.output_config.effort if body.output_config else None
    if effort in (None, "high"):
        return {"reasoning_effort": "none"} if is_disabled else {}
    if is_disabled:
        raise RequestError(
            f"output_config.effort: {effort} contradicts thinking, which is disabled", "output_config.effort"
        )
    return {"reasoning_effort": effort}


def _turns(body: CountTokensRequest) -> Iterator[Placed]:
    if body.system:
        yield "system", {"role": "system", "content": _parts(body.system)}
    for index, message in enumerate(body.messages):
        path = f"messages.{index}"
        if isinstance(message.content, str):
            yield path, {"role": message.role, "content": _parts(message.content)}
            continue
        for number, block in enumerate(message.content):
            yield path, _of_block(block, message.role, f"{path}.content.{number}")


def _goes_on(last: Fields) -> bool:
    """Whether the answer continues the last message: a text that the caller has written for the assistant."""
    return last["role"] == "assistant" and "content" in last and "tool_calls" not in last


def _of_block(block: TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, role: str, path: str) -> Fields:
    if isinstance(block, TextBlock):
        return {"role": role, "content": _parts(block.text)}
    if isinstance(block, ToolResultBlock):
        _check_role(role, "user", block.type, path)
        return {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
    _check_role(role, "assistant", block.type, path)
    if isinstance(block, ThinkingBlock):
        return {"role": role, "thinking": [block.thinking]}
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"role": role, "tool_calls": [{"id": block.id, "type": "function", "function": function}]}


def _check_role(role: str, needed: str, kind: str, path: str) -> None:
    if role != needed:
        raise RequestError(f"{path}: a {kind} block belongs into a turn of the {needed}, not of the {role}", path)


def _result(block: ToolResultBlock) -> list[dict[str, str]]:
    parts = _parts(block.content or "")
    return [{**parts[0], "text": f"Error: {parts[0]['text']}"}, *parts[1:]] if block.is_error else parts


def _parts(content: str | Sequence[TextBlock]) -> list[dict[str, str]]:
    texts = [content] if isinstance(content, str) else [block.text for block in content]
    return [{"type": "text", "text": text} for text in texts or [""]]
