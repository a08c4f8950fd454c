"""The body of POST /v1/responses, without what would have to be kept between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, FailFast, Field, Tag
from typing_extensions import TypeAliasType

from mtplx.sampling_params import MAX_TOP_LOGPROBS
from mtplx.server.protocol.chat import MAX_MESSAGES
from mtplx.server.protocol.generation import EngineFields
from mtplx.server.protocol.strict import INVALID, Accepted, Metadata, Refused, StrictModel, Worded, shape_of

NO_STORED_STATE = "nothing is kept between requests"
NO_SERVER_TOOLS = "there are no tools but functions that the caller runs"
NO_CACHE_CONTROL = "the prefix cache can't be steered"
LOGPROBS = "message.output_text.logprobs"
_PART_TYPES = ("input_text", "output_text")
_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")

OwnId = Annotated[str | None, Accepted("items are read as they come")]
ItemStatus = Annotated[str | None, Accepted("items are read as they come")]


class InputText(StrictModel):
    """A text in a message or in a function's output."""

    type: Literal["input_text"] = Field(description="images, audio and files are refused")
    text: str = Field(description="read as it is")
    prompt_cache_breakpoint: Annotated[Any, Refused(NO_CACHE_CONTROL)] = None


class OutputText(StrictModel):
    """A text that the model wrote earlier."""

    type: Literal["output_text"] = Field(description="as answers have it")
    text: str = Field(description="read as it is")
    annotations: Annotated[Any, Refused("there is no search", (None, []))] = None
    logprobs: Annotated[list[dict[str, Any]] | None, Accepted("what an answer had is no part of the prompt")] = None


def _type_in(kinds: tuple[str, ...], default: str | None = None) -> Discriminator:
    """Tells objects by their type, in angle brackets, since pydantic puts it into error paths."""

    def tag_of(value: Any) -> str | None:
        kind = value.get("type", default) if isinstance(value, dict) else getattr(value, "type", None) or default
        return f"<{kind}>" if kind in kinds else None

    return Discriminator(tag_of, INVALID, f"must be an object whose type is {', '.join(kinds)}")


Part = Annotated[
    Annotated[InputText, Tag("<input_text>")] | Annotated[OutputText, Tag("<output_text>")], _type_in(_PART_TYPES)
]
Parts = TypeAliasType("Parts", Annotated[tuple[Part, ...], Field(min_length=1), FailFast()])
InputTexts = TypeAliasType("InputTexts", Annotated[tuple[InputText, ...], Field(min_length=1), FailFast()])


class MessageItem(StrictModel):
    """One turn; what the chat template makes of it decides the prompt."""

    type: Literal["message"] | None = Field(None, description="what an item is when it doesn't say")
    role: Literal["user", "assistant", "system", "developer"] = Field(description="as in chat completions")
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[Parts, Tag("<list>")],
        Discriminator(shape_of, INVALID, "must be a string or a list of text parts"),
    ] = Field(description="a text, or text parts that are joined by newlines")
    id: OwnId = None
    status: ItemStatus = None
    phase: Annotated[Any, Refused("chat templates have no phases")] = None


class FunctionCallItem(StrictModel):
    """A call that the model made earlier."""

    type: Literal["function_call"] = Field(description="a call in an earlier answer")
    call_id: str = Field(description="what its output names")
    name: str = Field(description="the function's name")
    arguments: str = Field(description="JSON, as the model wrote it")
    id: OwnId = None
    status: ItemStatus = None
    caller: Annotated[Any, Refused(NO_SERVER_TOOLS, (None, {"type": "direct"}))] = None
    namespace: Annotated[Any, Refused("functions have no namespaces")] = None


class FunctionOutputItem(StrictModel):
    """What a call has brought."""

    type: Literal["function_call_output"] = Field(description="after its call")
    call_id: str = Field(description="the call's id")
    output: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[InputTexts, Tag("<list>")],
        Discriminator(shape_of, INVALID, "must be a string or a list of text parts"),
    ] = Field(description="a text, or text parts that are joined by newlines")
    id: OwnId = None
    status: ItemStatus = None
    name: Annotated[str | None, Accepted("the call has the name")] = None
    caller: Annotated[Any, Refused(NO_SERVER_TOOLS, (None, {"type": "direct"}))] = None
    namespace: Annotated[Any, Refused("functions have no namespaces")] = None


class ReasoningText(StrictModel):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"] = Field(description="as answers have it")
    text: str = Field(description="for chat templates that show earlier thinking")


class ReasoningItem(StrictModel):
    """What the model thought earlier."""

    type: Literal["reasoning"] = Field(description="before what it led to")
    content: tuple[ReasoningText, ...] | None = Field(None, description="as answers have it")
    id: OwnId = None
    status: ItemStatus = None
    summary: Annotated[Any, Refused("reasoning isn't summarised", (None, []))] = None
    encrypted_content: Annotated[Any, Refused("reasoning isn't encrypted")] = None


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    _type_in(_ITEM_TYPES, "message"),
]
Items = TypeAliasType("Items", Annotated[tuple[Item, ...], Field(min_length=1, max_length=MAX_MESSAGES), FailFast()])


