"""Pieces of a choice have the tokens that their text is made of, however the tokens come and whatever is held back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.batching.state import FinishReason
from mtplx.decode.logprobs import TokenLogprob, TokenLogprobs
from mtplx.sampling_params import SamplingParams
from mtplx.server.choice_text import ChoiceText, Delta
from mtplx.server.engine import SequenceOutput
from mtplx.text.tokenizer import Tokenizer
from tests.fakes import EOS, load_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(TokenLogprob(token_id, -float(token_id)), 1)


def deltas(tokenizer: Tokenizer, steps: list[bytes], *, end: bool = True, **params: object) -> list[Delta]:
    """Of a choice whose steps bring these bytes, each a token; the last step is the answer's end."""
    text = ChoiceText(0, tokenizer, SamplingParams(**params), frozenset({EOS}), continues=True)  # type: ignore[arg-type]
    found = []
    for number, step in enumerate(steps):
        reason = FinishReason.LENGTH if end and number == len(steps) - 1 else None
        output = SequenceOutput(0, tuple(step), tuple(entry(token_id) for token_id in step), reason)
        found.append(text.push(output))
        if found[-1].finish_reason:
            break
    return found


def pieces(found: list[Delta]) -> list[tuple[str, bytes]]:
    return [(delta.text, bytes(delta.token_ids)) for delta in found]


def test_tokens_are_held_with_the_text_that_could_be_a_stop_string(tokenizer: Tokenizer) -> None:
    found = deltas(tokenizer, [b"a", b"E", b"N", b"x", b"b"], stop=("END",))
    assert pieces(found) == [("a", b"a"), ("", b""), ("", b""), ("ENx", b"ENx"), ("b", b"b")]


def test_tokens_of_a_stop_string_come_last_and_only_when_the_answer_has_ended(tokenizer: Tokenizer) -> None:
    """They were emitted, so they count; none is told before it is known that its text isn't."""
    found = deltas(tokenizer, [b"ab", b"E", b"ND", b"x"], stop=("END",))
    assert pieces(found) == [("ab", b"ab"), ("", b""), ("", b"END")]
    assert found[-1].finish_reason is FinishReason.STOP


def test_a_characters_tokens_come_with_the_character(tokenizer: Tokenizer) -> None:
    found = deltas(tokenizer, ["aé"[:1].encode() + "é".encode()[:1], "é".encode()[1:], b"b"])
    assert pieces(found) == [("a", b"a"), ("é", "é".encode()), ("b", b"b")]
    cut = deltas(tokenizer, [b"a", "é".encode()[:1]])
    assert pieces(cut) == [("a", b"a"), ("\ufffd", "é".encode()[:1])]


def test_tokens_without_text_are_told_at_once(tokenizer: Tokenizer) -> None:
    text = ChoiceText(0, tokenizer, SamplingParams(), frozenset({EOS}), continues=True)
    assert text.push(SequenceOutput(0, (257,))).token_ids == (257,)
    assert text.push(SequenceOutput(0, (EOS,), finish_reason=FinishReason.STOP)).token_ids == (EOS,)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("ENDé🤗x ", max_size=20),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    stops=st.lists(st.sampled_from(["END", "N", "DE", "éx", "🤗E"]), max_size=3),
)
def test_any_cut_of_the_tokens_gives_the_same_and_each_piece_its_own(
    tokenizer: Tokenizer, text: str, cuts: list[int], stops: list[str]
) -> None:
    data = text.encode()
    steps, rest = [], data
    for size in (*cuts, len(data) + 1):
        steps.append(rest[:size])
        rest = rest[size:]
        if not rest:
            break
    found = deltas(tokenizer, steps, stop=tuple(stops))
    one_by_one = deltas(tokenizer, [data[i : i + 1] for i in range(len(data))] or [b""], stop=tuple(stops))
    for field in ("text", "token_ids", "logprobs"):
        joined, expected = (
            [part for delta in all_of for part in getattr(delta, field)] for all_of in (found, one_by_one)
        )
        assert joined == expected, field
    assert found[-1].finish_reason == one_by_one[-1].finish_reason
    for delta in found[:-1]:
        assert bytes(delta.token_ids).decode() == delta.text
        assert [logprob.chosen.token_id for logprob in delta.logprobs] == list(delta.token_ids)
