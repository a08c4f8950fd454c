"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, FailFast, Field, Tag
from typing_extensions import TypeAliasType

from mtplx.errors import RequestError
from mtplx.model.spec import ModelSpec
from mtplx.sampling_params import MAX_TOP_LOGPROBS, Grammar, SamplingParams
from mtplx.server.protocol.extended import ExtendedRequest
from mtplx.server.protocol.grammar import ResponseFormat
from mtplx.server.protocol.strict import INVALID, Accepted, Refused, StrictModel, Worded, shape_of
from mtplx.server.protocol.tools import MAX_TOOLS, ChosenTool, ToolCalls, ToolChoice, Tools, functions_of
from mtplx.text.tools.functions import Functions

MAX_MESSAGES = 4096
MAX_TEMPLATE_VARIABLES = 16
NO_FUNCTIONS = "the older name of tools: give these"
NO_AUDIO = "this server reads and writes text only"


class TextPart(StrictModel):
    """The only kind of content part that a text model reads."""

    type: Annotated[Literal["text"], Worded('must be "text": this server reads no images, audio or files')] = Field(
        description="images, audio and files are refused"
    )
    text: str = Field(description="read as it is")
    prompt_cache_breakpoint: Annotated[Any, Refused("the prefix cache can't be steered")] = None


TextParts = TypeAliasType("TextParts", Annotated[tuple[TextPart, ...], Field(min_length=1), FailFast()])
Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextParts, Tag("<list>")],
    Discriminator(shape_of, INVALID, "must be a string or a list of text parts"),
]


TemplateVariables = Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_VARIABLES)]


class Message(StrictModel):
    """One turn; what the chat template makes of it decides the prompt."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="developer is system where the template has no such role; function is refused"
    )
    content: Content | None = Field(
        None, description="a text, or text parts that are joined by newlines; needed but beside tool_calls"
    )
    name: str | None = Field(
        None,
        description="given to the model's chat template; refused where the template has no place for it; of a tool: "
        "that of the function that was called",
    )
    refusal: Annotated[Any, Refused("this server never refuses to answer")] = None
    audio: Annotated[Any, Refused(NO_AUDIO)] = None
    annotations: Annotated[Any, Refused("there is no web search", (None, []))] = None
    function_call: Annotated[Any, Refused(NO_FUNCTIONS)] = None
    tool_calls: ToolCalls | None = Field(None, description="of an assistant: what it called")
    tool_call_id: str | None = Field(None, description="of a tool: which call of an earlier message has this result")
    reasoning_content: str | None = Field(
        None, description="of an assistant: what it thought; left out where the template shows no earlier thoughts"
    )

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it: only what was said."""
        return self.model_dump(exclude_none=True, exclude_unset=True)


Messages = TypeAliasType(
    "Messages", Annotated[tuple[Message, ...], Field(min_length=1, max_length=MAX_MESSAGES), FailFast()]
)


class ChatCompletionRequest(ExtendedRequest):
    """A conversation to be answered."""

    messages: Messages = Field(description="the conversation so far")
    max_completion_tokens: int | None = Field(
        None, ge=1, description="the newer name of max_tokens; default: up to the context limit"
    )
    logprobs: bool | None = Field(None, description="log-probability of every token of the answer")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="how many likeliest tokens beside each; needs logprobs"
    )
    prompt_cache_key: Annotated[str | None, Accepted("a hint for routing")] = None
    safety_identifier: Annotated[str | None, Accepted("names the caller's user")] = None
    service_tier: Annotated[Any, Refused("there is one tier", (None, "auto", "default"))] = None
    response_format: ResponseFormat | None = Field(None, description="what the answer must be, in OpenAI's words")
    tools: Tools | None = Field(
        None, description=f"functions that the model may call, at most {MAX_TOOLS}; refused where it has no tool parser"
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="auto, the default: the model decides; none: no tools this time; required: at least one call; a "
        "function's name: one call of it",
    )
    parallel_tool_calls: bool | None = Field(
        None, description="default true; false: the answer ends with its first call"
    )
    chat_template_kwargs: TemplateVariables | None = Field(
        None, description="variables for the chat template, such as enable_thinking; refused where it has no such"
    )
    functions: Annotated[Any, Refused(NO_FUNCTIONS, (None, []))] = None
    function_call: Annotated[Any, Refused(NO_FUNCTIONS, (None, "none", "auto"))] = None
    echo: Annotated[Any, Refused("the conversation is not repeated in the answer", (None, False))] = None
    chat_template: Annotated[Any, Refused("the model's own is used: one of a client could keep the server busy")] = None
    add_generation_prompt: bool | None = Field(
        None, description="default true, but beside continue_final_message: the prompt opens the assistant's turn"
    )
    continue_final_message: bool | None = Field(
        None, description="the answer goes on with the last message, an assistant's, and is only what is new"
    )
    documents: Annotated[Any, Refused("write them into a message", (None, []))] = None
    mm_processor_kwargs: Annotated[Any, Refused(NO_AUDIO)] = None
    audio: Annotated[Any, Refused(NO_AUDIO)] = None
    modalities: Annotated[Any, Refused(NO_AUDIO, (None, ["text"]))] = None
    moderation: Annotated[Any, Refused("there is no moderation")] = None
    prediction: Annotated[Any, Refused("predicted outputs are not implemented")] = None
    prompt_cache_options: Annotated[Any, Refused("the prefix cache can't be steered")] = None
    prompt_cache_retention: Annotated[Any, Refused("the prefix cache can't be steered")] = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="given to the chat template; refused where that can't change how the model thinks"
    )
    store: Annotated[Any, Refused("answers are not stored", (None, False))] = None
    verbosity: Annotated[Any, Refused("the model's verbosity can't be set", (None, "medium"))] = None
    web_search_options: Annotated[Any, Refused("there is no web search")] = None

    def wished_grammars(self) -> Iterator[Grammar | None]:
        if self.response_format is not None:
            yield self.response_format.grammar()
        yield from super().wished_grammars()

    def functions_by_name(self) -> Functions:
        """What may be called, in this turn. Raises: RequestError."""
        declared = functions_of(self.tools or ())
        if isinstance(self.tool_choice, ChosenTool) and self.tool_choice.function.name not in declared:
            raise RequestError(
                f"tool_choice: there is no tool {self.tool_choice.function.name:.64}", "tool_choice", INVALID
            )
        if self.tool_choice == "required" and not declared:
            raise RequestError("tool_choice: required needs tools", "tool_choice", INVALID)
        return {} if self.tool_choice == "none" else declared

    @property
    def continues_last(self) -> bool:
        return self.continue_final_message is True

    @property
    def opens_turn(self) -> bool:
        return self.add_generation_prompt is not False and not self.continues_last

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, ChosenTool)

    @property
    def is_single_call(self) -> bool:
        return self.parallel_tool_calls is False or isinstance(self.tool_choice, ChosenTool)

    def template_messages(self) -> list[dict[str, Any]]:
        return [message.for_template() for message in self.messages]

    def sampling_params(self, spec: ModelSpec) -> SamplingParams:
        """The engine's view of the request; raises RequestError for fields that contradict each other."""
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            raise RequestError(
                f"max_tokens {self.max_tokens} and max_completion_tokens {self.max_completion_tokens} differ: give one",
                "max_completion_tokens",
            )
        return self.to_sampling_params(
            spec,
            max_tokens=next(iter(limits), None),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )
