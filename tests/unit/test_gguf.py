"""GGUF files become Hugging Face folders with the same weights, the same tokens and the same rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from mtplx.errors import ModelError
from mtplx.model.convert import convert_gguf
from mtplx.model.folder import read_spec
from mtplx.model.gguf import read_gguf
from mtplx.model.gguf_config import generation_settings, llama3_factors
from mtplx.model.gguf_tokenizer import build_tokenizer
from tests.gguf_files import CONTROL, EOS_ID, TEMPLATE, TOKENS, tiny_model, write_gguf


def convert(path: Path) -> Path:
    folder, _ = convert_gguf(path, path.parent / "cache", "a test", lambda line: None)
    return folder


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(3, 23)[None]
    with torch.inference_mode():
        result: torch.Tensor = model(input_ids=ids).logits
    return result


def pieces(path: Path, text: str) -> list[str]:
    return build_tokenizer(read_gguf(path)).encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_converted_model_gives_the_original_logits(architecture: str, tmp_path: Path) -> None:
    """Catches a wrong permutation of q and k, a norm off by one, a lost bias or head size."""
    sizes = {"qwen2": {"head_dim": 8}, "gemma3": {"num_hidden_layers": 6}}  # every sixth layer isn't sliding
    original = tiny_model(architecture, **sizes.get(architecture, {}))
    folder = convert(write_gguf(tmp_path / "a.gguf", architecture, original))
    converted = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(logits(converted), logits(original))
    assert read_spec(folder).eos_ids == {EOS_ID}


def test_untied_output_head_is_kept(tmp_path: Path) -> None:
    original = tiny_model("llama", tie_word_embeddings=False)
    folder = convert(write_gguf(tmp_path / "a.gguf", model=original))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(original))


@pytest.mark.parametrize("tensor_type", ["Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"])
def test_quantised_weights_are_not_rounded_again(tensor_type: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", tensor_type=tensor_type)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}["blk.1.ffn_down.weight"]
    weight = load_file(convert(path) / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    assert weight.dtype == torch.float32
    assert np.array_equal(weight.numpy(), gguf.dequantize(stored.data, stored.tensor_type))


def test_half_precision_is_kept_only_if_exact(tmp_path: Path) -> None:
    """The same F16 file, once with norms that float16 holds and once with norms that it would round."""
    model = tiny_model("llama")
    rounded = convert(write_gguf(tmp_path / "a.gguf", model=model, tensor_type="F16"))
    assert load_file(rounded / "model.safetensors")["model.norm.weight"].dtype == torch.float32
    model.load_state_dict({name: tensor.half().float() for name, tensor in model.state_dict().items()})
    exact = convert(write_gguf(tmp_path / "b.gguf", model=model, tensor_type="F16"))
    assert load_file(exact / "model.safetensors")["model.norm.weight"].dtype == torch.float16
    assert json.loads((exact / "config.json").read_text())["dtype"] == "float16"


def test_smollm_splits_every_digit(tmp_path: Path) -> None:
    """ "1 2" is a merge of this vocabulary, so only the rule keeps the digits apart."""
    path = write_gguf(tmp_path / "a.gguf")
    assert pieces(path, "\n\n1. a") == ["ĊĊ", "1", ".", "Ġa"]
    assert pieces(path, "x =   12") == ["x", "Ġ=", "ĠĠĠ", "1", "2"]
    assert pieces(path, "12\n\n12") == ["1", "2", "ĊĊ", "1", "2"]


@pytest.mark.parametrize("rule", ["default", "gpt-2"])
def test_gpt2_rule_keeps_digits_together(rule: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", tokenizer__ggml__pre=rule)
    assert pieces(path, "x =   12") == ["x", "Ġ=", "ĠĠ", "Ġ", "12"]


def test_rules_that_transformers_knows(tmp_path: Path) -> None:
    """Llama 3 keeps up to three digits together, Qwen2 splits them; a number has no space in front in either."""
    llama3 = write_gguf(tmp_path / "a.gguf", tokenizer__ggml__pre="llama-bpe")
    assert pieces(llama3, "x =   12") == ["x", "Ġ=", "ĠĠ", "Ġ", "12"]
    qwen2 = write_gguf(tmp_path / "b.gguf", tokenizer__ggml__pre="qwen2")
    assert pieces(qwen2, "x =   12") == ["x", "Ġ=", "ĠĠ", "Ġ", "1", "2"]
    assert pieces(qwen2, "e\u0301") == pieces(qwen2, "é")  # its text is composed first


def test_unknown_rule_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'made-up'.*smollm"):
        convert(write_gguf(tmp_path / "a.gguf", tokenizer__ggml__pre="made-up"))
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre"):
        convert(write_gguf(tmp_path / "b.gguf", without=("tokenizer.ggml.pre",)))


def test_every_id_keeps_its_bytes(tmp_path: Path) -> None:
    folder = convert(write_gguf(tmp_path / "a.gguf"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [tokenizer.id_to_token(token_id) for token_id in range(len(TOKENS))] == list(TOKENS)
    assert tokenizer.get_vocab_size() == len(TOKENS)
    text = bytes(range(1, 128)).decode() + "déjà \U0001f600"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_control_tokens_are_single_and_special(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    tokenizer = build_tokenizer(read_gguf(path))
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids == [1, TOKENS.index("a"), 2]
    added = tokenizer.get_added_tokens_decoder()
    assert {token.content for token in added.values() if token.special} == set(CONTROL)


def test_user_defined_tokens_are_whole_but_text(tmp_path: Path) -> None:
    types = [3 if token in CONTROL else 4 if token == "ĠĠĠ" else 1 for token in TOKENS]
    path = write_gguf(tmp_path / "a.gguf", tokenizer__ggml__token_type=types)
    tokenizer = build_tokenizer(read_gguf(path))
    assert tokenizer.encode("aĠĠĠa").ids == [TOKENS.index(text) for text in ("a", "ĠĠĠ", "a")]
    assert not tokenizer.get_added_tokens_decoder()[TOKENS.index("ĠĠĠ")].special


def test_bos_is_added_only_where_the_file_says_so(tmp_path: Path) -> None:
    without = build_tokenizer(read_gguf(write_gguf(tmp_path / "a.gguf")))
    assert without.encode("a").ids == [TOKENS.index("a")]
    wanted = write_gguf(tmp_path / "b.gguf", tokenizer__ggml__add_bos_token=True)
    assert build_tokenizer(read_gguf(wanted)).encode("a").ids == [1, TOKENS.index("a")]


def test_sentencepiece_vocabulary(tmp_path: Path) -> None:
    """Spaces are marks, unknown letters fall back to bytes, bos is in front unless denied, control tokens are whole."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
    tokens += [f"[PAD{number}]" for number in range(len(TOKENS) - len(tokens))]
    fields: dict[str, Any] = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__pre": "default",
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__scores": [
            0.0 if text.startswith(("<", "[")) else -float(len(tokens) - i) for i, text in enumerate(tokens)
        ],
        "tokenizer__ggml__token_type": [2, 3, 3, *([6] * 256), *([1] * 5), *([5] * (len(tokens) - 264))],
    }
    without = ("tokenizer.ggml.merges", "tokenizer.ggml.add_bos_token")
    path = write_gguf(tmp_path / "a.gguf", without=without, **fields)
    tokenizer = Tokenizer.from_file(str(convert(path) / "tokenizer.json"))
    assert tokenizer.encode("ab ab</s>").tokens == ["<s>", "▁ab", "▁ab", "</s>"]
    assert tokenizer.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab é").ids) == "ab é"
    unknown = write_gguf(tmp_path / "b.gguf", without=without, tokenizer__ggml__add_space_prefix=False, **fields)
    with pytest.raises(ModelError, match="without a space in front"):
        convert(unknown)


