"""Writes tiny GGUF files for tests, the way llama.cpp's converter does: its tensor names, its order of q and k rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mtplx.model.native.formats import Format
from mtplx.model.native.self_test import random_source

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("1 2", "Ċ Ċ", "Ġ Ġ", "ĠĠ Ġ", "Ġ =", "Ġ a")
TOKENS = (*CONTROL, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES))
EOS_ID = TOKENS.index("<|im_end|>")
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"

MODELS: Mapping[str, str] = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}
K_SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}  # rows of whole blocks of the K formats
SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_LAYER_NAMES = {
    **LAYER_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tiny_model(architecture: str, **sizes: Any) -> Any:
    """A random float32 model of transformers', every weight different from zero and one."""
    name = MODELS[architecture]
    config_class = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")
    values: dict[str, Any] = {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    if name == "Gemma3":
        near = {"rope_type": "default", "rope_theta": 1e4}
        values["rope_parameters"] = {"full_attention": values["rope_parameters"], "sliding_attention": near}
        values |= {"query_pre_attn_scalar": values["head_dim"], "sliding_window": 8}
    torch.manual_seed(7)
    model = getattr(transformers, f"{name}ForCausalLM")(config_class(**(values | sizes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def write_gguf(
    path: Path,
    architecture: str = "llama",
    model: Any = None,
    *,
    tensor_type: str = "F32",
    without: tuple[str, ...] = (),
    extra_tensors: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """Writes `model` (a tiny one by default) with a byte-level tokenizer of the kind of SmolLM2's.

    `fields` are further metadata, with double underscores for dots; `without` names metadata to leave out. Q4_K_M as
    `tensor_type` is the usual mixture of that name.
    """
    model = model if model is not None else tiny_model(architecture, **(K_SIZES if "_K" in tensor_type else {}))
    metadata = {**_metadata(architecture, model.config), **{key.replace("__", "."): v for key, v in fields.items()}}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if key not in without:
            _add(writer, key, value)
    for name, tensor in _tensors(architecture, model).items():
        _add_tensor(writer, name, tensor, tensor_type)
    for name, tensor in (extra_tensors or {}).items():
        writer.add_tensor(name, np.asarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(architecture: str, config: Any) -> dict[str, Any]:
    theta = config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"]
    own = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(theta),
        "vocab_size": config.vocab_size,
    }
    if architecture in ("llama", "qwen2"):
        own["rope.dimension_count"] = config.head_dim
    else:
        own["attention.key_length"] = own["attention.value_length"] = config.head_dim
    if architecture == "gemma3":
        own["attention.sliding_window"] = config.sliding_window
    return {f"{architecture}.{key}": value for key, value in own.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [3 if token in CONTROL else 1 for token in TOKENS],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def _tensors(architecture: str, model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The model's tensors under llama.cpp's names, as its converter stores them."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        if stem == "lm_head" and model.config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if architecture == "llama" and ("q_proj" in stem or "k_proj" in stem):
            heads = model.config.num_attention_heads if "q_proj" in stem else model.config.num_key_value_heads
            array = _interleaved(array, heads)
        if architecture == "gemma3" and stem.endswith("norm"):
            array = array + 1
        tensors[f"{_gguf_name(architecture, stem)}.{suffix}"] = array
    return tensors


def _gguf_name(architecture: str, stem: str) -> str:
    if stem in TOP_NAMES:
        return TOP_NAMES[stem]
    _, _, layer, rest = stem.split(".", 3)
    names = GEMMA_LAYER_NAMES if architecture == "gemma3" else LAYER_NAMES
    return f"blk.{layer}.{names[rest]}"


def _interleaved(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head from [first half, second half] to pairs (first, second): llama.cpp rotates neighbours."""
    halves = weight.reshape(num_heads, 2, -1, weight.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray[Any, Any], tensor_type: str) -> None:
    """Norms and biases stay float32, as everywhere. In K formats the blocks are random: nothing here rounds to them."""
    if tensor_type == "Q4_K_M":
        tensor_type = "Q6_K" if name.split(".")[-2] in ("token_embd", "output", "attn_v", "ffn_down") else "Q4_K"
    kind = gguf.GGMLQuantizationType[tensor_type]
    if tensor.ndim == 1 or tensor_type == "F32":
        writer.add_tensor(name, tensor.astype(np.float32))
    elif tensor_type == "F16":
        writer.add_tensor(name, tensor.astype(np.float16))
    elif "_K" in tensor_type:
        rng = np.random.default_rng(len(name))
        blocks = random_source(rng, Format[tensor_type], tensor.size, scale=0.0003)
        writer.add_tensor(name, blocks.reshape(len(tensor), -1), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(tensor.astype(np.float32), kind), raw_dtype=kind)