class FunctionTool(StrictModel):
    """A function that the caller runs."""

    type: Annotated[Literal["function"], Worded(f'must be "function": {NO_SERVER_TOOLS}')] = Field(
        description="tools that a server would run are refused"
    )
    name: str = Field(description="what the model calls it by")
    description: str | None = Field(None, description="for the model")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments")
    strict: bool | None = Field(None, description="as in chat completions")
    allowed_callers: Annotated[Any, Refused(NO_SERVER_TOOLS, (None, ["direct"]))] = None
    defer_loading: Annotated[Any, Refused("all tools are shown to the model", (None, False))] = None
    output_schema: Annotated[Any, Refused("chat templates have no place for it")] = None


Tools = TypeAliasType("Tools", Annotated[tuple[FunctionTool, ...], FailFast()])


class NamedFunction(StrictModel):
    """The one function that must be called."""

    type: Annotated[Literal["function"], Worded(f'must be "function": {NO_SERVER_TOOLS}')] = Field(
        description="other kinds of choices are refused"
    )
    name: str = Field(description="the function that must be called")


def _shape_of_choice(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<object>" if isinstance(value, dict | NamedFunction) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<text>")] | Annotated[NamedFunction, Tag("<object>")],
    Discriminator(_shape_of_choice, INVALID, 'must be "none", "auto", "required" or a function\'s name in an object'),
]


class TextConfig(StrictModel):
    """What the answer's text must be."""

    format: dict[str, Any] | None = Field(
        None, description="type text, json_object or json_schema; the latter with name and schema beside the type"
    )
    verbosity: Annotated[Any, Refused("the model's verbosity can't be set", (None, "medium"))] = None


class Reasoning(StrictModel):
    """How the model thinks."""

    effort: str | None = Field(None, description="as reasoning_effort in chat completions")
    summary: Annotated[Any, Refused("reasoning isn't summarised", (None, "auto"))] = None
    generate_summary: Annotated[Any, Refused("reasoning isn't summarised", (None, "auto"))] = None
    context: Annotated[Any, Refused("the chat template decides", (None, "auto"))] = None
    mode: Annotated[Any, Refused("there is one mode", (None, "standard"))] = None


class ResponseStreamOptions(StrictModel):
    """What a stream carries besides the answer."""

    include_obfuscation: Annotated[Any, Refused("events are never padded", (None, False))] = None


class ResponsesRequest(EngineFields):
    """A conversation to be answered."""

    model: str = Field(description="the served model's name; another is 404 model_not_found")
    input: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[Items, Tag("<list>")],
        Discriminator(shape_of, INVALID, "must be a string or a list of items"),
    ] = Field(description="what the user says, or the conversation so far")
    instructions: str | None = Field(None, description="a system message before the input")
    max_output_tokens: int | None = Field(
        None, ge=1, description="most tokens of the answer; default: up to the context limit"
    )
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default: the model's, else 1")
    top_p: float | None = Field(None, gt=0, le=1, description="default: the model's, else 1")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="how many likeliest tokens beside each; with any there are logprobs",
    )
    include: tuple[Literal["message.output_text.logprobs", "reasoning.encrypted_content"], ...] | None = Field(
        None, description="logprobs of the text; encrypted reasoning asks nothing, since it comes in the clear"
    )
    text: TextConfig | None = Field(None, description="structured output")
    tools: Tools | None = Field(None, description="functions that the model may call")
    tool_choice: ToolChoice | None = Field(None, description="default: the model decides")
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    reasoning: Reasoning | None = Field(None, description="for models that think")
    stream: bool | None = Field(None, description="named server-sent events instead of one body")
    stream_options: ResponseStreamOptions | None = Field(None, description="only together with stream")
    metadata: Metadata | None = Field(None, description="comes back in the answer")
    user: Annotated[str | None, Accepted("names the caller's user")] = None
    safety_identifier: Annotated[str | None, Accepted("names the caller's user")] = None
    prompt_cache_key: Annotated[str | None, Accepted("a hint for routing")] = None
    max_tool_calls: Annotated[int | None, Accepted("counts tools that a server runs, and there are none")] = None
    store: Annotated[Any, Refused("answers are not stored", (None, False))] = None
    previous_response_id: Annotated[Any, Refused(f"{NO_STORED_STATE}; send the whole conversation as input")] = None
    conversation: Annotated[Any, Refused(f"{NO_STORED_STATE}; send the whole conversation as input")] = None
    background: Annotated[Any, Refused(NO_STORED_STATE, (None, False))] = None
    background_options: Annotated[Any, Refused(NO_STORED_STATE)] = None
    prompt: Annotated[Any, Refused("no prompt templates are stored")] = None
    truncation: Annotated[Any, Refused("the conversation is read as it is", (None, "disabled"))] = None
    context_management: Annotated[Any, Refused("the conversation is read as it is")] = None
    service_tier: Annotated[Any, Refused("there is one tier", (None, "auto", "default"))] = None
    prompt_cache_options: Annotated[Any, Refused(NO_CACHE_CONTROL)] = None
    prompt_cache_retention: Annotated[Any, Refused(NO_CACHE_CONTROL)] = None
    moderation: Annotated[Any, Refused("there is no moderation")] = None
    image: Annotated[Any, Refused("the model writes text only")] = None
    access_programs: Annotated[Any, Refused("there are no access programs")] = None
