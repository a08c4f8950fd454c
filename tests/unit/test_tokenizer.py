"""Reading a model folder's vocabulary, and encoding what anyone may send."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, processors

from mtplx.errors import ModelError, RequestError
from mtplx.text.tokenizer import Tokenizer, named_tokens, read_tokenizer_config
from tests.unit import vocabularies


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return vocabularies.byte_level()


def word_backend(*tokens: str) -> tokenizers.Tokenizer:
    """A vocabulary of these tokens, which splits its text at nothing but special tokens."""
    return tokenizers.Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0]))


def write_folder(folder: Path, backend: tokenizers.Tokenizer, config: object | None = None) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_load_needs_tokenizer_json_alone(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_folder(tmp_path, word_backend("a", "b")))
    assert tokenizer.encode("b", add_special_tokens=True) == [1]
    assert tokenizer.decode([1]) == "b"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.special_ids) == (None, None, frozenset())
    assert tokenizer.vocab_size == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json$"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"version": "1.0", "model": {"type": "BPE"'])
def test_a_corrupt_tokenizer_json_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json can't be read as a tokenizer: [^\n]+$"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_corrupt_config_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    write_folder(tmp_path, word_backend("a"))
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json (can't be read|doesn't hold)[^\n]+$"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("decoder", [decoders.CTC(), decoders.BPEDecoder(), decoders.Strip("x", 0, 2)])
def test_a_decoder_that_looks_at_neighbours_is_refused_by_name(decoder: decoders.Decoder) -> None:
    backend = word_backend("a")
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoder])
    with pytest.raises(ModelError, match=type(decoder).__name__):
        Tokenizer(backend, {})


def test_special_tokens_in_a_text_become_their_ids(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<eos>b", add_special_tokens=False)
    assert byte_level.eos_id in ids
    assert byte_level.decode(ids) == "ab"
    assert byte_level.decode(ids, skip_special_tokens=False) == "a<eos>b"


def test_a_token_named_by_the_config_is_special_even_where_tokenizer_json_forgets_it() -> None:
    backend = word_backend("?", "<end>", "<user>", "<tool>", "a")
    backend.add_tokens([tokenizers.AddedToken("<user>", special=False)])
    config = {
        "eos_token": {"content": "<end>"},
        "bos_token": "<user>",
        "pad_token": "<not in the vocabulary>",
        "additional_special_tokens": ["<tool>", "<nor this>"],
    }
    tokenizer = Tokenizer(backend, config)
    assert tokenizer.special_ids == {1, 2, 3}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (2, 1, 5)
    assert tokenizer.encode("a<end>", add_special_tokens=False) == [4, 1]
    assert tokenizer.decode([2, 4, 1]) == tokenizer._backend.decode([2, 4, 1]) == "a"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [2, 1]),  # as tokenizer.json says
        ({"add_bos_token": True}, [0, 1]),
        ({"add_bos_token": False}, [1]),
        ({"add_bos_token": True, "add_eos_token": True}, [0, 1, 2]),
    ],
)
def test_bos_and_eos_are_added_as_the_config_says(flags: dict[str, bool], expected: list[int]) -> None:
    backend = word_backend("<s>", "a", "</s>")
    backend.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    tokenizer = Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>", **flags})
    assert tokenizer.encode("a", add_special_tokens=True) == expected
    assert tokenizer.encode("a", add_special_tokens=False) == [1]


def test_a_model_with_one_token_for_bos_and_eos_can_add_both() -> None:
    config = {"bos_token": "<s>", "eos_token": "<s>", "add_bos_token": True, "add_eos_token": True}
    assert Tokenizer(word_backend("<s>", "a"), config).encode("a", add_special_tokens=True) == [0, 1, 0]


def test_truncation_and_padding_kept_in_tokenizer_json_are_off(byte_level: Tokenizer, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level._backend.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
    for text in ("x", "one two three four five six"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text


def test_token_bytes_are_raw_and_token_text_keeps_its_space(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(" \N{HUGGING FACE}", add_special_tokens=False)
    assert b"".join(map(byte_level.token_bytes, ids)) == " \N{HUGGING FACE}".encode()
    sentencepiece = vocabularies.sentencepiece()
    the = sentencepiece.token_id("▁the")
    assert the is not None
    assert sentencepiece.token_bytes(0xF0) == b"\xf0"
    assert sentencepiece.token_text(0xF0) == "\ufffd"
    assert sentencepiece.token_text(the) == " the"
    assert byte_level.token_text(byte_level.eos_id or 0) == "<eos>"


def test_ids_outside_the_vocabulary_have_no_text(byte_level: Tokenizer) -> None:
    assert byte_level.token_bytes(byte_level.vocab_size) == byte_level.token_bytes(2**31) == b""
    assert byte_level.decode([byte_level.vocab_size, 2**31]) == ""
    assert 2**31 not in byte_level.pieces, "an unknown id must not grow the table"


@settings(deadline=None)
@given(text=st.text(st.characters(), max_size=30))
def test_any_text_is_encoded_or_refused_by_the_fields_name(byte_level: Tokenizer, text: str) -> None:
    try:
        ids = byte_level.encode(text, add_special_tokens=True, param="messages")
    except RequestError as error:
        refused = error.param
    else:
        refused = None
        assert byte_level.decode(ids, skip_special_tokens=False) == text
    has_surrogate = any(0xD800 <= ord(char) < 0xE000 for char in text)
    assert refused == ("messages" if has_surrogate else None)


def test_half_a_surrogate_pair_is_refused_and_located(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"surrogate pair at character 2$") as caught:
        byte_level.encode("ab\ud83e", add_special_tokens=False)
    assert caught.value.param == "prompt"


def test_a_text_that_the_vocabulary_cannot_spell_is_the_requests_fault() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="<missing>"))
    with pytest.raises(RequestError, match="can't spell"):
        Tokenizer(backend, {}).encode("b", add_special_tokens=False)


@pytest.mark.parametrize("char", ["a", " ", "\x00", "é"])
def test_a_long_run_of_one_character_works(byte_level: Tokenizer, char: str) -> None:
    text = char * 200_000
    assert byte_level.decode(byte_level.encode(text, add_special_tokens=False)) == text


def test_named_tokens_reads_both_spellings_and_ignores_nonsense() -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "unk_token": 7, "sep_token": ""}
    assert named_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_folder_without_a_config_has_an_empty_one(tmp_path: Path) -> None:
    assert read_tokenizer_config(tmp_path) == {}


def test_importing_the_text_package_loads_no_tensor_library() -> None:
    code = (
        "import sys, mtplx.text.chat, mtplx.text.detokenizer, mtplx.text.stops, mtplx.text.tokenizer\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.real_model
@pytest.mark.parametrize(
    "text", ["\n\n1. a", "x =   12", "Hello, world! \N{HUGGING FACE}\n\tdéjà vu", "<|im_start|>user"]
)
def test_the_default_model_gives_every_text_back(default_model_folder: Path, text: str) -> None:
    tokenizer = Tokenizer.load(default_model_folder)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_id in tokenizer.special_ids
