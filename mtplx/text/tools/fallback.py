"""Tools for models whose chat template has no place for them: said in plain messages, in the format of Hermes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mtplx.text.tools.functions import Functions
from mtplx.text.tools.hermes import CLOSE, OPEN
from mtplx.text.tools.history import ChatMessage, read_arguments

_INTRODUCTION = f"""\
You can call functions. To call one, write its name and its arguments as JSON between tags, like this:
{OPEN}
{{"name": "the name of the function", "arguments": {{"a parameter": "its value"}}}}
{CLOSE}
What it returns comes between <tool_response> and </tool_response>. These are the functions, each with the JSON
schema of its parameters:
"""


def introduced(chat: Sequence[ChatMessage], functions: Functions) -> list[ChatMessage]:
    """The conversation with the functions described in its system message, a new one if need be."""
    text = _INTRODUCTION + "\n".join(_json(function.for_template()) for function in functions.values())
    if chat[0]["role"] in ("system", "developer"):
        return [{**chat[0], "content": f"{chat[0]['content']}\n\n{text}"}, *chat[1:]]
    return [{"role": "system", "content": text}, *chat]


def in_plain_messages(chat: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The conversation in messages of system, user and assistant alone; results that follow each other are one."""
    plain: list[ChatMessage] = []
    for message in chat:
        is_result = message["role"] == "tool"
        if is_result and plain and plain[-1]["role"] == "tool":
            plain[-1]["content"] += "\n" + _result(message)
        else:
            plain.append({"role": "tool", "content": _result(message)} if is_result else _with_calls(message))
    for message in plain:
        message["role"] = "user" if message["role"] == "tool" else message["role"]
    return plain


def _with_calls(message: ChatMessage) -> ChatMessage:
    calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
    if not calls:
        return dict(message)
    said = [message["content"]] if message.get("content") else []
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join((*said, *calls))}


def _call(function: Any) -> str:
    call = {"name": function["name"], "arguments": read_arguments(function.get("arguments"))}
    return f"{OPEN}\n{_json(call)}\n{CLOSE}"


def _result(message: ChatMessage) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
