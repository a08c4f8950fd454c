"""What each token contributes to a text, in bytes; knows the decoders of tokenizer.json, nothing of streams.

A text is the UTF-8 decoding of its tokens' bytes, joined. That holds for byte-level vocabularies (GPT-2, Llama 3, Qwen,
SmolLM), for sentencepiece ones with or without byte fallback (Llama 2, Mistral, Gemma), for WordPiece, and for those
without a decoder: a token's bytes depend on the token and on whether it opens the text, on nothing else. Decoders that
look at other neighbours (CTC, word-end suffixes) are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

from mtplx.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "a"  # stands for "some text before"; no supported decoder changes or drops it


class TokenPieces(dict[int, bytes]):
    """`pieces[token_id]`: the token's bytes inside a text, b"" for an unknown id; computed once, then a plain look-up.

    Raises:
        ModelError: the tokenizer's decoder isn't one of those described above.

    Example, for a sentencepiece vocabulary:
        pieces[id("▁you")] == b" you"; pieces.opening(id("▁you")) == b"you"; pieces[id("<0xF0>")] == b"\\xf0"
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._decoder = backend.decoder
        stages = _stages(json.loads(self._decoder.__getstate__())) if self._decoder is not None else []
        _check_stages(stages)
        types = {stage["type"] for stage in stages}
        self._byte_of_char = _byte_level_alphabet() if "ByteLevel" in types else None
        self._has_byte_tokens = "ByteFallback" in types

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""  # not kept: the table never outgrows the vocabulary
        piece = self._inside(token)
        self[token_id] = piece
        return piece

    def opening(self, token_id: int) -> bytes | None:
        """The token's bytes at the very start of a text, where sentencepiece drops a space; None for an unknown id."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return None
        if self._decoder is None:
            return token.encode()
        byte = self._byte(token)
        if self._byte_of_char is not None or (byte is not None and byte >= 0x80):
            return self[token_id]
        text: str = self._decoder.decode([token])
        return text.encode()

    def _inside(self, token: str) -> bytes:
        if self._decoder is None:
            return f" {token}".encode()
        if self._byte_of_char is not None:
            try:
                return bytes([self._byte_of_char[char] for char in token])
            except KeyError:  # an added token, written as it is
                return token.encode()
        byte = self._byte(token)
        if byte is not None:
            return bytes([byte])
        text: str = self._decoder.decode([_ANCHOR, token])
        return text.removeprefix(_ANCHOR).encode()

    def _byte(self, token: str) -> int | None:
        match = _BYTE_TOKEN.fullmatch(token) if self._has_byte_tokens else None
        return int(match[1], 16) if match else None


def _stages(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The decoder's stages in order, sequences flattened."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [stage for part in decoder["decoders"] for stage in _stages(part)]


def _check_stages(stages: list[Mapping[str, Any]]) -> None:
    types = [stage["type"] for stage in stages]
    if types == ["ByteLevel"]:
        return
    for stage in stages:
        if not _acts_on_single_tokens(stage):
            raise ModelError(f"the tokenizer's decoder {stage['type']} ({' + '.join(types)}) is not supported")


def _acts_on_single_tokens(stage: Mapping[str, Any]) -> bool:
    match stage["type"]:
        case "ByteFallback" | "Fuse" | "Metaspace" | "WordPiece":
            return True
        case "Replace":  # after a Fuse, a longer pattern could match across tokens
            return len(stage["pattern"].get("String", "")) == 1
        case "Strip":
            return bool(stage["start"] <= 1 and stage["stop"] == 0 and stage["content"] != _ANCHOR)
        case _:
            return False


def _byte_level_alphabet() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves; the other bytes, in rising order, for the characters from 256 on.
    Source: GPT-2 (Radford et al. 2019), section 2.2, and its published vocabulary.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
