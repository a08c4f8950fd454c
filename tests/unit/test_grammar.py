"""Grammars are compiled for the model's own tokens, kept, and refused with a sentence when they can't be used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mtplx.errors import OverloadedError, RequestError
from mtplx.sampling_params import MAX_GRAMMAR_BYTES, Grammar, SamplingParams
from mtplx.text import grammar as grammar_module
from mtplx.text import grammar_trial
from mtplx.text.grammar import MAX_KEPT, CompiledGrammar, GrammarCompiler
from mtplx.text.grammar_trial import Question, Verdict
from tests.fakes import EOS, VOCAB_SIZE, load_byte_tokenizer

NO_STOPS = np.array([], dtype=np.int64)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    tokenizer = load_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, eos_ids=frozenset({EOS}))


def accepts(compiled: CompiledGrammar, text: str) -> bool:
    matcher = compiled.start()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def schema(**keywords: object) -> Grammar:
    return Grammar("json_schema", json.dumps(keywords), "response_format.json_schema.schema")


def refusal(compiler: GrammarCompiler, grammar: Grammar) -> str:
    with pytest.raises(RequestError) as caught:
        compiler.compile(grammar)
    assert caught.value.param == grammar.param
    assert caught.value.status == 400
    return str(caught.value)


def test_each_kind_of_grammar_takes_its_own_texts(compiler: GrammarCompiler) -> None:
    by_schema = compiler.compile(schema(type="object", properties={"a": {"type": "integer"}}, required=["a"]))
    assert accepts(by_schema, '{"a": 5}')
    assert not accepts(by_schema, '{"a": "5"}')
    assert not accepts(by_schema, '{"a": 5')
    by_regex = compiler.compile(Grammar("regex", "(ab)+"))
    assert accepts(by_regex, "abab")
    assert not accepts(by_regex, "aba")
    by_lark = compiler.compile(Grammar("lark", 'start: "a" start | "b"'))
    assert accepts(by_lark, "aab")
    by_gbnf = compiler.compile(Grammar("lark", 'root ::= "a" root | "b"'))
    assert accepts(by_gbnf, "aab")
    assert not accepts(by_gbnf, "aa")


def test_whitespace_in_json_has_an_end(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(schema(type="array", items={"type": "integer"}))
    assert accepts(compiled, "[\n" + " " * 40 + "1]")
    assert not accepts(compiled, "[" + " " * 65 + "1]")


def test_matchers_of_one_grammar_share_nothing(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar("regex", "ab|cd"))
    one, other = compiled.start(), compiled.start()
    assert one.consume_tokens(list(b"a"))
    assert other.consume_tokens(list(b"cd"))
    assert one.consume_tokens(list(b"b"))


def test_grammars_and_refusals_are_kept(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Question] = []
    monkeypatch.setattr(grammar_module, "try_out", lambda question: asked.append(question) or Verdict(refusal="no"))
    for _ in range(2):
        assert refusal(compiler, Grammar("regex", "kept", "guided_regex")) == "guided_regex: no"
    assert refusal(compiler, Grammar("regex", "kept", "other")) == "other: no", "the field is the asker's own"
    assert len(asked) == 1
    for number in range(MAX_KEPT):
        refusal(compiler, Grammar("regex", f"kept {number}"))
    refusal(compiler, Grammar("regex", "kept"))
    assert len(asked) == MAX_KEPT + 2, "the one that nobody asked for is forgotten"


def test_a_machine_that_is_too_busy_refuses_nothing_for_good(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(question: Question) -> Verdict:
        raise subprocess.TimeoutExpired("a trial", 60.0)

    with monkeypatch.context() as patch:
        patch.setattr(grammar_module, "try_out", time_out)
        with pytest.raises(OverloadedError):
            compiler.compile(Grammar("regex", "a busy day"))
    assert accepts(compiler.compile(Grammar("regex", "a busy day")), "a busy day")


def test_a_trial_that_cannot_be_made_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where llguidance is broken: then it isn't the grammar's fault."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="can't be tried out"):
        grammar_trial.try_out(Question("regex", "a", [], VOCAB_SIZE))


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar("json_schema", "{", "guided_json"), "EOF"),
        (Grammar("json_schema", "[1]", "guided_json"), "Expecting object"),
        (schema(type="bogus"), "Invalid type: bogus"),
        (schema(type="integer", minimum=5, maximum=3), "Unsatisfiable"),
        (schema(type="array", uniqueItems=True), "uniqueItems"),
        ({"$ref": "http://localhost/schema.json"}, "does not fetch"),
        ({"$ref": "file:///etc/hostname"}, "does not fetch"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "#"}, "no text matches it"),
        (schema(type="string", pattern="(?=a)b"), "look-around"),
        (Grammar("regex", "("), "unclosed group"),
        (Grammar("regex", "[a&&b]"), "no text matches it"),
        (Grammar("lark", "start: nothing"), "nothing"),
        (Grammar("lark", "root ::= nothing"), "nothing"),
        (Grammar("lark", "start: <|no_such_token|>"), "unknown special token"),
        (Grammar("lark", "gibberish"), "gibberish"),
        (Grammar("lark", 'start: a\na[temperature=0.5]: "x"'), "temperature can't be set"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(
    compiler: GrammarCompiler, grammar: Grammar | dict[str, str], why: str
) -> None:
    if isinstance(grammar, dict):
        grammar = Grammar("json_schema", json.dumps(grammar))
    message = refusal(compiler, grammar)
    assert why in message
    assert "\n" not in message
    assert len(message) < 400


def _chain(length: int) -> str:
    rules = [f"a{number}: a{number + 1}" for number in range(length)]
    return "\n".join(["start: a0", *rules, f'a{length}: "x"'])


def _ref_chain(length: int) -> str:
    definitions: dict[str, object] = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(length)}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{length}": {"type": "integer"}}})


@pytest.mark.parametrize(
    "grammar",
    [
        pytest.param(Grammar("lark", _chain(3000)), id="overflows a stack"),
        pytest.param(Grammar("json_schema", _ref_chain(2500)), id="overflows a stack by references"),
        pytest.param(
            Grammar("lark", "start: A\nA: " + " & ".join(f"/.*a.{{{number}}}/" for number in range(10))),
            id="compiles for ever",
        ),
        pytest.param(
            Grammar("json_schema", json.dumps({"allOf": [{"pattern": f"a.{{{number}}}"} for number in range(60)]})),
            id="compiles for ever in JSON",
        ),
        pytest.param(
            schema(type="object", properties={f"p{number}": {"type": "null"} for number in range(4500)}),
            id="thousands of properties",
        ),
        pytest.param(Grammar("lark", "start: " + " ".join(['"a"?'] * 3000)), id="slow at each token"),
        pytest.param(Grammar("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000), id="brackets"),
        pytest.param(Grammar("regex", "(" * 50_000 + "a" + ")" * 50_000), id="groups"),
        pytest.param(Grammar("json_schema", '{"items":' * 9000 + "{}" + "}" * 9000), id="nested schemas"),
        pytest.param(Grammar("lark", "root ::= " + "(" * 50_000), id="brackets in GBNF"),
    ],
)
def test_hostile_grammars_are_refused_and_harm_nobody(compiler: GrammarCompiler, grammar: Grammar) -> None:
    assert refusal(compiler, grammar)
    assert accepts(compiler.compile(Grammar("regex", "ok")), "ok")


@pytest.mark.parametrize(
    "keywords",
    [
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
        {"type": "string", "maxLength": 10**9},
        {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1000)}},
        {"enum": [f"value {number}" for number in range(5000)]},
        {"type": "string", "pattern": "^((a{0,100}){0,100}){0,100}$"},
    ],
)
def test_what_only_looks_hostile_is_served(compiler: GrammarCompiler, keywords: dict[str, object]) -> None:
    assert compiler.compile(schema(**keywords)).start().compute_bitmask()


def test_a_source_has_a_largest_size() -> None:
    Grammar("regex", "a" * MAX_GRAMMAR_BYTES)
    with pytest.raises(RequestError, match="over 131072") as caught:
        Grammar("regex", "a" * (MAX_GRAMMAR_BYTES + 1), "guided_regex")
    assert caught.value.param == "guided_regex"
    with pytest.raises(RequestError, match="not valid Unicode"):
        Grammar("regex", "\ud800")


def test_ignoring_the_end_contradicts_a_grammar() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(grammar=Grammar("regex", "a"), ignore_eos=True)
    assert caught.value.param == "ignore_eos"


def test_a_model_that_cannot_end_or_begin_refuses_by_name(tmp_path: Path) -> None:
    tokenizer = load_byte_tokenizer(tmp_path)
    endless = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, eos_ids=frozenset())
    assert "no end-of-sequence token" in refusal(endless, Grammar("regex", "a"))
    few_letters = GrammarCompiler(tokenizer, vocab_size=60, eos_ids=frozenset({3}))  # byte 60 and above are unknown
    assert "no token of this model could begin" in refusal(few_letters, Grammar("regex", "[a-z]+"))
    assert accepts(few_letters.compile(Grammar("regex", "12")), "12")


def test_an_end_token_is_never_text(tmp_path: Path) -> None:
    """Here byte 97 ends an answer, although the tokenizer takes it for a letter."""
    compiler = GrammarCompiler(load_byte_tokenizer(tmp_path), vocab_size=VOCAB_SIZE, eos_ids=frozenset({97}))
    matcher = compiler.compile(Grammar("regex", "x[a-z]")).start()
    assert matcher.consume_token(ord("x"))
    assert not matcher.validate_tokens([97])
    assert matcher.validate_tokens([98])
