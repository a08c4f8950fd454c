"""Whatever a model writes under a grammar of calls is read as calls that fit their schemas, special tokens or not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema_rs
import pytest

from mtplx.errors import RequestError
from mtplx.sampling_params import Grammar
from mtplx.text.grammar import CompiledGrammar, GrammarCompiler
from mtplx.text.reader import AnswerReader, Reading
from mtplx.text.tokenizer import Tokenizer
from mtplx.text.tools.constrained import MAX_CALLS, Spelling, forced_calls, forced_format, rules_of, whole_answer
from mtplx.text.tools.formats import TOOL_FORMATS
from mtplx.text.tools.functions import Function
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd, Reasoning
from tests.fakes import EOS, VOCAB_SIZE, load_byte_tokenizer
from tests.unit.vocabularies import marker_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "boolean"},
        "b": {"type": "array", "items": {"enum": ["x", "</tool_call>"]}, "maxItems": 2},
    },
    "required": ["a", "b"],
}
FUNCTIONS = {"f": Function("f", None, SCHEMA), "g": Function("g")}


@pytest.fixture(scope="module", params=["plain", "special"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return load_byte_tokenizer(folder) if request.param == "plain" else marker_tokenizer(folder)


def written(tokenizer: Tokenizer, grammar: CompiledGrammar, reading: Reading, seed: int) -> str:
    """What noise writes under the grammar; thoughts end soon."""
    matcher, luck, tokens = grammar.start(), random.Random(seed), []
    close = tokenizer.special_tokens_among(["</think>"]).get("</think>")
    pending = list(b"hm") + ([close] if close else list(b"</think>")) if reading.is_thinking else []
    while not matcher.is_stopped():
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(VOCAB_SIZE) if mask[token // 8] >> token % 8 & 1]
        token = pending.pop(0) if pending else luck.choice(allowed)
        assert token in allowed
        assert matcher.consume_token(token)
        if token != EOS:
            tokens.append(token)
    return tokenizer.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize("name", sorted({forced_format(each).name for each in TOOL_FORMATS.values()}))
@pytest.mark.parametrize("is_thinking", [False, True])
@pytest.mark.parametrize("is_single", [False, True])
def test_what_is_written_is_read_as_calls(tokenizer: Tokenizer, name: str, is_thinking: bool, is_single: bool) -> None:
    tool_format = TOOL_FORMATS[name]
    reading = Reading(tool_format=tool_format, functions=FUNCTIONS, has_thoughts=is_thinking, is_thinking=is_thinking)
    spelling = Spelling(tokenizer.special_tokens_among(reading.markers))
    rules = forced_calls(tool_format, FUNCTIONS.values(), spelling, is_single=is_single)
    grammar = whole_answer(
        {"calls": rules}, "tools", spelling=spelling, has_thoughts=is_thinking, is_thinking=is_thinking
    )
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, eos_ids=frozenset({EOS}))
    compiled = compiler.compile(grammar)
    for seed in range(5):
        reader = AnswerReader(reading)
        parts = reader.push(written(tokenizer, compiled, reading, seed)) + reader.flush()
        if is_thinking:
            assert parts.pop(0) == Reasoning("hm")
        assert 1 <= len(parts) // 3 <= (1 if is_single else MAX_CALLS)
        for begin, arguments, end in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            assert isinstance(begin, CallBegin)
            assert isinstance(arguments, CallArguments)
            assert end == CallEnd()
            value = json.loads(arguments.text)
            assert jsonschema_rs.is_valid(dict(FUNCTIONS[begin.name].parameters), value)
            assert value.keys() <= set(SCHEMA["properties"])
            assert begin.name == "f" or value == {}


def test_a_grammar_with_rules_of_its_own_has_none_to_give() -> None:
    assert rules_of(Grammar("regex", r"a/b\/c\\/d")) == r"said: /a\/b\/c\\\/d/"
    assert (
        json.loads(rules_of(Grammar("json_schema", '{"type": "null"}')).removeprefix("said: %json "))["type"] == "null"
    )
    with pytest.raises(RequestError) as caught:
        rules_of(Grammar("lark", 'start: "a"', "guided_grammar"))
    assert caught.value.param == "guided_grammar"
