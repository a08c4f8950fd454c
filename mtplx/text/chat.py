"""Chat messages to one prompt text, through the model's own Jinja template in a sandbox.

Has its own small renderer: transformers' is the same in effect, and costs half a second to import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mtplx.errors import ModelError, RequestError
from mtplx.text.tokenizer import named_tokens, read_tokenizer_config

Message = Mapping[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
# What Python raises when a template works on data of the wrong shape; RecursionError is a RuntimeError.
_PYTHON_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class ChatTemplate:
    """One model's chat template, compiled. It sees the messages and the names of the special tokens, nothing else."""

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compiles `source`; None is a model without a template. `now` is the clock that strftime_now reads.

        Raises:
            ModelError: the template isn't valid Jinja.
        """
        self._source = source
        self._special_tokens = dict(special_tokens)
        environment = _environment(now)
        try:
            self._template = None if source is None else environment.from_string(source)
            self._names = frozenset() if source is None else _names_in(environment.parse(source))
        except TemplateSyntaxError as error:
            raise ModelError(f"the model's chat template is broken at line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError) as error:  # Jinja takes it, the Python made of it is refused
            raise ModelError(f"the model's chat template can't be compiled: {error}") from error

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """Reads chat_template.jinja, or else the template in tokenizer_config.json; a model may have neither.

        Raises:
            ModelError: a file can't be read, or the template isn't valid.
        """
        config = read_tokenizer_config(folder)
        path = folder / "chat_template.jinja"
        try:
            source = path.read_text(encoding="utf-8") if path.exists() else _default_source(config.get("chat_template"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} can't be read: {error}") from error
        return cls(source, named_tokens(config))

    @property
    def is_present(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt for these messages; `add_generation_prompt` opens the assistant's turn at its end.

        The text holds the special tokens that the model wants, bos included: encode it without adding more.

        Raises:
            RequestError: the model has no template, a message is malformed, or the template refuses the messages.
        """
        if self._template is None:
            raise RequestError("this model has no chat template, so it takes no messages; use completions", "messages")
        chat = normalize_messages(messages)
        self._fit(chat)
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    "messages": chat,
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _RefusedError as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error!s:.300}", "messages"
            ) from error
        except (TemplateError, *_PYTHON_ERRORS) as error:
            raise RequestError("the model's chat template can't render these messages", "messages") from error

    def _fit(self, chat: list[dict[str, Any]]) -> None:
        """Adapts messages to what the template reads; a field that it never reads is refused, not dropped."""
        for index, message in enumerate(chat):
            if message["role"] == "developer" and "developer" not in self._names:
                message["role"] = "system"  # its name in models older than that role
            for key in message:
                if key not in ("role", "content") and key not in self._names:
                    raise RequestError(f"this model's chat template has no {key}", f"messages.{index}.{key}")


def normalize_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """New messages of a known role whose content is one string; text parts are joined by newlines.

    Fields that are null or empty lists are left out, as is the content of a message that has tool calls alone.

    Raises:
        RequestError: a message is malformed or has content other than text; `param` is the path to the field.
    """
    if not messages:
        raise RequestError("messages must not be empty", "messages")
    return [_normalize(message, f"messages.{index}") for index, message in enumerate(messages)]


def _normalize(message: Message, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{path} must be an object", path)
    role = message.get("role")
    if role not in _ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(_ROLES)}", f"{path}.role")
    plain = {key: value for key, value in message.items() if value is not None and value != []}
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


def _default_source(entry: object) -> str | None:
    """The template in tokenizer_config.json: a string, or a list of named ones."""
    if entry is None or isinstance(entry, str):
        return entry
    try:
        named = {item["name"]: item["template"] for item in entry}  # type: ignore[attr-defined]
        source = named["default"] if "default" in named or len(named) != 1 else next(iter(named.values()))
    except (TypeError, KeyError) as error:
        raise ModelError("tokenizer_config.json has chat templates, but none named default") from error
    if not isinstance(source, str):
        raise ModelError("the chat template in tokenizer_config.json is not a string")
    return source


def _names_in(template: nodes.Template) -> frozenset[str]:
    """Every attribute the template's code reads and every string in it; literal text and comments are left out.

    Strings count since they may name a field too: message['name'], message.get('name'), map(attribute='name').
    """
    attributes = {node.attr for node in template.find_all(nodes.Getattr)}
    constants = {node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(attributes | constants)


class _RefusedError(TemplateError):
    """What a template says against the messages."""


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """What a chat template may use, as transformers defines it; without a loader, so that it reaches no file."""

    def strftime_now(format_string: str) -> str:
        return now().strftime(format_string)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "dict": _dict,
        "namespace": _namespace,
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
    }
    return environment


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's tokens for trainers; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _SafeNamespace(Namespace):
    """Refuses attributes that begin with an underscore: the way from a namespace to Python's internals."""

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    attributes = dict(*args, **kwargs)
    for name in attributes:
        _check_public(name)
    return _SafeNamespace(attributes)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """A function, since the type itself offers more than a template needs."""
    return dict(*args, **kwargs)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a chat template may not set private attributes")


def _raise_exception(message: str) -> None:
    raise _RefusedError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
