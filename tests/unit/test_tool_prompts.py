"""Tools, calls and results as chat templates get them, and as plain messages where a template knows none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import ConfigError, RequestError
from mtplx.text.answer_format import AnswerFormat, resolve_answer_format
from mtplx.text.apart import render_apart
from mtplx.text.chat import ChatTemplate
from mtplx.text.messages import MAX_PARTS_HERE
from mtplx.text.tools.functions import Function

F = Function("f", "does it", {"type": "object", "properties": {"a": {"default": None}}})
FUNCTIONS = {"f": F}
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
KNOWING = (
    "{% if tools %}{{ tools | tojson ~ '\n' }}{% endif %}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.id }} {{ c.function.name }} SHOWN{% endfor %}{{ '\n' }}{% endfor %}"
)


def call(call_id: str, arguments: str, name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls: dict[str, Any], **message: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls), **message}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


ASK = {"role": "user", "content": "hi"}
TALK = [ASK, turn(call("1", '{"a": "é"}'), call("2", "{}"), content="Well."), result("2", "two"), result("1", "one")]


def render(source: str, messages: list[dict[str, Any]] = TALK, **options: Any) -> str:
    return ChatTemplate(source, {}).render(messages, **options)


# Templates that know tools


def test_tools_are_given_as_they_were_declared() -> None:
    first = render(KNOWING, [ASK], functions=FUNCTIONS).splitlines()[0]
    described = {"name": "f", "description": "does it", "parameters": F.parameters}
    assert json.loads(first) == [{"type": "function", "function": described}]
    assert render(KNOWING, [ASK]) == "[user] hi\n"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": "é"}'),
        ("{{ c.function.arguments }}", '{"a": "é"}'),
        ("{{ 'x' + c.function.arguments + 'y' }}", 'x{"a": "é"}y'),
        ("{{ 'x' ~ c.function.arguments }}", 'x{"a": "é"}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=é"),
        ("{{ c.function.arguments is string }} {{ c.function.arguments is mapping }}", "False True"),
    ],
)
@pytest.mark.parametrize("is_apart", [False, True])
def test_arguments_are_objects_and_text_at_once(shown: str, expected: str, is_apart: bool) -> None:
    source = KNOWING.replace("SHOWN", shown)
    if is_apart:
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": "é"}}}],
        }
        assert expected in render_apart(source, {"messages": [message]})
    else:
        assert f"1 f {expected}" in render(source)


@pytest.mark.parametrize(
    ("arguments", "expected"), [("", "{}"), ("no {json", "no {json"), ("[1]", "[1]"), ("NaN", "NaN")]
)
def test_arguments_that_are_no_object_stay_what_they_are(arguments: str, expected: str) -> None:
    source = KNOWING.replace("SHOWN", "{{ c.function.arguments }}")
    assert f"1 f {expected}\n" in render(source, [ASK, turn(call("1", arguments))])


def test_results_come_in_the_order_of_their_calls() -> None:
    assert render(KNOWING).endswith("[tool] one\n[tool] two\n")


def test_ids_that_begin_again_in_each_turn_are_no_contradiction() -> None:
    turns = [turn(call("0", "{}"), call("1", "{}")), result("1", "one"), result("0", "zero")]
    shown = render(KNOWING.replace("]", "] {{ m.tool_call_id }}", 1), [ASK, *turns, ASK, *turns]).split("\n")
    assert [line for line in shown if line.startswith("[tool]")] == ["[tool] 0 zero", "[tool] 1 one"] * 2


def test_results_carry_the_name_of_their_function() -> None:
    source = KNOWING.replace("[{{ m.role }}]", "[{{ m.role }} {{ m.name }}]")
    assert "[tool f] one" in render(source)


def test_mistrals_templates_get_ids_of_nine_characters() -> None:
    shown = "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    source = "{# [TOOL_CALLS] #}" + KNOWING.replace("SHOWN", shown) + "{{ messages[-1].tool_call_id }}"
    text = render(source)
    assert text[-9:] in text[:-9], "call and result have the same one"
    assert "abcdef123 f" in render(source, [ASK, turn(call("abcdef123", "{}")), result("abcdef123", "x")])


def test_earlier_thoughts_are_shown_only_where_there_is_a_place() -> None:
    thought = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert render(PLAIN, [ASK, thought]) == "[user] hi\n[assistant] a\n"
    assert "hm" in render(PLAIN.replace("]", "] {{ m.reasoning_content }}", 1), [ASK, thought])


def test_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = ChatTemplate.load(tmp_path, is_trusted=False)
    assert template.has_tools
    assert template.render([ASK], functions=FUNCTIONS) == "1 tools"
    assert template.render([ASK]) == "plain"


def test_large_conversations_are_rendered_alike() -> None:
    source = KNOWING.replace("SHOWN", "{{ c.function.arguments }}")
    talk = [
        ASK,
        *(message for n in range(MAX_PARTS_HERE) for message in (turn(call(str(n), '{"a": 1}')), result(str(n), "x"))),
    ]
    text = render(source, talk, functions=FUNCTIONS)
    assert text.count('f {"a": 1}\n[tool] x\n') == MAX_PARTS_HERE


# Variables


def test_variables_reach_the_template() -> None:
    source = "{% if enable_thinking is defined and not enable_thinking %}no{% endif %}{{ messages[0].content }}"
    assert render(source, [ASK], variables={"enable_thinking": False}) == "nohi"
    assert render(source, [ASK]) == "hi"


@pytest.mark.parametrize("name", ["unheard_of", "messages", "tools", "bos_token", "add_generation_prompt", "m"])
def test_variables_that_would_change_nothing_or_too_much_are_refused(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(KNOWING + "{{ bos_token }}{{ add_generation_prompt }}", [ASK], variables={name: "x"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


# Templates that know none


def test_functions_are_said_in_the_system_message() -> None:
    text = render(PLAIN, [ASK], functions=FUNCTIONS)
    assert text.startswith("[system] ")
    assert json.dumps(F.for_template()) in text
    assert text.endswith("[user] hi\n")
    system = {"role": "system", "content": "be brief"}
    assert render(PLAIN, [system, ASK], functions=FUNCTIONS).startswith("[system] be brief\n\n")


def test_calls_and_results_become_messages_of_assistant_and_user() -> None:
    assert render(PLAIN) == (
        "[user] hi\n"
        '[assistant] Well.\n<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        "[user] <tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\n"
    )


def test_the_callers_messages_are_left_as_they_were() -> None:
    before = json.dumps(TALK)
    render(PLAIN, functions=FUNCTIONS)
    render(KNOWING, functions=FUNCTIONS)
    assert json.dumps(TALK) == before


# Formats


@pytest.mark.parametrize(
    ("source", "tool_parser", "expected"),
    [
        (PLAIN, "auto", ("hermes", "none")),
        (PLAIN, "none", ("none", "none")),
        (None, "auto", ("none", "none")),
        (KNOWING, "auto", ("none", "none")),
        (KNOWING + "<tool_call></think>", "auto", ("hermes", "think")),
        (KNOWING, "pythonic", ("pythonic", "none")),
    ],
)
def test_formats_follow_setting_and_template(source: str | None, tool_parser: str, expected: tuple[str, str]) -> None:
    found = resolve_answer_format(ChatTemplate(source, {}), tool_parser, "auto")
    assert (found.tool_parser, found.reasoning_parser) == expected


def test_only_one_format_can_be_described_to_a_model_without_tools() -> None:
    with pytest.raises(ConfigError, match="only hermes") as caught:
        resolve_answer_format(ChatTemplate(PLAIN, {}), "mistral", "auto")
    assert caught.value.parameter == "--tool-parser"
    assert AnswerFormat().tool_parser == "none"
