"""Earlier calls and their results, as chat templates want to read them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Set
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
        RequestError: a message has what another role has, two calls of a message have one id, or a result isn't the
            first of an earlier call, by the name of its function.
    """
    names: dict[str, str] = {}
    order: dict[str, int] = {}
    answered: set[str] = set()
    places = itertools.count()
    for index, message in enumerate(chat):
        path = f"messages.{index}"
        _check_role(message, path)
        calls = dict(_calls_in(message, f"{path}.tool_calls"))
        names |= calls
        order |= {call_id: next(places) for call_id in calls}
        answered -= calls.keys()  # some models count their calls from the same number in every turn
        if message["role"] == "tool":
            _check_result(message, names, answered, path)
            answered.add(message["tool_call_id"])
            message["name"] = names[message["tool_call_id"]]
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


def _check_role(message: ChatMessage, path: str) -> None:
    for key, deed in (("tool_calls", "calls tools"), ("reasoning_content", "thinks")):
        if key in message and message["role"] != "assistant":
            raise RequestError(f"{path}.{key}: only an assistant {deed}", f"{path}.{key}")
    if ("tool_call_id" in message) != (message["role"] == "tool"):
        raise RequestError(
            f"{path}.tool_call_id: goes with the role tool, which needs one, and with no other", f"{path}.tool_call_id"
        )


def _check_result(message: ChatMessage, names: Mapping[str, str], answered: Set[str], path: str) -> None:
    call_id = message["tool_call_id"]
    if call_id not in names:
        raise RequestError(f"{path}.tool_call_id: no earlier message has a call of that id", f"{path}.tool_call_id")
    if call_id in answered:
        raise RequestError(f"{path}.tool_call_id: that call has its result already", f"{path}.tool_call_id")
    if message.get("name", names[call_id]) != names[call_id]:
        raise RequestError(f"{path}.name: the call of that id is one of {names[call_id]:.64}", f"{path}.name")


def _calls_in(message: ChatMessage, path: str) -> Iterator[tuple[str, str]]:
    """Id and name of each call."""
    ids: set[str] = set()
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or "name" not in function or "id" not in call:
            raise RequestError(f"{path} must be a list of calls with an id and a function with a name", path)
        if call["id"] in ids:
            raise RequestError(f"{path}.{index}.id: another call of this message has that id", f"{path}.{index}.id")
        ids.add(call["id"])
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
