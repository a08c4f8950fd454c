"""What the APIs that are answered through chat completions have in common: turns joined, names in errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from mtplx.errors import RequestError
from mtplx.server.error_bodies import request_error
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.generation import EngineFields

_MESSAGE = re.compile(r"messages\.(\d+)")

Fields = dict[str, Any]  # of a chat request, or of a part of it
Placed = tuple[str, Fields]  # the path of what a chat message was made of, and the message


@dataclass(frozen=True, slots=True)
class Names:
    """How a client of another API calls what chat completions call otherwise.

    `messages` has the path of the field that each chat message was made of. `patterns` are regular expressions of
    chat's paths with their replacements; the first that fits counts.

    Example: Names(("system", "messages.0"), {r"stop": "stop_sequences"})
        messages.1.content -> messages.0; stop.2 -> stop_sequences.2
    """

    messages: Sequence[str]
    patterns: Mapping[str, str]

    def of(self, error: RequestError) -> RequestError:
        """The same error with the client's own names."""
        if error.param is None:
            return error
        param = self._path(error.param)
        words = str(error)
        if words.startswith(error.param):
            words = param + words.removeprefix(error.param)
        return type(error)(words, param, error.code)

    def _path(self, path: str) -> str:
        message = _MESSAGE.match(path)
        if message:
            return self.messages[int(message[1])]
        for pattern, replacement in self.patterns.items():
            found = re.match(pattern + r"(?=\.|$)", path)
            if found:
                return found.expand(replacement) + path[found.end() :]
        return path


def chat_request(fields: Mapping[str, Any], names: Names) -> ChatCompletionRequest:
    """The request of chat completions with these fields, checked as if it had come as one.

    Raises:
        RequestError: chat completions refuse it; `param` is the client's own name for it.
    """
    try:
        return ChatCompletionRequest.model_validate_json(to_json(fields))
    except ValidationError as error:
        refusal = request_error(error.errors(include_url=False, include_context=False, include_input=False))
        raise names.of(refusal) from None


def engine_fields(body: EngineFields) -> Fields:
    """The engine's own fields, which are called the same everywhere."""
    return {name: getattr(body, name) for name in EngineFields.model_fields}


def joined(messages: Iterable[Placed], *, roles: Sequence[str]) -> list[Placed]:
    """The messages with neighbours of one role made one, for these `roles`; their lists become one list."""
    result: list[Placed] = []
    for path, message in messages:
        last = result[-1][1] if result else None
        if last is None or last["role"] != message["role"] or message["role"] not in roles:
            result.append((path, message))
            continue
        for key, value in message.items():
            if key != "role":
                last.setdefault(key, []).extend(value)
    return result


def finished(message: Fields) -> Fields:
    """The message as chat completions take it: what was thought is a list of texts under `thinking` before."""
    if "thinking" not in message:
        return message
    thinking = "\n".join(message["thinking"])
    rest = {key: value for key, value in message.items() if key != "thinking"}
    return {"content": "", **rest, "reasoning_content": thinking}
