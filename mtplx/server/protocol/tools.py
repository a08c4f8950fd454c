"""Tools and calls as chat completions write them: what a request declares, chooses, and shows of earlier turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, FailFast, Field, Tag
from typing_extensions import TypeAliasType

from mtplx.errors import RequestError
from mtplx.server.protocol.strict import INVALID, StrictModel, Worded
from mtplx.text.tools.functions import Function, Functions

MAX_TOOLS = 128
MAX_TOOLS_CHARACTERS = 2**18  # of all declarations together, as JSON
MAX_CALLS = 128  # in one message
NO_OTHER_TOOLS = 'must be "function": there are no other tools'

Name = Annotated[
    Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")],
    Worded("must be 1 to 64 letters, digits, underscores or dashes"),
]
ToolType = Annotated[Literal["function"], Worded(NO_OTHER_TOOLS)]


class ChatFunction(StrictModel):
    """A function that the model may call."""

    name: Name = Field(description="letters, digits, underscores and dashes, at most 64; each name once")
    description: str | None = Field(None, description="read by the model")
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of the arguments, of type object; default: there are none"
    )
    strict: bool | None = Field(
        None,
        description="obeyed where a call is required or named, then whatever it says; else calls aren't held to it",
    )

    def function(self) -> Function:
        if self.parameters is None:
            return Function(self.name, self.description)
        return Function(self.name, self.description, {"type": "object", **self.parameters})

    def check(self, path: str) -> None:
        """Raises RequestError if the parameters can't be a schema of an object; `path` is that of this function."""
        schema = self.parameters or {}
        properties, required = schema.get("properties", {}), schema.get("required", [])
        wrong = None
        if schema.get("type", "object") != "object":
            wrong = 'must have the type "object"'
        elif not isinstance(properties, dict) or not all(isinstance(each, dict | bool) for each in properties.values()):
            wrong = "must have an object of schemas as properties"
        elif not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            wrong = "must have a list of names as required"
        if wrong:
            raise RequestError(f"{path}.parameters: {wrong}", f"{path}.parameters", INVALID)


class ChatTool(StrictModel):
    """One tool."""

    type: ToolType = Field(description="functions alone")
    function: ChatFunction = Field(description="what may be called")


class ChosenFunction(StrictModel):
    """The function that must be called."""

    name: str = Field(description="one of the tools")


class ChosenTool(StrictModel):
    """The choice of one function."""

    type: ToolType = Field(description="functions alone")
    function: ChosenFunction = Field(description="which one")


class EarlierFunction(StrictModel):
    """What was called, and with what."""

    name: Annotated[str, Field(min_length=1)] = Field(description="as it was called")
    arguments: str = Field(description="JSON; given to the template as the object that it stands for")


class EarlierCall(StrictModel):
    """A call of an earlier turn."""

    id: Annotated[str, Field(min_length=1)] = Field(description="to which its result refers")
    type: ToolType = Field(description="functions alone")
    function: EarlierFunction = Field(description="the call")


def _shape_of_choice(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<object>" if isinstance(value, dict | ChosenTool) else None


Tools = TypeAliasType("Tools", Annotated[tuple[ChatTool, ...], Field(max_length=MAX_TOOLS), FailFast()])
ToolCalls = TypeAliasType("ToolCalls", Annotated[tuple[EarlierCall, ...], Field(max_length=MAX_CALLS), FailFast()])
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<text>")] | Annotated[ChosenTool, Tag("<object>")],
    Discriminator(_shape_of_choice, INVALID, 'must be "none", "auto", "required" or a function\'s name in an object'),
]


def functions_of(tools: Sequence[ChatTool]) -> Functions:
    """The declared functions by name.

    Raises:
        RequestError: a name comes twice, a schema is none, or it is too much of all.
    """
    functions: dict[str, Function] = {}
    for index, tool in enumerate(tools):
        path = f"tools.{index}.function"
        tool.function.check(path)
        if tool.function.name in functions:
            raise RequestError(f"{path}.name: there is another tool of that name", f"{path}.name", INVALID)
        functions[tool.function.name] = tool.function.function()
    num_characters = sum(len(json.dumps(function.for_template())) for function in functions.values())
    if num_characters > MAX_TOOLS_CHARACTERS:
        raise RequestError(
            f"tools: {num_characters} characters of declarations are over {MAX_TOOLS_CHARACTERS}", "tools", INVALID
        )
    return functions
