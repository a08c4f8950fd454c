"""Messages to prompts: what templates may use, what they may not, and how requests are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.errors import ModelError, RequestError
from mtplx.text.chat import ChatTemplate
from mtplx.text.messages import normalize_messages

USER = [{"role": "user", "content": "hi"}]
CHATML = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENS, now=lambda: datetime(2025, 3, 9))


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


# Where the template comes from


def test_a_template_is_read_from_the_config_with_its_tokens(tmp_path: Path) -> None:
    write_config(tmp_path, {"chat_template": CHATML, "eos_token": {"content": "</s>"}})
    assert ChatTemplate.load(tmp_path).render(USER) == "<|user|>hi</s>\n<|assistant|>"
    assert ChatTemplate.load(tmp_path).render(USER, add_generation_prompt=False) == "<|user|>hi</s>\n"


@pytest.mark.parametrize(
    "named",
    [
        [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}],
        [{"name": "only", "template": "yes"}],
    ],
)
def test_the_default_of_named_templates_is_used(tmp_path: Path, named: list[dict[str, str]]) -> None:
    assert ChatTemplate.load(write_config(tmp_path, {"chat_template": named})).render(USER) == "yes"


def test_a_jinja_file_comes_before_the_config(tmp_path: Path) -> None:
    write_config(tmp_path, {"chat_template": "config"})
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ChatTemplate.load(tmp_path).render(USER) == "file"


def test_a_model_without_a_template_refuses_messages_and_says_why(tmp_path: Path) -> None:
    chat = ChatTemplate.load(tmp_path)
    assert not chat.is_present
    with pytest.raises(RequestError, match="no chat template") as caught:
        chat.render(USER)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "broken",
    [
        "{% for %}",
        "{{ x | no_such_filter }}",
        "{% break %}",
        "{% generation %}",
        [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}],
        [{"nam": "default"}],
        {"default": "x"},
        [{"name": "default", "template": 3}],
        7,
    ],
)
def test_a_broken_template_is_refused_at_load(tmp_path: Path, broken: object) -> None:
    with pytest.raises(ModelError, match="template"):
        ChatTemplate.load(write_config(tmp_path, {"chat_template": broken}))


def test_a_template_file_that_is_not_text_is_refused_at_load(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja can't be read"):
        ChatTemplate.load(tmp_path)


# What templates may use


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ unk_token }}", "<s>hi"),
        ("{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        (
            "{% for i in 'abcde' %}{% if i == 'b' %}{% continue %}{% endif %}"
            "{% if i == 'd' %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "ac",
        ),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("{{ {'é': '<&>'} | tojson }}", '{"é": "<&>"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ strftime_now('%d %b %Y') }}", "09 Mar 2025"),
        ("{% if tools is not none or documents is not none %}never{% endif %}-", "-"),
        ("  {% if true %}\n  a\n  {% endif %}\n", "  a\n"),
        ("{{ dict(a=1).a }}{{ messages[0].content | trim | upper }}", "1HI"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(messages[-1].role) }}", "[user]"),
    ],
)
def test_a_template_may_use(source: str, expected: str) -> None:
    assert template(source).render(USER) == expected


def test_what_a_template_raises_reaches_the_client() -> None:
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('a system message must come first') }}{% endif %}"
    with pytest.raises(RequestError, match=r"a system message must come first$") as caught:
        template(source).render(USER)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ nothing.at_all }}",
        "{{ messages[0].content.nothing.at_all }}",
        "{% include 'tokenizer_config.json' %}",
        "{% import 'os' as os %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ self.__init__.__globals__.__builtins__ }}",
        "{{ dict.__mro__[0] }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_refusal_without_details(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        template(source).render(USER)
    assert str(caught.value) == "the model's chat template can't render these messages"
    assert caught.value.param == "messages"


# What clients may send


def test_text_parts_are_joined_by_newlines_and_nulls_dropped() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    message = {"role": "user", "content": parts, "name": None, "annotations": [], "tool_calls": ()}
    assert normalize_messages([message]) == [{"role": "user", "content": "one\ntwo"}]
    assert message["content"] is parts, "the caller's message is left as it was"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "messages.1.content.1.type",
        ),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.1.content.0.text"),
        ({"role": "user", "content": ["a"]}, "messages.1.content.0"),
        ({"role": "user", "content": 7}, "messages.1.content"),
        ({"role": "user", "content": None}, "messages.1.content"),
        ({"role": "assistant"}, "messages.1.content"),
        ({"role": "wizard", "content": "a"}, "messages.1.role"),
        ({"role": ["user"], "content": "a"}, "messages.1.role"),
        ({"content": "a"}, "messages.1.role"),
        ("hi", "messages.1"),
    ],
)
def test_a_malformed_message_is_refused_by_the_path_of_its_field(message: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        template(CHATML).render([*USER, message])
    assert caught.value.param == param


def test_no_messages_are_refused() -> None:
    with pytest.raises(RequestError) as caught:
        template(CHATML).render([])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("field", ["name", "tool_calls", "surprise"])
def test_a_field_that_the_template_never_reads_is_refused_not_dropped(field: str) -> None:
    with pytest.raises(RequestError) as caught:
        template(CHATML).render([{"role": "assistant", "content": "a", field: "x"}])
    assert caught.value.param == f"messages.0.{field}"


def test_a_field_named_in_the_templates_words_alone_is_not_read() -> None:
    source = "{# name #}You are named so. the name\n{{ 'an assistant named' }}" + CHATML
    with pytest.raises(RequestError, match=r"no name$") as caught:
        template(source).render([*USER, {"role": "user", "content": "a", "name": "Ann"}])
    assert caught.value.param == "messages.1.name"


@pytest.mark.parametrize(
    "read", ["m.name", "m['name']", "m.get('name')", "messages | map(attribute='name') | first", "'name' in m"]
)
def test_every_way_of_reading_a_field_counts(read: str) -> None:
    source = f"{{% for m in messages %}}{{{{ {read} }}}}{{% endfor %}}"
    assert template(source).render([{"role": "user", "content": "a", "name": "Ann"}]) in ("Ann", "True")


def test_a_field_that_the_template_reads_is_passed_on() -> None:
    source = "{% for m in messages %}{{ m.name or m.tool_calls[0].id }}{% endfor %}"
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_5", "function": {"name": "f"}}]}
    assert template(source).render([{"role": "user", "content": "a", "name": "Ann"}, calls]) == "Anncall_5"


def test_a_developer_is_a_system_to_templates_that_know_no_developer() -> None:
    messages = [{"role": "developer", "content": "be brief"}]
    assert template(CHATML).render(messages).startswith("<|system|>be brief")
    assert template(CHATML + "{# developer #} developer").render(messages).startswith("<|system|>")
    knows = CHATML + "{{ '' if messages[0].role == 'developer' }}"
    assert template(knows).render(messages).startswith("<|developer|>be brief")
    assert messages[0]["role"] == "developer"


# Where the prompt ends


def test_a_last_message_that_goes_on_ends_where_its_text_does() -> None:
    begun = {"role": "assistant", "content": [{"type": "text", "text": "The"}, {"type": "text", "text": "river "}]}
    going_on = [*USER, begun]
    kept = template(CHATML).render(going_on, add_generation_prompt=False, continue_final_message=True)
    assert kept.endswith("The\nriver ")
    trimming = CHATML.replace("['content']", "['content'] | trim")
    trimmed = template(trimming).render(going_on, add_generation_prompt=False, continue_final_message=True)
    assert trimmed.endswith("The\nriver"), "as the template writes all messages"


@pytest.mark.parametrize(
    ("source", "last"),
    [
        (CHATML, {"role": "user", "content": "hi"}),
        (CHATML, {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}),
        ("{{ messages[0].content }}", {"role": "assistant", "content": "unseen"}),
    ],
)
def test_a_last_message_that_can_not_go_on_is_refused(source: str, last: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        template(source).render([*USER, last], add_generation_prompt=False, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


# Against the reference

RICH = """\
{%- set ns = namespace(system='', users=0) -%}
{%- macro turn(message) -%}<|{{ message.role }}|>{{ message['content'] | trim }}{%- endmacro -%}
{%- for message in messages -%}
    {%- if loop.first and message.role == 'system' -%}
        {%- set ns.system = message.content -%}
        {%- continue -%}
    {%- endif -%}
    {%- if message.role == 'user' -%}{%- set ns.users = ns.users + 1 -%}{%- endif -%}
    {%- if ns.users > 2 -%}{{ 'cut' }}{%- break -%}{%- endif -%}
    {% if message.role == 'assistant' %}
  {% generation %}{{ turn(message) }}{{ eos_token }}{% endgeneration %}
    {% else %}
{{ turn(message) }}
    {% endif %}
{%- endfor %}
{{ ns.system }} {{ messages | length }} {{ messages[-1] | tojson }} {{ messages | map(attribute='role') | list }}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""

