"""The formats in which models write calls, by name, and which of them a chat template teaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mtplx.text.tools import hermes, llama3_json, mistral, pythonic, qwen3_coder
from mtplx.text.tools.functions import Functions
from mtplx.text.tools.source import Source, Steps


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How to read calls; `markers` may be special tokens, which would otherwise not be in the text."""

    name: str
    read: Callable[[Source, Functions], Steps[None]]
    markers: tuple[str, ...]


HERMES: Final = ToolFormat("hermes", hermes.read_hermes, (hermes.OPEN, hermes.CLOSE))
TOOL_FORMATS: Final = {
    format_.name: format_
    for format_ in (
        HERMES,
        ToolFormat("qwen3_coder", qwen3_coder.read_qwen3_coder, (qwen3_coder.OPEN, qwen3_coder.CLOSE)),
        ToolFormat("llama3_json", llama3_json.read_llama3_json, (llama3_json.TAG,)),
        ToolFormat("mistral", mistral.read_mistral, (mistral.CALLS, mistral.CALL_ID, mistral.ARGUMENTS)),
        ToolFormat("pythonic", pythonic.read_pythonic, (*pythonic.ENDS, *pythonic.ENDS.values())),
    )
}

# What a template says that teaches the format; the first that fits. Others use the tags of Hermes for other things.
_SIGNS: Final = (
    ("mistral", "[TOOL_CALLS]"),
    ("qwen3_coder", "<function="),
    ("", "<arg_key>"),
    ("hermes", "<tool_call>"),
    ("llama3_json", '"parameters": dictionary of argument name'),
    ("llama3_json", "<|python_tag|>"),
    ("pythonic", "[func_name1("),
    ("pythonic", "<|tool_call_start|>"),
)


def find_tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template with a place for tools teaches, None if it is none of these."""
    name = next((name for name, sign in _SIGNS if sign in template), "")
    return TOOL_FORMATS.get(name)
