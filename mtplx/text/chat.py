"""Chat messages and tools to one prompt text, through the model's own Jinja template in a sandbox.

Has its own small renderer: transformers' is the same in effect, and costs half a second to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import TemplateSyntaxError, nodes
from jinja2.meta import find_undeclared_variables

from mtplx.errors import ModelError, RequestError
from mtplx.text.apart import OVER_LIMIT, render_apart
from mtplx.text.messages import Message, is_large, normalize_messages
from mtplx.text.sandbox import chat_environment, render
from mtplx.text.tokenizer import TOKEN_NAMES, named_tokens, read_tokenizer_config
from mtplx.text.tools.fallback import in_plain_messages, introduced
from mtplx.text.tools.functions import Functions
from mtplx.text.tools.history import link_results, with_readable_calls

MISTRAL_CALLS = "[TOOL_CALLS]"  # whose templates want short ids
# What a request says by other fields, or the model itself.
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", *TOKEN_NAMES})
_MARK = "\ue000the answer goes on here\ue000 "  # characters for private use, so that nobody else writes it


class ChatTemplate:
    """One model's chat template, compiled.

    It sees messages, tools, the names of the special tokens and what variables a request sets, nothing else.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        *,
        tools_source: str | None = None,
    ) -> None:
        """Compiles `source`; None is a model without a template. `now` is the clock that strftime_now reads.

        `tools_source` is the template for requests with tools, where the model has one of its own for them.

        Raises:
            ModelError: the template isn't valid Jinja.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = chat_environment(now)
        self._plain = None if source is None else _compile(environment, source)
        self._with_tools = self._plain if tools_source is None else _compile(environment, tools_source)
        self.tools_source = tools_source or source

    @classmethod
    def load(cls, folder: Path, *, is_trusted: bool = True) -> ChatTemplate:
        """Reads chat_template.jinja, or else the template in tokenizer_config.json; a model may have neither.

        One that isn't trusted is compiled and rendered in a process of its own before it is here.

        Raises:
            ModelError: a file can't be read, the template isn't valid, or it takes too long for a few words.
        """
        config = read_tokenizer_config(folder)
        path = folder / "chat_template.jinja"
        try:
            source = path.read_text(encoding="utf-8") if path.exists() else _default_source(config.get("chat_template"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} can't be read: {error}") from error
        tools_source = _tools_source(config.get("chat_template"))
        for untrusted in () if is_trusted else (source, tools_source):
            if untrusted is not None:
                _try_apart(untrusted, named_tokens(config))
        return cls(source, named_tokens(config), tools_source=tools_source)

    @property
    def is_present(self) -> bool:
        return self._plain is not None

    @property
    def has_tools(self) -> bool:
        """Whether the template has a place for tools; else they are said in a system message."""
        return self._with_tools is not None and "tools" in self._with_tools.variables

    def reads(self, variable: str) -> bool:
        """Whether a request that sets this variable would change anything."""
        return any(template and variable in template.variables for template in (self._plain, self._with_tools))

    def render(
        self,
        messages: Sequence[Message],
        *,
        functions: Functions | None = None,
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for these messages; `add_generation_prompt` opens the assistant's turn at its end.

        With `continue_final_message` it ends where the last message does, inside that turn, and opens none.

        The text holds the special tokens that the model wants, bos included: encode it without adding more.

        Raises:
            RequestError: the model has no template, a message is malformed, a variable is none of the template's, or
                the template refuses the messages, or takes too long for them.
        """
        template = self._with_tools if functions else self._plain
        if template is None:
            raise RequestError("this model has no chat template, so it takes no messages; use completions", "messages")
        _check_variables(template, variables or {})
        assert not (add_generation_prompt and continue_final_message), "a turn is opened or goes on"
        normal = normalize_messages(messages)
        if continue_final_message:
            _mark_end(normal)
        chat = self._fit(template, link_results(normal), functions or {})
        values = {
            **self._special_tokens,
            "documents": None,
            **(variables or {}),
            "messages": chat,
            "tools": [function.for_template() for function in functions.values()] if functions else None,
            "add_generation_prompt": add_generation_prompt,
        }
        is_apart = is_large(messages, functions)
        text = render_apart(template.source, values) if is_apart else render(template.compiled, values)
        return _up_to_mark(text) if continue_final_message else text

    def _fit(self, template: _Template, chat: list[dict[str, Any]], functions: Functions) -> list[dict[str, Any]]:
        """Adapts messages to what the template reads; a field that it never reads is refused, not dropped.

        Left out may be what is said by the order already, and thoughts, which most models aren't shown again.
        """
        knows_calls = "tool_calls" in template.names
        for index, message in enumerate(chat):
            if message["role"] == "developer" and "developer" not in template.names:
                message["role"] = "system"  # its name in models older than that role
            for key in [key for key in message if key not in template.names]:
                is_result_name = key == "name" and message["role"] == "tool"
                if key in ("tool_call_id", "reasoning_content") or is_result_name:
                    del message[key]
                elif key not in ("role", "content") and key != "tool_calls":
                    raise RequestError(f"this model's chat template has no {key}", f"messages.{index}.{key}")
        if functions and "tools" not in template.variables:
            chat = introduced(chat, functions)
        if not knows_calls:
            return in_plain_messages(chat)
        return with_readable_calls(chat, has_short_ids=MISTRAL_CALLS in template.source)


