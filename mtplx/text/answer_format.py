"""How the served model writes calls and thoughts: what was asked for, or what its chat template shows."""

from __future__ import annotations

from dataclasses import dataclass

from mtplx.errors import ConfigError
from mtplx.text.chat import ChatTemplate
from mtplx.text.reasoning import CLOSE
from mtplx.text.tools.formats import HERMES, TOOL_FORMATS, ToolFormat, find_tool_format


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Fixed at start-up. Without a tool format requests with tools are refused."""

    tool_format: ToolFormat | None = None
    has_thoughts: bool = False

    @property
    def tool_parser(self) -> str:
        """Its name among the settings."""
        return self.tool_format.name if self.tool_format else "none"

    @property
    def reasoning_parser(self) -> str:
        """Its name among the settings."""
        return "think" if self.has_thoughts else "none"


def resolve_answer_format(template: ChatTemplate, tool_parser: str, reasoning_parser: str) -> AnswerFormat:
    """The format by the settings `tool_parser` and `reasoning_parser`; auto goes by the template.

    Raises:
        ConfigError: the model's template has no place for tools, and the format asked for isn't the one that is
            described to such models.
    """
    thinks = CLOSE in (template.source or "") if reasoning_parser == "auto" else reasoning_parser == "think"
    if tool_parser == "none" or not template.is_present:
        return AnswerFormat(None, thinks)
    if template.has_tools:
        found = find_tool_format(template.tools_source or "") if tool_parser == "auto" else TOOL_FORMATS[tool_parser]
        return AnswerFormat(found, thinks)
    if tool_parser not in ("auto", HERMES.name):
        raise ConfigError(
            f"--tool-parser {tool_parser} needs a chat template with a place for tools, and this model's has none: "
            f"only {HERMES.name} can be described to it",
            "--tool-parser",
        )
    return AnswerFormat(HERMES, thinks)
