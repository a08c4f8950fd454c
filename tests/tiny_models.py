"""Tiny random models of every supported family, written as a folder that the loader reads like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MellumConfig,
    MellumForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 128
WINDOW = 10  # shorter than the tests' texts
MAX_POSITION = 256


@dataclass(frozen=True, slots=True)
class TinyFamily:
    """How to build one tiny model; `options` go into its config over what all of them share."""

    model_class: Callable[[Any], PreTrainedModel]
    config_class: Callable[..., Any]
    options: Mapping[str, Any]


# Between them: one, some and all heads with keys of their own; tied and untied heads; biases; every rope type served;
# full and sliding layers, alone and mixed; a head width that isn't hidden_size / heads.
TINY_FAMILIES: Mapping[str, TinyFamily] = {
    "llama": TinyFamily(LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 2}),
    "llama_mqa_tied": TinyFamily(
        LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True}
    ),
    "llama3_rope": TinyFamily(
        LlamaForCausalLM,
        LlamaConfig,
        {
            "num_key_value_heads": 4,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "qwen2": TinyFamily(Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 2, "use_sliding_window": False}),
    "qwen2_sliding_top": TinyFamily(
        Qwen2ForCausalLM,
        Qwen2Config,
        {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": TinyFamily(Qwen3ForCausalLM, Qwen3Config, {"num_key_value_heads": 2, "head_dim": 12}),
    "mistral_sliding": TinyFamily(
        MistralForCausalLM, MistralConfig, {"num_key_value_heads": 2, "sliding_window": WINDOW}
    ),
    "mistral_full": TinyFamily(MistralForCausalLM, MistralConfig, {"num_key_value_heads": 4, "sliding_window": None}),
    "mistral_yarn": TinyFamily(
        MistralForCausalLM,
        MistralConfig,
        {
            "num_key_value_heads": 1,
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "gemma3": TinyFamily(
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "num_key_value_heads": 1,
            "head_dim": 12,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 20,
            "num_hidden_layers": 4,
            "final_logit_softcapping": 3.0,
        },
    ),
    "deepseek_v3": TinyFamily(
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 12,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "v_head_dim": 8,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "num_mtp_layers": 0,
        },
    ),
    "deepseek_v3_yarn": TinyFamily(
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        {
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 2,
            "num_mtp_layers": 0,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "glm4_moe": TinyFamily(
        Glm4MoeForCausalLM,
        Glm4MoeConfig,
        {
            "num_key_value_heads": 2,
            "head_dim": 12,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "num_mtp_layers": 0,
        },
    ),
    "mellum": TinyFamily(
        MellumForCausalLM,
        MellumConfig,
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
    ),
}


def write_tiny_model(folder: Path, name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Path:
    """Writes the named tiny model, its weights random but the same every time, and returns `folder`."""
    torch.set_num_threads(1)  # matrices of this size gain nothing from more
    family = TINY_FAMILIES[name]
    shared = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_POSITION,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = family.model_class(family.config_class(**{**shared, **family.options, **options})).to(dtype)
        with torch.no_grad():
            for parameter in model.get_decoder().layers.parameters():
                # Far from zero, so that a misread key or a wrong window changes the answer. The embedding stays small:
                # a tied head would else repeat its last token for ever.
                parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.ndim == 1 else 0.25))
    model.save_pretrained(folder)
    return folder


def read_tiny_model(folder: Path, name: str, dtype: torch.dtype = torch.float64) -> Any:
    """Returns transformers' own model of the folder, with its own attention: the reference."""
    return TINY_FAMILIES[name].model_class.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="sdpa",
        experts_implementation="eager",  # the only one that takes float64
    )
