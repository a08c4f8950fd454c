"""The text is the same however the tokens come, is the library's own, and never waits longer than it must."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.text.detokenizer import Detokenizer
from mtplx.text.tokenizer import Tokenizer
from tests.unit import vocabularies

MAKERS = (
    vocabularies.byte_level,
    vocabularies.sentencepiece,
    vocabularies.metaspace,
    vocabularies.word_piece,
    vocabularies.words,
)
EMOJI = "\N{HUGGING FACE}"


@pytest.fixture(scope="module", params=MAKERS, ids=[maker.__name__ for maker in MAKERS])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    maker: Callable[[], Tokenizer] = request.param
    return maker()


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return vocabularies.byte_level()


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return vocabularies.sentencepiece()


def any_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids of any kind, three of them outside the vocabulary."""
    return st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40)


def stream(detokenizer: Detokenizer, token_ids: list[int], cuts: list[int]) -> list[str]:
    """What each push returns when the ids come cut at these places, then what the flush returns."""
    bounds = [0, *sorted(cut for cut in cuts if cut < len(token_ids)), len(token_ids)]
    pieces = [detokenizer.push(token_ids[a:b]) for a, b in pairwise(bounds)]
    return [*pieces, detokenizer.flush()]


@settings(deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 40)), skip=st.booleans())
def test_joined_pieces_are_the_decoded_text_for_every_cut(
    tokenizer: Tokenizer, data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    token_ids = data.draw(any_ids(tokenizer))
    pieces = stream(Detokenizer(tokenizer, skip_special_tokens=skip), token_ids, cuts)
    assert "".join(pieces) == tokenizer.decode(token_ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_decoded_text_is_the_librarys(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    token_ids = data.draw(any_ids(tokenizer))
    text = tokenizer.decode(token_ids, skip_special_tokens=skip)
    expected = tokenizer._backend.decode(token_ids, skip_special_tokens=skip)
    if _has_invalid_byte_run(tokenizer, token_ids):
        assert text.count("\ufffd") <= expected.count("\ufffd"), "only the invalid bytes are replaced, not their run"
    else:
        assert text == expected


def _has_invalid_byte_run(tokenizer: Tokenizer, token_ids: list[int]) -> bool:
    """Whether decoding met bytes that aren't UTF-8, which the library's byte fallback treats by whole runs."""
    tokens = {tokenizer._backend.id_to_token(token_id) for token_id in token_ids}
    has_byte_tokens = any(token and token.startswith("<0x") and token != "<0xZZ>" for token in tokens)
    return has_byte_tokens and "\ufffd" in tokenizer._backend.decode(token_ids, skip_special_tokens=False)


@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_text_comes_back_from_a_byte_level_vocabulary(byte_level: Tokenizer, text: str) -> None:
    token_ids = byte_level.encode(text, add_special_tokens=False)
    pieces = stream(Detokenizer(byte_level, skip_special_tokens=False), token_ids, list(range(len(token_ids))))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text, "half a character was sent"


def test_a_character_is_sent_with_its_last_byte(byte_level: Tokenizer) -> None:
    raw = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    detokenizer = Detokenizer(byte_level)
    assert [detokenizer.push([raw[bytes([byte])]]) for byte in EMOJI.encode()] == ["", "", "", EMOJI]
    assert detokenizer.flush() == ""


def test_an_incomplete_character_is_replaced_once_at_the_end_and_only_once(byte_level: Tokenizer) -> None:
    raw = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push([raw[b"\xf0"], raw[b"\x9f"]]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("byte", [0x80, 0xF0, 0xFF])
def test_a_run_of_stray_bytes_is_not_hoarded(byte_level: Tokenizer, byte: int) -> None:
    raw = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    detokenizer = Detokenizer(byte_level)
    sent = 0
    for count in range(1, 1000):
        sent += len(detokenizer.push([raw[bytes([byte])]]))
        assert count - sent <= 1
        assert len(detokenizer._held) <= 3


def test_byte_fallback_sends_a_character_before_its_run_of_bytes_ends(sentencepiece: Tokenizer) -> None:
    detokenizer = Detokenizer(sentencepiece)
    assert detokenizer.push([*EMOJI.encode(), 0xF0]) == EMOJI
    assert detokenizer.push([0x9F]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_are_hidden_or_spelled_out_and_never_split_a_character(byte_level: Tokenizer) -> None:
    raw = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    eos = byte_level.eos_id
    assert eos is not None
    first, second = (raw[bytes([byte])] for byte in "é".encode())
    assert stream(Detokenizer(byte_level), [first, eos, second], [1, 2]) == ["", "", "é", ""]
    shown = Detokenizer(byte_level, skip_special_tokens=False)
    assert "".join(stream(shown, [first, eos, second], [1, 2])) == "\ufffd<eos>\ufffd"


def test_the_first_space_is_dropped_at_the_start_of_a_text_and_kept_when_it_continues_one(
    sentencepiece: Tokenizer,
) -> None:
    the, dog, eos = (sentencepiece.token_id(token) for token in ("▁the", "▁dog", "<eos>"))
    assert the is not None
    assert dog is not None
    assert eos is not None
    assert stream(Detokenizer(sentencepiece), [eos, the, dog], [1, 2]) == ["", "the", " dog", ""]
    assert stream(Detokenizer(sentencepiece, continues=True), [eos, the, dog], [1, 2]) == ["", " the", " dog", ""]


@pytest.fixture(scope="module")
def default_tokenizer(default_model_folder: Path) -> Tokenizer:
    return Tokenizer.load(default_model_folder)


@pytest.mark.real_model
@settings(deadline=None)
@given(data=st.data())
def test_the_default_models_text_is_the_librarys(default_tokenizer: Tokenizer, data: st.DataObject) -> None:
    partial = st.integers(17, 300)  # where this vocabulary keeps its single bytes
    token_ids = data.draw(st.lists(st.integers(0, default_tokenizer.vocab_size - 1) | partial, max_size=60))
    pieces = stream(Detokenizer(default_tokenizer), token_ids, list(range(len(token_ids))))
    assert "".join(pieces) == default_tokenizer._backend.decode(token_ids)
