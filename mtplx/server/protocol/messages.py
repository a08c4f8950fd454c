"""The bodies of POST /v1/messages and of its count_tokens, in the shapes of Anthropic's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, FailFast, Field, Tag
from typing_extensions import TypeAliasType

from mtplx.server.protocol.chat import MAX_MESSAGES
from mtplx.server.protocol.generation import EngineFields
from mtplx.server.protocol.strict import INVALID, Accepted, Refused, StopStrings, StrictModel, Worded, shape_of

NO_SERVER_TOOLS = "there are no server tools"
NO_STORED_STATE = "nothing is kept between requests"
_BLOCK_TYPES = ("text", "tool_use", "tool_result", "thinking")

CacheControl = Annotated[dict[str, str] | None, Accepted("prompts share what they can without marks")]


class TextBlock(StrictModel):
    """A text."""

    type: Literal["text"] = Field(description="images and documents are refused")
    text: str = Field(description="read as it is")
    cache_control: CacheControl = None
    citations: Annotated[Any, Refused("no documents are cited", (None, []))] = None


class ToolUseBlock(StrictModel):
    """A call that the model made earlier."""

    type: Literal["tool_use"] = Field(description="a call in an earlier turn of the assistant")
    id: str = Field(description="what its tool_result names")
    name: str = Field(description="the tool's name")
    input: dict[str, Any] = Field(description="the call's arguments")
    cache_control: CacheControl = None
    caller: Annotated[Any, Refused(NO_SERVER_TOOLS, (None, {"type": "direct"}))] = None
    toolset_name: Annotated[Any, Refused(NO_SERVER_TOOLS)] = None


TextBlocks = TypeAliasType("TextBlocks", Annotated[tuple[TextBlock, ...], FailFast()])
TextContent = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextBlocks, Tag("<list>")],
    Discriminator(shape_of, INVALID, "must be a string or a list of text blocks"),
]


class ToolResultBlock(StrictModel):
    """What a call has brought."""

    type: Literal["tool_result"] = Field(description="in a turn of the user")
    tool_use_id: str = Field(description="the call's id")
    content: TextContent | None = Field(None, description="a text, or text blocks that are joined by newlines")
    is_error: bool | None = Field(None, description='the model reads "Error: " before the content')
    cache_control: CacheControl = None
    toolset_name: Annotated[Any, Refused(NO_SERVER_TOOLS)] = None


class ThinkingBlock(StrictModel):
    """What the model thought earlier."""

    type: Literal["thinking"] = Field(description="in an earlier turn of the assistant")
    thinking: str = Field(description="for chat templates that show earlier thinking")
    signature: Annotated[str | None, Accepted("thinking isn't signed")] = None


def _block_type(value: Any) -> str | None:
    """The tag of a content block, in angle brackets, since pydantic puts it into error paths."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in _BLOCK_TYPES else None


Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")],
    Discriminator(
        _block_type, INVALID, f"must be an object whose type is {', '.join(_BLOCK_TYPES)}: this server reads text only"
    ),
]
Blocks = TypeAliasType("Blocks", Annotated[tuple[Block, ...], Field(min_length=1), FailFast()])


class InputMessage(StrictModel):
    """One turn; what the chat template makes of it decides the prompt."""

    role: Literal["user", "assistant", "system"] = Field(
        description="turns of one role in a row are joined; a text of the assistant at the end is continued"
    )
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[Blocks, Tag("<list>")],
        Discriminator(shape_of, INVALID, "must be a string or a list of content blocks"),
    ] = Field(description="a text, or blocks; texts of one turn are joined by newlines")


InputMessages = TypeAliasType(
    "InputMessages", Annotated[tuple[InputMessage, ...], Field(min_length=1, max_length=MAX_MESSAGES), FailFast()]
)


