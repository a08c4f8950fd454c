"""What a chat request asks of the template and of its answers: tools, thoughts, and what those are held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtplx.errors import RequestError
from mtplx.sampling_params import Grammar
from mtplx.server.context import ServerContext
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.grammar import json_grammar
from mtplx.server.protocol.strict import UNSUPPORTED
from mtplx.server.protocol.tools import ChosenTool
from mtplx.text.answer_format import AnswerFormat
from mtplx.text.chat import ChatTemplate
from mtplx.text.reader import Reading
from mtplx.text.reasoning import opens_thought
from mtplx.text.tools.constrained import Spelling, forced_calls, forced_format, rules_of, whole_answer
from mtplx.text.tools.functions import Functions


@dataclass(frozen=True, slots=True)
class ChatWishes:
    """What the chat template is given besides messages."""

    functions: Functions
    variables: Mapping[str, Any]
    opens_turn: bool  # the assistant's, at the prompt's end,
    continues_last: bool  # or else the last message goes on, an assistant's


@dataclass(frozen=True, slots=True)
class AnswerHold:
    """How answers are read and what they are held to.

    `schemas` are what the grammar is made of, each on its own: to find which one is at fault.
    """

    reading: Reading | None
    grammar: Grammar | None
    schemas: tuple[Grammar, ...] = ()


def chat_wishes(body: ChatCompletionRequest, context: ServerContext) -> ChatWishes:
    """What the request wants of the template.

    Raises:
        RequestError: the model can't be asked so.
    """
    functions = body.functions_by_name()
    if functions and context.answer_format.tool_format is None:
        raise RequestError(
            "tools: this server reads no tool calls, since it doesn't know how the model writes them; its operator may "
            "choose a --tool-parser",
            "tools",
            UNSUPPORTED,
        )
    if body.continues_last and body.add_generation_prompt:
        raise RequestError(
            "continue_final_message: add_generation_prompt opens a turn, and none is to be opened: give either",
            "continue_final_message",
        )
    return ChatWishes(
        functions,
        _template_variables(body, context.chat_template, context.answer_format),
        opens_turn=body.opens_turn,
        continues_last=body.continues_last,
    )


def answer_hold(
    body: ChatCompletionRequest, wishes: ChatWishes, prompt: str, grammar: Grammar | None, context: ServerContext
) -> AnswerHold:
    """For answers to the prompt's text; `grammar` is what else the request says of their form.

    Raises:
        RequestError: the answers can't be held to all of it.
    """
    functions = wishes.functions
    tool_format = context.answer_format.tool_format if functions else None
    holds_calls = body.must_call or (bool(functions) and grammar is not None)
    if tool_format and holds_calls:
        tool_format = forced_format(tool_format)
    reading = Reading(
        tool_format=tool_format,
        functions=functions,
        has_thoughts=context.answer_format.has_thoughts,
        is_thinking=context.answer_format.has_thoughts and opens_thought(prompt),
        is_single=body.is_single_call,
        is_forced=body.must_call,
    )
    return AnswerHold(
        reading if tool_format or reading.has_thoughts else None,
        _grammar(body, functions, grammar, reading, context),
        (*_schemas(body, functions), *([grammar] if grammar else [])) if holds_calls else (),
    )


def _template_variables(
    body: ChatCompletionRequest, template: ChatTemplate, answer_format: AnswerFormat
) -> Mapping[str, Any]:
    given, effort = body.chat_template_kwargs or {}, body.reasoning_effort
    if effort is None:
        return given
    if template.reads("reasoning_effort"):
        return {"reasoning_effort": effort, **given}
    if effort == "none" and template.reads("enable_thinking"):
        return {"enable_thinking": False, **given}
    if effort != "none" or answer_format.has_thoughts:
        raise RequestError(
            f"reasoning_effort: nothing in this model's chat template could make the effort {effort}",
            "reasoning_effort",
            UNSUPPORTED,
        )
    return given


def _grammar(
    body: ChatCompletionRequest, functions: Functions, wished: Grammar | None, reading: Reading, context: ServerContext
) -> Grammar | None:
    """What the answer is held to: calls that must be made, or what the request says of its form, or either."""
    if body.must_call and wished is not None:
        raise RequestError(
            f"{wished.param}: an answer that must be calls can't be held to it: leave out one of them",
            wished.param,
            UNSUPPORTED,
        )
    if not body.must_call and (wished is None or not (functions or reading.has_thoughts)):
        return wished
    spelling = Spelling(context.tokenizer.special_tokens_among(reading.markers))
    kinds: dict[str, str] = {}
    if wished is not None:
        kinds["said"] = rules_of(wished)
    if functions:
        assert reading.tool_format is not None, "calls that are held to something can be read"
        chosen = [functions[name] for name in _chosen(body, functions)]
        kinds["calls"] = forced_calls(reading.tool_format, chosen, spelling, is_single=reading.is_single)
    return whole_answer(
        kinds,
        "tools" if wished is None else wished.param,
        spelling=spelling,
        has_thoughts=reading.has_thoughts,
        is_thinking=reading.is_thinking,
    )


def _chosen(body: ChatCompletionRequest, functions: Functions) -> list[str]:
    return [body.tool_choice.function.name] if isinstance(body.tool_choice, ChosenTool) else list(functions)


def _schemas(body: ChatCompletionRequest, functions: Functions) -> list[Grammar]:
    indexes = {name: index for index, name in enumerate(functions)}
    return [
        json_grammar(dict(functions[name].parameters), f"tools.{indexes[name]}.function.parameters")
        for name in _chosen(body, functions)
    ]
