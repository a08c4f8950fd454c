"""From a request of the Responses API to the same request of chat completions; knows nothing of answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mtplx.errors import RequestError
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.responses import (
    LOGPROBS,
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    InputText,
    Item,
    OutputText,
    ReasoningItem,
    ResponsesRequest,
)
from mtplx.server.protocol.translated import Fields, Names, Placed, chat_request, engine_fields, finished, joined

_PATTERNS = {
    r"messages": "input",
    r"(max_tokens|max_completion_tokens)": "max_output_tokens",
    r"tools\.(\d+)\.function": r"tools.\1",
    r"tool_choice\.function": "tool_choice",
    r"response_format(\.json_schema)?": "text.format",
    r"reasoning_effort": "reasoning.effort",
}


def chat_of_responses(body: ResponsesRequest) -> tuple[ChatCompletionRequest, Names]:
    """The request, and what its fields are called by whoever sent `body`.

    Raises:
        RequestError: chat completions refuse it.
    """
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    placed = joined(_conversation(body), roles=("assistant",))
    names = Names([path for path, _ in placed], _PATTERNS)
    fields = {
        "model": body.model,
        "messages": [finished(message) for _, message in placed],
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        **_logprob_fields(body),
        **_tool_fields(body),
        **_text_fields(body),
        **engine_fields(body),
    }
    return chat_request(fields, names), names


def _logprob_fields(body: ResponsesRequest) -> Fields:
    if not body.top_logprobs and LOGPROBS not in (body.include or ()):
        return {}
    if body.tools:
        param = "top_logprobs" if body.top_logprobs else "include"
        raise RequestError(f"{param}: logprobs are those of a text, and with tools an answer may be more", param)
    return {"logprobs": True, "top_logprobs": body.top_logprobs}


def _tool_fields(body: ResponsesRequest) -> Fields:
    fields: Fields = {}
    if body.tools:
        fields["tools"] = [{"type": "function", "function": _function(tool)} for tool in body.tools]
    if isinstance(body.tool_choice, str):
        fields["tool_choice"] = body.tool_choice
    elif body.tool_choice is not None:
        fields["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    if body.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = body.parallel_tool_calls
    return fields


def _function(tool: FunctionTool) -> Fields:
    return tool.model_dump(include={"name", "description", "parameters", "strict"}, exclude_none=True)


def _text_fields(body: ResponsesRequest) -> Fields:
    fields: Fields = {}
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _response_format(body.text.format)
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    return fields


def _response_format(given: Fields) -> Fields:
    """Chat completions have a schema and its name one level deeper."""
    inner = {key: value for key, value in given.items() if key != "type"}
    if given.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": inner}
    return {"type": given.get("type"), **inner}


def _conversation(body: ResponsesRequest) -> Iterator[Placed]:
    if body.instructions:
        yield "instructions", {"role": "system", "content": _parts(body.instructions)}
    if isinstance(body.input, str):
        yield "input", {"role": "user", "content": _parts(body.input)}
        return
    for index, item in enumerate(body.input):
        yield f"input.{index}", _message(item)


def _message(item: Item) -> Fields:
    if isinstance(item, FunctionCallItem):
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        return {"role": "assistant", "tool_calls": [call]}
    if isinstance(item, FunctionOutputItem):
        return {"role": "tool", "tool_call_id": item.call_id, "content": _parts(item.output)}
    if isinstance(item, ReasoningItem):
        return {"role": "assistant", "thinking": [part.text for part in item.content or ()]}
    return {"role": item.role, "content": _parts(item.content)}


def _parts(content: str | Sequence[InputText | OutputText]) -> list[dict[str, Any]]:
    texts = [content] if isinstance(content, str) else [part.text for part in content]
    return [{"type": "text", "text": text} for text in texts]
