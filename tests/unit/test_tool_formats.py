"""Calls and thoughts out of an answer's text: every format, every way of cutting it, and what is no call after all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx.text.reader import AnswerReader, Reading
from mtplx.text.tools.formats import TOOL_FORMATS, find_tool_format
from mtplx.text.tools.functions import Function
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd, Part, Reasoning, Text

WRITE = Function(
    "write",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "mode": {"type": ["string", "null"]},
            "lines": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "force": {"type": "boolean"},
            "tags": {"type": "array"},
        },
    },
)
FUNCTIONS = {"f": Function("f"), "get-time.v2": Function("get-time.v2"), "write": WRITE}


@dataclass
class Found:
    """An answer's parts, joined; a call is its name, its arguments' text, and whether they are complete."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, bool]] = field(default_factory=list)

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Text(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallBegin(name):
                    self.calls.append((name, "", False))
                case CallArguments(text):
                    name, arguments, _ = self.calls[-1]
                    self.calls[-1] = (name, arguments + text, False)
                case CallEnd():
                    self.calls[-1] = (*self.calls[-1][:2], True)


def read(format_name: str | None, *pieces: str, **reading: bool) -> Found:
    tool_format = TOOL_FORMATS[format_name] if format_name else None
    reader = AnswerReader(Reading(tool_format=tool_format, functions=FUNCTIONS, **reading))
    found = Found()
    for piece in pieces:
        found.add(reader.push(piece))
    found.add(reader.flush())
    return found


CALL = '{"name": "f", "arguments": {"a": [1, {"b": "}]\\"{"}]}}'
ARGUMENTS = '{"a": [1, {"b": "}]\\"{"}]}'
CODER = (
    '<tool_call>\n<function=write>\n<parameter=path>\na "b"\n\n</parameter>\n<parameter=lines>\n3\n</parameter>\n'
    "<parameter=force>\nTrue\n</parameter>\n<parameter=tags>\n[1,\n2]\n</parameter>\n<parameter=mode>\nnull\n</parameter>\n"
    "<parameter=more>\n7\n</parameter>\n</function>\n</tool_call>"
)
CODER_ARGUMENTS = '{"path": "a \\"b\\"\\n", "lines": 3, "force": true, "tags": [1, 2], "mode": null, "more": "7"}'

GOOD: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [("f", ARGUMENTS)]),
    ("hermes", f"Well.\n\n<tool_call>{CALL}</tool_call>\n", "Well.", [("f", ARGUMENTS)]),
    ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [("f", ARGUMENTS)] * 2),
    ("hermes", f"a <tool_call>{CALL}</tool_call> b", "a b", [("f", ARGUMENTS)]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\":1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": {"x": "}"}}</tool_call>!', "!", [("f", "{}")]),
    ("hermes", '<tool_call>{"type": "x", "name": "get-time.v2"}</tool_call>', "", [("get-time.v2", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        "",
        [("f", '{"a": "</tool_call>"}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "id": 1, "arguments": {"a": "\\ud800é"}}',
        "",
        [("f", '{"a": "\\ud800\\u00e9"}')],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": nope}}</tool_call>', "", [("f", '{"a": nope}')]),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ("llama3_json", ' {"name": "f", "parameters": {}}; {"name": "f", "arguments": {}}', "", [("f", "{}")] * 2),
    ("llama3_json", 'So <|python_tag|>{"type": "function", "name": "f", "parameters": {}}', "So", [("f", "{}")]),
    ("mistral", f"[TOOL_CALLS][{CALL}]", "", [("f", ARGUMENTS)]),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", "", [("f", ARGUMENTS)] * 2),
    ("mistral", f"x[TOOL_CALLS]f[ARGS]{ARGUMENTS}", "x", [("f", ARGUMENTS)]),
    (
        "mistral",
        "[TOOL_CALLS]f{}[TOOL_CALLS]get-time.v2[CALL_ID]abcdefghi[ARGS]{}",
        "",
        [("f", "{}"), ("get-time.v2", "{}")],
    ),
    (
        "pythonic",
        "[f(a=1, b='x', c=[True, None]), get-time.v2()]",
        "",
        [("f", '{"a": 1, "b": "x", "c": [true, null]}'), ("get-time.v2", "{}")],
    ),
    ("pythonic", '<|tool_call_start|>[f(a="(\')")]<|tool_call_end|>Done', "Done", [("f", '{"a": "(\')"}')]),
    ("pythonic", "Hm <|python_start|>[f(a={'b': -1.5})]<|python_end|>", "Hm", [("f", '{"a": {"b": -1.5}}')]),
    ("qwen3_coder", CODER, "", [("write", CODER_ARGUMENTS)]),
    ("qwen3_coder", f"On it.\n{CODER}\n{CODER}", "On it.", [("write", CODER_ARGUMENTS)] * 2),
    ("qwen3_coder", "<function=f></function>", "", [("f", "{}")]),
    ("qwen3_coder", "<function=f>\n<parameter=a>\n</parame\n</parameter></function>", "", [("f", '{"a": "</parame"}')]),
]

NO_CALLS = [
    ("hermes", "a < b <tool"),
    ("hermes", " <tool_call>nothing</tool_call>\n"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments"'),
    ("hermes", '<tool_call>{"name": "f", "parameters": NaN, "id": 1}'),
    ("hermes", "</tool_call>"),
    ("llama3_json", '{"answer": 5}'),
    ("llama3_json", '{"name": "Bob", "age": 3}'),
    ("llama3_json", '<|python_tag|>print("hi")\n'),
    ("llama3_json", 'x {"name": "f", "parameters": {}}'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] what [TOOL_CALLS][1]"),
    ("mistral", "[TOOL_CALLS]f[ARGS]nothing"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f(a=b)]"),
    ("pythonic", "[f(a=1, a=2)]"),
    ("pythonic", "[f(**{'a': 1})]"),
    ("pythonic", "[f(a={1, 2})]"),
    ("pythonic", "[f(a=1e999)]"),
    ("pythonic", f"[f(a={'[' * 5000}{']' * 5000})]"),
    ("pythonic", "[f(a=1"),
    ("pythonic", "[link](https://example.org) and [f]"),
    ("qwen3_coder", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=f"),
    ("qwen3_coder", "a <function=\n> b"),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOOD)
def test_calls_are_found(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found = read(name, text)
    assert found.calls == [(function, arguments, True) for function, arguments in calls]
    assert found.content == content


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOOD)
def test_calls_are_found_character_by_character(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read(name, *text) == read(name, text)


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_text_as_it_was(name: str, text: str) -> None:
    assert read(name, text) == read(name, *text) == Found(content=text)


def test_every_format_has_cases() -> None:
    assert {name for name, *_ in GOOD} == {name for name, _ in NO_CALLS} == set(TOOL_FORMATS)


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": ',
    '{"a": "x"}',
    "}",
    "{",
    '"',
    "\\",
    " ",
    "\n",
    "word",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "f",
    "[",
    "]",
    "(",
    ")",
    "f(a=1)",
    ",",
    ";",
    "<|python_tag|>",
    "<function=f>",
    "<function=",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "<think>",
    "</think>",
    "é",
    '"name": "f"',
    CALL,
    CODER,
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@given(data=st.data(), name=st.sampled_from([None, *TOOL_FORMATS]), text=texts)
def test_no_cut_changes_what_is_found(data: st.DataObject, name: str | None, text: str) -> None:
    flags = {key: data.draw(st.booleans()) for key in ("has_thoughts", "is_thinking", "is_single")}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(name, text, **flags)
    assert read(name, *pieces, **flags) == whole
    assert read(name, *text, **flags) == whole


@given(text=texts)
def test_without_formats_and_thoughts_the_text_stays(text: str) -> None:
    assert read(None, *text) == Found(content=text)


@given(name=st.sampled_from(sorted(TOOL_FORMATS)), text=texts)
def test_complete_arguments_begin_and_end_as_an_object(name: str, text: str) -> None:
    for function, arguments, is_complete in read(name, text).calls:
        assert function in FUNCTIONS
        assert not is_complete or (arguments[0], arguments[-1]) == ("{", "}")


@given(st.dictionaries(st.sampled_from(["path", "other"]), st.text(st.characters(exclude_categories=["Cs"]))))
def test_strings_in_tags_come_back_as_they_were(values: dict[str, str]) -> None:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    ((_, arguments, is_complete),) = read("qwen3_coder", *f"<function=write>{inside}</function>").calls
    assert is_complete
    assert json.loads(arguments) == values


# Pieces as they come


def test_arguments_are_passed_on_as_they_come() -> None:
    reader = AnswerReader(Reading(tool_format=TOOL_FORMATS["hermes"], functions=FUNCTIONS))
    assert reader.push('Yes. <tool_call>{"name": "f", "argu') == [Text("Yes.")]
    assert reader.push('ments": {"a') == [CallBegin("f"), CallArguments('{"a')]
    assert reader.push('": "x') == [CallArguments('": "x')]
    assert reader.push('"}') == [CallArguments('"}'), CallEnd()]
    assert reader.push("}</tool_call>") == reader.flush() == []


def test_long_strings_in_tags_are_passed_on_as_they_come() -> None:
    reader = AnswerReader(Reading(tool_format=TOOL_FORMATS["qwen3_coder"], functions=FUNCTIONS))
    assert reader.push("<function=write><parameter=path>\none\n") == [
        CallBegin("write"),
        CallArguments('{"path": "one'),
    ]
    assert reader.push("two</par") == [CallArguments("\\ntwo")]
    assert reader.push("ameter></function>") == [CallArguments('"}'), CallEnd()]


def test_a_marker_is_held_only_for_as_long_as_it_may_be_one() -> None:
    reader = AnswerReader(Reading(tool_format=TOOL_FORMATS["hermes"], functions=FUNCTIONS))
    assert reader.push("a <tool") == [Text("a")]
    assert reader.push("box> b") == [Text(" <toolbox> b")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1'),
        ("qwen3_coder", "<function=f><parameter=a>1"),
        ("qwen3_coder", "<function=f><parameter=a>1</parameter></func"),
    ],
)
def test_a_call_that_is_cut_off_is_not_complete(name: str, text: str) -> None:
    ((function, arguments, is_complete),) = read(name, text).calls
    assert (function, is_complete) == ("f", False)
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)


def test_a_single_call_ends_the_answer() -> None:
    reader = AnswerReader(Reading(tool_format=TOOL_FORMATS["hermes"], functions=FUNCTIONS, is_single=True))
    parts = reader.push(f"<tool_call>{CALL}</tool_call>" * 2)
    assert parts == [CallBegin("f"), CallArguments(ARGUMENTS), CallEnd()]
    assert reader.is_done
    assert reader.push("more") == reader.flush() == []


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
def test_of_an_answer_that_must_be_calls_nothing_is_said_wherever_it_is_cut(name: str) -> None:
    call = CALL.replace("arguments", "parameters") if name == "llama3_json" else CALL
    text = {
        "hermes": f"<tool_call>\n{call}\n</tool_call>\n" * 2,
        "llama3_json": f"{call}; {call}",
        "mistral": f"[TOOL_CALLS][{call}, {call}]",
    }[name]
    for end in range(len(text) + 1):
        whole = read(name, text[:end], is_forced=True)
        assert whole == read(name, *text[:end], is_forced=True)
        assert whole.content == ""
        assert all(ARGUMENTS.startswith(arguments) for _, arguments, _ in whole.calls)
    assert whole.calls == [("f", ARGUMENTS, True)] * 2
    thought = read(name, "hm</think>" + text[:20], is_forced=True, has_thoughts=True, is_thinking=True)
    assert (thought.content, thought.reasoning) == ("", "hm")


# Thoughts


@pytest.mark.parametrize(
    ("text", "is_thinking", "expected"),
    [
        ("<think>\nhm\n</think>\n\nYes", False, Found("Yes", "hm")),
        ("\n<think>hm", False, Found("", "hm")),
        ("hm\n</think>\n\nYes", True, Found("Yes", "hm")),
        ("<think>hm</think>Yes", True, Found("Yes", "hm")),
        ("\n</think>\n Yes ", True, Found("Yes ", "")),
        ("hm </thin \n", True, Found("", "hm </thin")),
        ("Yes <think>hm</think>", False, Found("Yes <think>hm</think>")),
        (" <thin", False, Found(" <thin")),
        (
            "<think>a <tool_call></think>" + f"<tool_call>{CALL}</tool_call>",
            False,
            Found("", "a <tool_call>", [("f", ARGUMENTS, True)]),
        ),
    ],
)
def test_thoughts_are_told_from_the_answer(text: str, is_thinking: bool, expected: Found) -> None:
    assert read("hermes", text, has_thoughts=True, is_thinking=is_thinking) == expected
    assert read("hermes", *text, has_thoughts=True, is_thinking=is_thinking) == expected


def test_the_reader_says_where_thought_ends() -> None:
    reader = AnswerReader(Reading(has_thoughts=True))
    states = []
    for piece in ("<think>", "hm", "</thi", "nk>", "Yes"):
        reader.push(piece)
        states.append(reader.is_reasoning)
    assert states == [True, True, True, False, False]
    assert AnswerReader(Reading(has_thoughts=True, is_thinking=True)).is_reasoning


# Which format a template teaches


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("return a json object within <tool_call></tool_call> XML tags", "hermes"),
        ("<tool_call>\n<function=example_function_name>", "qwen3_coder"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        (
            'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
            "llama3_json",
        ),
        ("{{ '<|python_tag|>' }}", "llama3_json"),
        ("[func_name1(params_name1=params_value1...), func_name2(params)]", "pythonic"),
        ("<tool_call>name<arg_key>k</arg_key>", None),
        ("{{ tools }}", None),
    ],
)
def test_a_template_shows_its_format(template: str, name: str | None) -> None:
    found = find_tool_format(template)
    assert (found.name if found else None) == name
