"""Whatever can be written under a schema is JSON that it describes; what can't be kept to is refused in words."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from mtplx.errors import RequestError
from mtplx.sampling_params import Grammar
from mtplx.text.grammar import CompiledGrammar, GrammarCompiler
from mtplx.text.kept_schemas import UnkeptSchemaError, kept_grammar
from tests.fakes import EOS, VOCAB_SIZE, load_byte_tokenizer

Schema = dict[str, Any]
INTEGER: Schema = {"type": "integer"}
ESCAPING = rb"\"u/nA01"  # what might pass for something else


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    tokenizer = load_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, eos_ids=frozenset({EOS}))


def compiled(compiler: GrammarCompiler, schema: Schema) -> CompiledGrammar:
    return compiler.compile(Grammar("json_schema", json.dumps(schema), "guided_json"))


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    matcher = grammar.start()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def written(grammar: CompiledGrammar, seed: int, eager: bytes = ESCAPING) -> str:
    """What noise writes under the grammar, every second time one of `eager` where it can."""
    matcher, luck, text = grammar.start(), random.Random(seed), bytearray()
    while not matcher.is_stopped():
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(VOCAB_SIZE) if mask[token // 8] >> token % 8 & 1]
        wished = [token for token in allowed if token in eager] if luck.random() < 0.5 else []
        token = luck.choice(wished or allowed)
        assert matcher.consume_token(token)
        if token != EOS:
            text.append(token)
    return text.decode()


PATTERNS = [
    *(r'[^"]', r"[^\\]", r"[^/\\]", r'[^"\n]', r"[^a-z\\]", r"[\x00-\x1f]", r"[\x00-\x20]", r"[\x01-\x1f]", r"[\n\t]"),
    *(r"\S", r"\W", r"\D", r".", r"(.|\n)", r'([^"]|[\n])', r"([\x00-\x0f]|[\x10-\x1f])", r"[^\]\\]", r"[]\\x]"),
    *(r"[^]\"]", r"[^\-\[]", r"[\w.-]", r"[^\x00\\]", r"[a-z\n]", r"\\", r'\\"', r"\[[^\\]\]", r"[^\\][^\"]", r"[^\D]"),
]


def test_what_a_pattern_takes_is_what_it_says(compiler: GrammarCompiler) -> None:
    """All patterns in one list, which spares a compilation for each."""
    strings = [{"type": "string", "pattern": f"^({pattern}){{1,3}}$"} for pattern in PATTERNS]
    schema = {"type": "array", "prefixItems": strings, "minItems": len(strings), "maxItems": len(strings)}
    grammar = compiled(compiler, schema)
    for seed in range(20):
        for pattern, text in zip(PATTERNS, json.loads(written(grammar, seed)), strict=True):
            assert re.fullmatch(f"(?a:{pattern}){{1,3}}", text), (pattern, text)


def test_classes_of_properties_are_kept_to_as_well(compiler: GrammarCompiler) -> None:
    """Python has no such classes: a backslash and a quote are punctuation, and no control characters."""
    grammar = compiled(compiler, {"type": "string", "pattern": r"^(\P{Po}|\p{Cc}|\PP|[[:cntrl:]])$"})
    assert [text for text in ('"\\\\"', '"\\""', '"."') if accepts(grammar, text)] == []
    assert all(accepts(grammar, text) for text in ('"\\n"', '"a"', '"é"', '"+"'))


UNWRITTEN = ["^\\x00$", "^(\\u0007|[^\\\\])$", "^\0$", "\\x{0}", "\\u{01b}", "a\\x7f", "\\a", "\\v", "\\U0000001f"]


@pytest.mark.parametrize("pattern", UNWRITTEN)
def test_control_characters_in_patterns_that_are_never_written_are_refused(pattern: str) -> None:
    with pytest.raises(UnkeptSchemaError, match=r"control .*: properties\.a\.pattern$"):
        kept_grammar("json_schema", json.dumps({"properties": {"a": {"pattern": pattern}}}))
    with pytest.raises(UnkeptSchemaError, match=r": patternProperties$"):
        kept_grammar("json_schema", json.dumps({"patternProperties": {pattern: {}}}))


def test_literals_are_written_as_they_are(compiler: GrammarCompiler) -> None:
    """Without an escape for them, some control characters would vanish."""
    literal = {"a\x1b": ['\b\t\n\f\r"\\/é', "😀"]}
    assert json.loads(written(compiled(compiler, {"const": literal}), 0)) == literal
    for character in "\0\x07\x0b\x1f\x7f":
        with pytest.raises(UnkeptSchemaError, match=r"control .*: enum\.1\.a$"):
            kept_grammar("json_schema", json.dumps({"enum": [1, {"a": f"b{character}c"}]}))


OPEN_OBJECTS: list[Schema] = [
    {"properties": {"A": INTEGER, "n": INTEGER}, "required": ["A"], "additionalProperties": {"type": "null"}},
    {"patternProperties": {"^[A0]": {"type": "null"}}, "additionalProperties": {"enum": [1]}, "minProperties": 1},
    {"properties": {"A": INTEGER}, "patternProperties": {'^[^"]$': {"type": "null"}}, "additionalProperties": False},
    {"required": ["A"], "patternProperties": {"^A": {"enum": [1]}}, "additionalProperties": False, "minProperties": 2},
]


@pytest.mark.parametrize("schema", OPEN_OBJECTS)
def test_a_key_that_is_not_named_never_passes_for_one_that_is(compiler: GrammarCompiler, schema: Schema) -> None:
    bounded = {"type": "object", "maxProperties": 4, **schema} if "properties" not in schema else schema
    grammar, validator = compiled(compiler, {"type": "object", **bounded}), Draft202012Validator(schema)
    assert not accepts(grammar, '{"A":1,"\\u0041":null}')
    for seed in range(10):
        text = written(grammar, seed, eager=ESCAPING + b"}")
        assert validator.is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": 2**53}, "const"),
        ({"enum": [1, -(2**53) - 1]}, r"enum\.1"),
        ({"const": {"a": [1, {"b": 10**400}]}}, r"const\.a\.1\.b"),
        ({"items": {"type": "integer", "minimum": 10**30}}, r"items\.minimum"),
        ({"properties": {"const": {"exclusiveMaximum": 2**53}}}, r"properties\.const\.exclusiveMaximum"),
        ({"$defs": {"x": {"maximum": -1e30}}}, r"\$defs\.x\.maximum"),
        ({"anyOf": [{}, {"multipleOf": 2**60}]}, r"anyOf\.1\.multipleOf"),
        ({"prefixItems": [{"exclusiveMinimum": -(2**63)}]}, r"prefixItems\.0\.exclusiveMinimum"),
    ],
)
def test_numbers_that_would_be_changed_are_refused_with_their_place(schema: Schema, place: str) -> None:
    with pytest.raises(UnkeptSchemaError, match=rf"2\^53 .*: {place}$"):
        kept_grammar("json_schema", json.dumps(schema))
    with pytest.raises(UnkeptSchemaError, match=f": {place}$"):
        kept_grammar("lark", f'start: "%json {{}}" // %json {{"\n a\na: %json\n{json.dumps(schema)}')


def test_numbers_up_to_there_are_exact(compiler: GrammarCompiler) -> None:
    least, most = -(2**53) + 1, 2**53 - 1
    grammar = compiled(compiler, {"enum": [least, most]})
    assert {written(grammar, seed, b"-") for seed in range(8)} == {str(least), str(most)}
    above = compiled(compiler, {**INTEGER, "exclusiveMinimum": most})
    assert not accepts(above, str(most))
    assert accepts(above, str(most + 1))


@pytest.mark.parametrize(("keyword", "bound"), [("maximum", 2**63 - 1), ("maximum", 1e30), ("exclusiveMaximum", 2**63)])
def test_an_upper_bound_that_no_integer_reaches_is_kept_to(
    compiler: GrammarCompiler, keyword: str, bound: float
) -> None:
    grammar = compiled(compiler, {**INTEGER, "minimum": 2**53 - 1, keyword: bound})
    assert accepts(grammar, str(2**63 - 1))
    assert not accepts(grammar, str(2**63))


def test_of_keys_that_are_not_named_one_counts(compiler: GrammarCompiler) -> None:
    assert not accepts(compiled(compiler, {"type": "object", "minProperties": 1}), "{}")
    by_two = compiled(compiler, {"type": "object", "required": ["a"], "minProperties": 2})
    assert [accepts(by_two, text) for text in ('{"a":1}', '{"a":1,"a":1}', '{"a":1,"b":1}')] == [False, False, True]
    for schema in ({"minProperties": 2}, {"minProperties": 3, "required": ["a", "a"]}):
        with pytest.raises(RequestError, match=r"repeat each other.*: items\.minProperties$") as caught:
            compiled(compiler, {"items": schema})
        assert caught.value.param == "guided_json"


def test_properties_may_have_the_names_of_keywords() -> None:
    named = {"minimum": INTEGER, "enum": INTEGER, "pattern": {"const": "\\x00"}, "minProperties": {"default": 2**60}}
    kept = json.loads(kept_grammar("json_schema", json.dumps({"properties": named, "title": "[^a]"})))
    assert (kept["properties"], kept["title"]) == (named, "[^a]")


def test_what_is_no_schema_is_left_as_it_is() -> None:
    for text in ("", "[1]", "{", '{"x-guidance": 1}', '{"const": ' + "1" * 5000 + "}", '{"items":' * 9000, "true"):
        assert kept_grammar("json_schema", text) == text
    assert kept_grammar("regex", '[^"]') == '[^"]'
    for text in ('start: "%json {}" /%json {}/ // %json {}', "start: %json true", 'start: %json {"a"', "# %json {}"):
        assert kept_grammar("lark", text) == text


def test_schemas_inside_a_grammar_are_kept_to(compiler: GrammarCompiler) -> None:
    source = 'start: "a" %json { "type": "string", "pattern": "^[^\\"]$" } b\nb: %json {"const": "%json {}"}'
    grammar = compiler.compile(Grammar("lark", source))
    assert accepts(grammar, 'a"x""%json {}"')
    assert not accepts(grammar, 'a"\\"""%json {}"')


def test_a_place_that_is_no_text_is_told_all_the_same(compiler: GrammarCompiler) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(Grammar("json_schema", '{"properties":{"\\ud800' + "x" * 500 + '":{"const":1e300}}}'))
    assert len(str(caught.value).encode()) < 300
