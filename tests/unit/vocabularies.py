"""Small real tokenizers, trained or built in milliseconds, one for each way in which tokens spell bytes."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from mtplx.text.tokenizer import Tokenizer
from tests.fakes import write_byte_tokenizer

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "Über den Wolken: déjà vu, naïve, 12 + 34 = 46.",
    "你好世界 今日はいい天気ですね。",
    "emoji 🤗 🎉 👩\u200d👧 and flags 🇫🇷 end here\n\n\tdone",
]
SPECIAL = ["<eos>", "<user>"]


def byte_level() -> Tokenizer:
    """GPT-2's way: a character outside the trained merges is several tokens, each of which is part of it."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens(["<tool call>", "日記"])  # written as they are, not in the byte alphabet
    return Tokenizer(backend, {"eos_token": "<eos>"})


def sentencepiece() -> Tokenizer:
    """Llama 2's way: ▁ for a space, bytes as a fallback, the first space of a text dropped."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for token in ("▁", "▁the", "▁dog", "t", "h", "e", "▁▁", "é", "\ufffd", "<0xZZ>", "a▁b"):
        vocab[token] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend, {"eos_token": "<eos>"})


def metaspace() -> Tokenizer:
    """T5's way: ▁ for a space, the first token's dropped, no bytes."""
    tokens = ["<unk>", "▁", "▁the", "▁dog", "s", "▁▁", "é", "🤗", "a▁b"]
    backend = tokenizers.Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend, {"eos_token": "<eos>"})


def word_piece() -> Tokenizer:
    """BERT's way: ## for no space; here with its clean-up of spaces before punctuation."""
    tokens = ["[UNK]", "the", "dog", "##s", ".", "##", "n't"]
    backend = tokenizers.Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend, {})


def words() -> Tokenizer:
    """No decoder: tokens joined by spaces."""
    backend = tokenizers.Tokenizer(models.WordLevel({"the": 0, "dog": 1, "é": 2, " ": 3}, unk_token="the"))
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend, {})


def marker_tokenizer(folder: Path) -> Tokenizer:
    """A byte tokenizer whose special tokens 257 to 259 are <tool_call>, </tool_call> and </think>."""
    path = write_byte_tokenizer(folder) / "tokenizer.json"
    text = path.read_text()
    for old, new in (("<user>", "<tool_call>"), ("<assistant>", "</tool_call>"), ("<pad>", "</think>")):
        text = text.replace(json.dumps(old), json.dumps(new))
    path.write_text(text)
    return Tokenizer.load(folder)
