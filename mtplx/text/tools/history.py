"""Earlier calls and their results, as chat templates want to read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mtplx.errors import RequestError

SHORT_ID = 9  # Mistral's templates refuse any other length

ChatMessage = dict[str, Any]


class Arguments(dict[str, Any]):
    """A call's arguments: an object to templates that look into it, its JSON to those that print it."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


def link_results(chat: list[ChatMessage]) -> list[ChatMessage]:
    """The same messages, each result with its function's name, results of one turn in the order of its calls.

    A template needn't read ids then: what belongs together shows by the order.

    Raises:
        RequestError: a call or a result is in a message of the wrong role, or a result belongs to no earlier call.
    """
    names: dict[str, str] = {}
    order: dict[str, int] = {}
    for index, message in enumerate(chat):
        path = f"messages.{index}"
        if "tool_calls" in message and message["role"] != "assistant":
            raise RequestError(f"{path}.tool_calls: only an assistant calls tools", f"{path}.tool_calls")
        if ("tool_call_id" in message) != (message["role"] == "tool"):
            raise RequestError(
                f"{path}.tool_call_id: goes with the role tool, which needs one, and with no other",
                f"{path}.tool_call_id",
            )
        for call_id, name in _calls_in(message, f"{path}.tool_calls"):
            names[call_id] = name
            order[call_id] = len(order)
        if message["role"] == "tool":
            if message["tool_call_id"] not in names:
                raise RequestError(
                    f"{path}.tool_call_id: no earlier message has a call of that id", f"{path}.tool_call_id"
                )
            message.setdefault("name", names[message["tool_call_id"]])
    return _sorted_results(chat, order)


def with_readable_calls(chat: list[ChatMessage], *, has_short_ids: bool) -> list[ChatMessage]:
    """The same messages with arguments as objects where they are such, and ids of a length that the template takes."""
    for message in chat:
        if "tool_calls" in message:
            message["tool_calls"] = [_readable(call, has_short_ids) for call in message["tool_calls"]]
        if has_short_ids and "tool_call_id" in message:
            message["tool_call_id"] = _short(message["tool_call_id"])
    return chat


def read_arguments(text: Any) -> Any:
    """The object that `text` is the JSON of, or what was given where it is none: models write what they like."""
    try:
        found = json.loads(text or "{}") if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text
    return Arguments(found) if isinstance(found, dict) else text


def _calls_in(message: ChatMessage, path: str) -> Iterator[tuple[str, str]]:
    """Id and name of each call."""
    for call in message.get("tool_calls", ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or "name" not in function or "id" not in call:
            raise RequestError(f"{path} must be a list of calls with an id and a function with a name", path)
        yield call["id"], function["name"]


def _sorted_results(chat: list[ChatMessage], order: Mapping[str, int]) -> list[ChatMessage]:
    ordered: list[ChatMessage] = []
    results: list[ChatMessage] = []
    for message in [*chat, None]:
        if message is not None and message["role"] == "tool":
            results.append(message)
            continue
        ordered += sorted(results, key=lambda result: order[result["tool_call_id"]])
        results = []
        if message is not None:
            ordered.append(message)
    return ordered


def _readable(call: Mapping[str, Any], has_short_ids: bool) -> dict[str, Any]:
    function = {**call["function"], "arguments": read_arguments(call["function"].get("arguments"))}
    return {**call, "id": _short(call["id"]) if has_short_ids else call["id"], "function": function}


def _short(call_id: str) -> str:
    if len(call_id) == SHORT_ID and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:SHORT_ID]