class Tool(StrictModel):
    """A function that the caller runs."""

    type: Annotated[Literal["custom"] | None, Worded(f'must be "custom": {NO_SERVER_TOOLS}')] = Field(
        None, description="tools that a server would run are refused"
    )  # the first, so that these are told so, and not that they have no schema
    name: str = Field(description="what the model calls it by")
    description: str | None = Field(None, description="for the model")
    input_schema: dict[str, Any] = Field(description="JSON schema of the arguments")
    strict: bool | None = Field(None, description="as in chat completions")
    cache_control: CacheControl = None
    eager_input_streaming: Annotated[bool | None, Accepted("arguments are streamed as they come")] = None
    allowed_callers: Annotated[Any, Refused(NO_SERVER_TOOLS, (None, ["direct"]))] = None
    defer_loading: Annotated[Any, Refused("all tools are shown to the model", (None, False))] = None
    input_examples: Annotated[Any, Refused("chat templates have no place for examples", (None, []))] = None


Tools = TypeAliasType("Tools", Annotated[tuple[Tool, ...], FailFast()])


class ToolChoice(StrictModel):
    """Whether and what the model must call."""

    type: Literal["auto", "any", "tool", "none"] = Field(description="any and tool force a call")
    name: str | None = Field(None, description="the tool that must be called; with type tool alone")
    disable_parallel_tool_use: bool | None = Field(None, description="at most one call")


class Thinking(StrictModel):
    """Whether the model thinks before it answers."""

    type: Annotated[
        Literal["adaptive", "disabled"],
        Worded('must be "adaptive" or "disabled": the model thinks as long as it likes, budgets can\'t be kept'),
    ] = Field(
        description="adaptive leaves it to the model, the default; disabled is refused where it can't be kept from it"
    )
    display: Annotated[Any, Refused("thinking is shown as it is")] = None


class OutputConfig(StrictModel):
    """What the answer must be."""

    format: dict[str, Any] | None = Field(None, description='{"type": "json_schema", "schema": {...}}')
    effort: Literal["low", "medium", "high", "xhigh"] | None = Field(
        None, description="as reasoning_effort in chat completions, but that high, the default, asks nothing"
    )


class CountTokensRequest(StrictModel):
    """A conversation whose prompt is to be counted."""

    model: str = Field(description="the served model's name; another is 404")
    messages: InputMessages = Field(description="the conversation so far")
    system: TextContent | None = Field(None, description="what comes before the conversation")
    tools: Tools | None = Field(None, description="functions that the model may call")
    tool_choice: ToolChoice | None = Field(None, description="default: the model decides")
    thinking: Thinking | None = Field(None, description="for models that think")
    output_config: OutputConfig | None = Field(None, description="structured output")
    cache_control: CacheControl = None
    context_management: Annotated[Any, Refused("the conversation is read as it is")] = None
    mcp_servers: Annotated[Any, Refused(NO_SERVER_TOOLS, (None, []))] = None
    speed: Annotated[Any, Refused("there is one speed", (None, "standard"))] = None
    user_profile_id: Annotated[Any, Refused("there are no profiles")] = None
    workspace_id: Annotated[Any, Refused("there are no workspaces")] = None


class MessagesRequest(CountTokensRequest, EngineFields):
    """A conversation to be answered."""

    max_tokens: int = Field(ge=1, description="most tokens of the answer")
    stop_sequences: StopStrings | None = Field(None, description="strings that end the answer; not in it")
    stream: bool | None = Field(None, description="named server-sent events instead of one body")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default: the model's, else 1")
    top_p: float | None = Field(None, gt=0, le=1, description="default: the model's, else 1")
    top_k: int | None = Field(None, ge=0, description="0 keeps all; default: the model's, else all")
    metadata: Annotated[dict[str, str | None] | None, Accepted("names the caller's user")] = None
    container: Annotated[Any, Refused(NO_SERVER_TOOLS)] = None
    diagnostics: Annotated[Any, Refused(NO_STORED_STATE)] = None
    inference_geo: Annotated[Any, Refused("the server is where it is")] = None
    service_tier: Annotated[Any, Refused("there is one tier", (None, "auto", "standard_only"))] = None