def test_files_beside_the_gguf_are_not_taken_up(tmp_path: Path) -> None:
    """What lies in the user's folder may belong to another model."""
    for name in ("config.json", "adapter_config.json", "generation_config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text('{"base_model_name_or_path": "someone/else", "eos_token_id": 5}')
    folder = convert(write_gguf(tmp_path / "a.gguf"))
    assert read_spec(folder).eos_ids == {EOS_ID}


def test_folder_is_complete_for_other_tools(tmp_path: Path) -> None:
    """transformers' own loader finds the same ids, the special tokens and the chat template."""
    folder = convert(write_gguf(tmp_path / "a.gguf"))
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert theirs("x =   12<|im_end|>").input_ids == ours.encode("x =   12<|im_end|>").ids
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.chat_template) == (1, EOS_ID, TEMPLATE)
    rendered = theirs.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert rendered == "<|im_start|>a<|im_end|>"
    assert json.loads((folder / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": EOS_ID}


def test_generation_settings_take_all_stop_ids_and_the_recommended_sampling(tmp_path: Path) -> None:
    fields = {"tokenizer__ggml__eot_token_id": 0, "general__sampling__temp": 0.5, "general__sampling__top_k": 20}
    settings = generation_settings(read_gguf(write_gguf(tmp_path / "a.gguf", **fields)))
    assert settings == {
        "bos_token_id": 1,
        "eos_token_id": [EOS_ID, 0],
        "temperature": 0.5,
        "top_k": 20,
        "do_sample": True,
    }


def test_conversion_happens_once_and_again_after_damage(tmp_path: Path) -> None:
    said: list[str] = []
    path = write_gguf(tmp_path / "a.gguf")
    folder, stamp = convert_gguf(path, tmp_path / "cache", "a test", said.append)
    manifest = json.loads((folder / "mtplx.json").read_text())
    assert manifest["gguf"] == {
        "path": str(path),
        "num_bytes": path.stat().st_size,
        "mtime_ns": path.stat().st_mtime_ns,
        "sha256": stamp.sha256,
    }
    assert convert_gguf(path, tmp_path / "cache", "a test", said.append) == (folder, stamp)
    assert said == ["converting a.gguf for use, once"]
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-8] + b"\0" * 8)
    assert convert_gguf(path, tmp_path / "cache", "a test", said.append) == (folder, stamp)
    assert weights.read_bytes() == good
    assert "is damaged" in said[1]