conversations = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()}),
    min_size=1,
    max_size=5,
)


def reference(chat: ChatTemplate, messages: list[dict[str, str]], **end: bool) -> str:
    """What transformers makes of the same template; imported here, since importing it takes half a second."""
    from transformers.utils.chat_template_utils import render_jinja_template

    (text,), _ = render_jinja_template(
        [messages],
        chat_template=chat.source,
        **end,
        **chat._special_tokens,
    )
    return str(text)


@settings(deadline=None, max_examples=50)
@given(messages=conversations, add=st.booleans())
def test_a_rich_template_renders_as_in_transformers(messages: list[dict[str, str]], add: bool) -> None:
    chat = template(RICH)
    expected = reference(chat, messages, add_generation_prompt=add)
    assert chat.render(messages, add_generation_prompt=add) == expected


@pytest.mark.real_model
@settings(deadline=None, max_examples=50)
@given(messages=conversations, add=st.booleans())
def test_the_default_models_prompts_are_those_of_transformers(
    default_model_folder: Path, messages: list[dict[str, str]], add: bool
) -> None:
    chat = ChatTemplate.load(default_model_folder)
    expected = reference(chat, messages, add_generation_prompt=add)
    assert chat.render(messages, add_generation_prompt=add) == expected


@settings(deadline=None, max_examples=50)
@given(messages=conversations, begun=st.text())
@pytest.mark.parametrize("source", [CHATML, CHATML.replace("['content']", "['content'] | trim")])
def test_a_message_goes_on_as_in_transformers(source: str, messages: list[dict[str, str]], begun: str) -> None:
    chat, going_on = template(source), [*messages, {"role": "assistant", "content": begun}]
    expected = reference(chat, going_on, add_generation_prompt=False, continue_final_message=True)
    assert chat.render(going_on, add_generation_prompt=False, continue_final_message=True) == expected
