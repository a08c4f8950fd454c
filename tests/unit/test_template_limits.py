"""A chat template can't hang or fill the server: not while it is compiled, tried, or given a large conversation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import ModelError, OverloadedError, RequestError
from mtplx.text.apart import OVER_LIMIT, render_apart
from mtplx.text.chat import ChatTemplate
from mtplx.text.messages import MAX_CHARACTERS_HERE, MAX_PARTS_HERE, is_large
from tests.fakes import write_byte_tokenizer

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = "{% set n = namespace(a='x' * 999) %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def write_template(folder: Path, source: str) -> Path:
    write_byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(source)
    return folder


@pytest.mark.parametrize("source", [LOOPS, DOUBLES])
def test_what_takes_too_long_or_too_much_is_ended(source: str) -> None:
    with pytest.raises(RequestError, match=r"takes more than 1 seconds or 1024 MiB") as caught:
        render_apart(source, {"messages": HI}, cpu_s=1)
    assert (caught.value.code, caught.value.param) == (OVER_LIMIT, "messages")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ [1, 2] * 10**9 }}",
        "{{ 10 ** (10 ** 8) }}",
        "{% set n = 10**8 %}{{ 'x' * n }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__name__ }}",
        "{% include '/etc/passwd' %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_what_makes_much_of_little_or_looks_around_fails_at_once(source: str) -> None:
    with pytest.raises(RequestError, match="can't render these messages"):
        ChatTemplate(source, {}).render(HI)


@pytest.mark.parametrize(("source", "text"), [("{{ 'ab' * 3 }}", "ababab"), ("{{ 2 ** 10 * 3 }}", "3072")])
def test_products_and_powers_of_usual_size_stay(source: str, text: str) -> None:
    assert ChatTemplate(source, {}).render(HI) == text


def test_a_model_whose_template_never_ends_is_refused_at_its_start(tmp_path: Path) -> None:
    folder = write_template(tmp_path, DOUBLES)
    with pytest.raises(ModelError, match=r"takes more than .*: not even for a few words"):
        ChatTemplate.load(folder, is_trusted=False)


def test_a_busy_machine_refuses_no_conversation_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*_: object, **limits: object) -> None:
        raise subprocess.TimeoutExpired("a template", 60.0)

    monkeypatch.setattr(subprocess, "run", time_out)
    with pytest.raises(OverloadedError, match="too busy"):
        render_apart(PLAIN, {"messages": HI})


@pytest.mark.parametrize("source", [PLAIN, "{{ raise_exception('never') }}", "{{ messages[7].content }}"])
def test_a_template_that_refuses_or_fails_on_a_few_words_is_taken(tmp_path: Path, source: str) -> None:
    assert ChatTemplate.load(write_template(tmp_path, source), is_trusted=False).is_present


def test_a_broken_template_is_refused_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="broken at line 1"):
        ChatTemplate.load(write_template(tmp_path, "{% for %}"), is_trusted=False)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (HI * MAX_PARTS_HERE, False),
        (HI * (MAX_PARTS_HERE + 1), True),
        ([{"role": "user", "content": "x" * MAX_CHARACTERS_HERE}], False),
        ([{"role": "user", "content": "x" * (MAX_CHARACTERS_HERE + 1)}], True),
        ([{"role": "user", "content": [{"type": "text", "text": "x" * MAX_CHARACTERS_HERE}]}], True),
        ([{"role": "assistant", "content": None, "tool_calls": [{}] * MAX_PARTS_HERE}], True),
    ],
)
def test_conversations_are_large_by_length_and_number(messages: list[dict[str, Any]], expected: bool) -> None:
    assert is_large(messages) == expected


def test_a_large_conversation_is_the_same_text() -> None:
    messages = [{"role": "user", "content": f'é "{k}" \U0001f600'} for k in range(MAX_PARTS_HERE + 1)]
    assert ChatTemplate(PLAIN, {}).render(messages) == "".join(f"user: {m['content']}\n" for m in messages)
    with pytest.raises(RequestError, match="refuses these messages: too many"):
        ChatTemplate("{{ raise_exception('too many') }}", {}).render(messages)


def test_the_child_reads_nothing_of_the_request_but_json() -> None:
    assert render_apart(PLAIN, {"messages": json.loads(json.dumps(HI))}) == "user: hi\n"
