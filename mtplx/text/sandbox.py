"""The sandbox in which a model's chat template is compiled and rendered: what it may use, and how it fails.

A template is code that came with the model. It reaches no file, no name of Python's, and no operator that makes much
of little; what it can still waste in loops is limited where it is rendered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mtplx.errors import RequestError

MAX_REPEATED = 10**6  # characters or items that a product may make of a shorter text or list
MAX_POWER_BITS = 4096
# What Python raises when a template works on data of the wrong shape; RecursionError is a RuntimeError.
_PYTHON_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def render(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """The template's text for these values.

    Raises:
        RequestError: the template refuses the messages, or fails on them.
    """
    try:
        return template.render(values)
    except TemplateRefusedError as error:
        raise RequestError(f"the model's chat template refuses these messages: {error!s:.300}", "messages") from error
    except (TemplateError, *_PYTHON_ERRORS) as error:
        raise RequestError("the model's chat template can't render these messages", "messages") from error


def chat_environment(now: Callable[[], datetime] = datetime.now) -> ImmutableSandboxedEnvironment:
    """What a chat template may use, as transformers defines it; without a loader, so that it reaches no file."""

    def strftime_now(format_string: str) -> str:
        return now().strftime(format_string)

    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "dict": _dict,
        "namespace": _namespace,
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
    }
    return environment


class TemplateRefusedError(TemplateError):
    """What a template says against the messages."""


class _Environment(ImmutableSandboxedEnvironment):
    """Bounds the two operators that could make gigabytes or hours of a few characters, also while compiling."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
            _check_product(right, left)
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_POWER_BITS:
            raise OverflowError(f"a power of over {MAX_POWER_BITS} bits")
        return super().call_binop(context, operator, left, right)


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


def _check_product(repeated: Any, times: Any) -> None:
    if isinstance(times, int) and isinstance(repeated, str | list | tuple) and len(repeated) * times > MAX_REPEATED:
        raise OverflowError(f"a text or list repeated to over {MAX_REPEATED}")


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a chat template may not set private attributes")


def _raise_exception(message: str) -> None:
    raise TemplateRefusedError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
