"""Chat messages as clients send them: how much they are, and the same with each content as one string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtplx.errors import RequestError
from mtplx.text.tools.functions import Functions

Message = Mapping[str, Any]

MAX_PARTS_HERE = 256
MAX_CHARACTERS_HERE = 2**18
_ROLES = ("system", "developer", "user", "assistant", "tool")


def normalize_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """New messages of a known role whose content is one string; text parts are joined by newlines.

    Fields that are null or empty lists are left out, as is the content of a message that has tool calls alone.

    Raises:
        RequestError: a message is malformed or has content other than text; `param` is the path to the field.
    """
    if not messages:
        raise RequestError("messages must not be empty", "messages")
    return [_normalize(message, f"messages.{index}") for index, message in enumerate(messages)]


def is_large(messages: Sequence[Message], functions: Functions | None = None) -> bool:
    """Whether rendering them could take a while: a template may loop over all of them in a loop over all of them.

    Then they are rendered in a process of their own, for which the caller should wait on a thread.
    """
    num_parts = sum(1 + len(message.get("tool_calls") or ()) for message in messages) + len(functions or ())
    return num_parts > MAX_PARTS_HERE or sum(map(_num_characters, messages)) > MAX_CHARACTERS_HERE


def _num_characters(message: Message) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    return sum(len(str(part)) for part in content) if isinstance(content, list | tuple) else 0


def _normalize(message: Message, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{path} must be an object", path)
    role = message.get("role")
    if role not in _ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(_ROLES)}", f"{path}.role")
    plain = {key: value for key, value in message.items() if value is not None and value not in ([], ())}
    content = message.get("content")
    if content is not None:
        plain["content"] = _text(content, f"{path}.content")
    elif "tool_calls" not in plain:
        raise RequestError(f"{path}.content is missing", f"{path}.content")
    return plain


def _text(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"{path} must be a string or a list of parts", path)
    return "\n".join(_part_text(part, f"{path}.{index}") for index, part in enumerate(content))


def _part_text(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f"{path} must be an object", path)
    if part.get("type") != "text":
        raise RequestError(f"{path}.type must be text: this server takes no images, audio or files", f"{path}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{path}.text must be a string", f"{path}.text")
    return text
