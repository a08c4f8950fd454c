"""The default model as users get it: its weights, its tokenizer, its own rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, dequantize
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mtplx.model.checkpoint import count_parameters
from mtplx.model.folder import read_spec
from mtplx.model.store import read_manifest

pytestmark = pytest.mark.real_model

NUM_TOKENS = 49_152
# Bytes that this vocabulary can't spell: never or hardly ever in UTF-8 text.
MISSING_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


@pytest.fixture(scope="module")
def tokenizer(default_model_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_model_folder / "tokenizer.json"))


def test_spec_is_that_of_smollm2(default_model_folder: Path) -> None:
    spec = read_spec(default_model_folder)
    assert spec.architecture == "LlamaForCausalLM"
    assert (spec.num_layers, spec.hidden_size, spec.head_dim) == (30, 576, 64)
    assert (spec.num_heads, spec.num_kv_heads, spec.vocab_size) == (9, 3, NUM_TOKENS)
    assert (spec.max_position, spec.eos_ids) == (8192, {2})
    assert count_parameters(default_model_folder) == 134_515_008


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("\n\n1. a", ["ĊĊ", "1", ".", "Ġa"]),
        ("x =   12", ["x", "Ġ=", "ĠĠĠ", "1", "2"]),
        ("2026", ["2", "0", "2", "6"]),
        ("  two   spaces", ["Ġ", "Ġtwo", "ĠĠ", "Ġspaces"]),
        ("it's", ["it", "'s"]),
    ],
)
def test_text_is_cut_as_by_the_models_own_tokenizer(text: str, pieces: list[str], tokenizer: Tokenizer) -> None:
    """Digits one by one, else GPT-2's rule; no bos in front."""
    assert tokenizer.encode(text).tokens == pieces


def test_chat_marks_are_single_special_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>").ids == [0, 1, 2]
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert special == set(range(17))


def test_every_id_has_bytes_that_come_back(tokenizer: Tokenizer) -> None:
    """Each ordinary token is a string of the byte alphabet, no two are equal, and nearly all bytes are there."""
    alphabet = {symbol: byte for byte, symbol in bytes_to_unicode().items()}
    pieces = [tokenizer.id_to_token(token_id) for token_id in range(NUM_TOKENS)]
    assert tokenizer.get_vocab_size() == len(set(pieces)) == NUM_TOKENS
    spelled = [bytes(alphabet[symbol] for symbol in piece) for piece in pieces[17:]]
    assert {data[0] for data in spelled if len(data) == 1} == set(range(256)) - MISSING_BYTES
    for token_id, data in enumerate(spelled, start=17):
        if (text := data.decode("utf-8", errors="ignore")).encode() == data:
            assert tokenizer.decode([token_id]) == text


def test_config_for_other_tools(default_model_folder: Path) -> None:
    config = json.loads((default_model_folder / "tokenizer_config.json").read_text())
    assert (config["add_bos_token"], config["eos_token"]) == (False, "<|im_end|>")
    assert "<|im_start|>" in config["chat_template"]
    generation = json.loads((default_model_folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2


def test_weights_are_the_files_own_numbers(default_model_folder: Path) -> None:
    """A quantised matrix, the embedding and a norm, bit for bit; q and k are permuted, which tiny models test."""
    manifest = read_manifest(default_model_folder)
    if manifest is None or manifest.gguf is None:
        pytest.skip("the model came from the hub, not from a GGUF")
    stored = {tensor.name: tensor for tensor in GGUFReader(manifest.gguf.path).tensors}
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.17.ffn_up.weight": "model.layers.17.mlp.up_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    with safe_open(default_model_folder / "model.safetensors", "np") as weights:
        assert len(weights.keys()) == len(stored)
        for theirs, ours in names.items():
            expected = dequantize(stored[theirs].data, stored[theirs].tensor_type)
            assert np.array_equal(weights.get_tensor(ours), expected)
