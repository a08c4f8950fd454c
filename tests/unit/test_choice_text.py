"""Calls and thoughts out of tokens: markers that are special tokens, tokens that come several at a time, counts."""

from __future__ import annotations

import pytest

from mtplx.batching.state import FinishReason
from mtplx.sampling_params import SamplingParams
from mtplx.server.choice_text import ChoiceText, Delta
from mtplx.server.engine import SequenceOutput
from mtplx.text.reader import Reading
from mtplx.text.tokenizer import Tokenizer
from mtplx.text.tools.formats import HERMES
from mtplx.text.tools.functions import Function
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd, Part, Reasoning, Text
from tests.fakes import EOS
from tests.unit.vocabularies import marker_tokenizer

OPEN_ID, CLOSE_ID, THINK_ID = 257, 258, 259
BODY = b'{"name": "f", "arguments": {"a": 1}}'
CALL = [OPEN_ID, *BODY, CLOSE_ID]
CALL_PARTS = [CallBegin("f"), CallArguments('{"a": 1}'), CallEnd()]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A byte tokenizer whose special tokens are markers."""
    return marker_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def push(
    tokenizer: Tokenizer, *steps: list[int], reading: Reading | None = None, ends: bool = True, **params: int
) -> list[Delta]:
    """The deltas of these steps, up to the one that ends the choice."""
    choice = ChoiceText(0, tokenizer, SamplingParams(**params), frozenset({EOS}), continues=False, reading=reading)
    deltas = []
    for number, token_ids in enumerate(steps):
        reason = FinishReason.STOP if ends and number == len(steps) - 1 else None
        deltas.append(choice.push(SequenceOutput(0, tuple(token_ids), (), reason)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def parts(deltas: list[Delta]) -> list[Part]:
    return [part for delta in deltas for part in delta.parts or ()]


def hermes(**reading: bool) -> Reading:
    return Reading(tool_format=HERMES, functions={"f": Function("f")}, **reading)


def test_markers_reach_the_reader_though_special_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    (delta,) = push(tokenizer, [*CALL, EOS], reading=hermes())
    assert list(delta.parts or ()) == CALL_PARTS
    (delta,) = push(tokenizer, [*CALL, EOS])
    assert (delta.text.encode(), delta.parts) == (BODY, None), "without tools they are hidden"


def test_steps_of_one_token_and_of_many_give_the_same(tokenizer: Tokenizer) -> None:
    tokens = [*b"A ", *CALL, *b" B", EOS]
    many = parts(push(tokenizer, tokens, reading=hermes()))
    one = parts(push(tokenizer, *([token] for token in tokens), reading=hermes()))
    assert many == [Text("A"), *CALL_PARTS, Text(" B")]
    assert "".join(part.text for part in one if isinstance(part, CallArguments)) == '{"a": 1}'
    assert "".join(part.text for part in one if isinstance(part, Text)) == "A B"


def test_the_only_call_ends_the_choice_at_its_last_token(tokenizer: Tokenizer) -> None:
    (delta,) = push(tokenizer, [*CALL, *CALL], reading=hermes(is_single=True), ends=False)
    assert list(delta.parts or ()) == CALL_PARTS
    assert delta.finish_reason is FinishReason.TOOL_CALLS
    assert delta.token_ids == tuple(CALL[: -len("}") - 1]), "what follows the arguments is nobody's"


def test_the_only_call_waits_for_min_tokens(tokenizer: Tokenizer) -> None:
    (delta,) = push(tokenizer, [*CALL, *CALL, *CALL], reading=hermes(is_single=True), ends=False, min_tokens=60)
    assert list(delta.parts or ()) == CALL_PARTS
    assert len(delta.token_ids) == 60


def test_tokens_of_thoughts_are_counted_with_their_tags(tokenizer: Tokenizer) -> None:
    tokens = [*b"hm", THINK_ID, *b"Yes", EOS]
    reading = Reading(has_thoughts=True, is_thinking=True)
    for steps in ([tokens], [[token] for token in tokens]):
        deltas = push(tokenizer, *steps, reading=reading)
        assert sum(delta.num_reasoning_tokens for delta in deltas) == 3
        found = parts(deltas)
        assert "".join(part.text for part in found if isinstance(part, Reasoning)) == "hm"
        assert "".join(part.text for part in found if isinstance(part, Text)) == "Yes"