def test_changed_file_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    first = convert(path)
    write_gguf(path, model=tiny_model("llama", rms_norm_eps=0.5))
    second = convert(path)
    assert first != second
    assert json.loads((second / "config.json").read_text())["rms_norm_eps"] == 0.5


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_its_table(factor: float, tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_theta": 5e5, "original_max_position_embeddings": 8192, **scaling}
    original = tiny_model("llama", rope_parameters=rope)
    plain = 1.0 / 5e5 ** (np.arange(0, 16, 2) / 16)
    table = plain / original.model.rotary_emb.inv_freq.numpy()
    assert np.allclose(table, llama3_factors(5e5, 16, factor), rtol=1e-5)
    folder = convert(write_gguf(tmp_path / "a.gguf", model=original, extra_tensors={"rope_freqs.weight": table}))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(original))


REFUSED = {
    "architecture": ({"general__architecture": "mamba"}, "'mamba'.*llama, qwen2"),
    "experts": ({"llama__expert_count": 8}, "mixture of experts"),
    "rope": ({"llama__rope__scaling__type": "yarn"}, "'yarn'"),
    "rope table": ({"extra_tensors": {"rope_freqs.weight": np.full(8, 3.0)}}, "table"),
    "tensors": ({"extra_tensors": {"blk.0.attn_q.bias": np.ones(64)}}, "variant"),
    "tokenizer": ({"without": ("tokenizer.ggml.tokens",)}, "no tokenizer"),
    "tokenizer kind": ({"tokenizer__ggml__model": "bert"}, "'bert'.*gpt2"),
    "shape": ({"llama__feed_forward_length": 32}, "weights of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_rightly_is_refused(case: str, tmp_path: Path) -> None:
    """One sentence that names the file, and nothing left in the cache."""
    changes, sentence = REFUSED[case]
    path = write_gguf(tmp_path / "a.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=rf"a\.gguf.*{sentence}|{sentence}.*a\.gguf"):
        convert(path)
    assert list((tmp_path / "cache").glob("converted/*")) == []


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.9, 0.9999])
def test_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=r"cut short|not a GGUF file"):
        convert(path)


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no file .*none\.gguf"):
        convert(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello, I am no model")
    with pytest.raises(ModelError, match=r"text\.gguf is not a GGUF file"):
        convert(tmp_path / "text.gguf")