def _mark_end(chat: list[dict[str, Any]]) -> None:
    """Marks where the last message ends; raises RequestError where it is none to go on with."""
    last = chat[-1]
    if last["role"] != "assistant" or "content" not in last or "tool_calls" in last:
        raise RequestError(
            "continue_final_message: the last message must be an assistant's text, without calls",
            "continue_final_message",
        )
    last["content"] += _MARK


def _up_to_mark(text: str) -> str:
    """What comes before the mark; a template that takes the mark's own space off trims messages, so this one too."""
    before, mark, behind = text.rpartition(_MARK.rstrip())
    if not mark:
        raise RequestError(
            "continue_final_message: the model's chat template doesn't show the last message as it is",
            "continue_final_message",
        )
    return before if behind.startswith(" ") else before.rstrip()


def _try_apart(source: str, special_tokens: Mapping[str, str]) -> None:
    """Raises: ModelError: not even a few words can be rendered within the limits."""
    few_words = [{"role": "user", "content": "Hello."}]
    values = {**special_tokens, "messages": few_words, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        render_apart(source, values)
    except RequestError as error:
        if error.code == OVER_LIMIT:  # what else is wrong shows when it is compiled, or in each request
            raise ModelError(f"{error}: not even for a few words") from None


@dataclass(frozen=True, slots=True)
class _Template:
    source: str
    compiled: jinja2.Template
    names: frozenset[str]  # attributes that it reads
    variables: frozenset[str]  # that must be set from outside


def _compile(environment: jinja2.Environment, source: str) -> _Template:
    """Raises: ModelError: it isn't valid Jinja."""
    try:
        parsed = environment.parse(source)
        variables = frozenset(find_undeclared_variables(parsed))
        return _Template(source, environment.from_string(source), _names_in(parsed), variables)
    except TemplateSyntaxError as error:
        raise ModelError(f"the model's chat template is broken at line {error.lineno}: {error.message}") from error
    except (SyntaxError, RecursionError) as error:  # Jinja takes it, the Python made of it is refused
        raise ModelError(f"the model's chat template can't be compiled: {error}") from error


def _check_variables(template: _Template, variables: Mapping[str, Any]) -> None:
    for name in variables:
        if name in _OWN_VARIABLES or name not in template.variables:
            raise RequestError(
                f"this model's chat template has no {name:.64} that a request could set",
                f"chat_template_kwargs.{name:.64}",
            )


def _tools_source(entry: object) -> str | None:
    """The template for tools among several named ones in tokenizer_config.json."""
    if not isinstance(entry, list):
        return None
    found = next((item for item in entry if isinstance(item, Mapping) and item.get("name") == "tool_use"), {})
    source = found.get("template")
    return source if isinstance(source, str) else None


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
