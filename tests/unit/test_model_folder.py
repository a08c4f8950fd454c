"""What is read from config.json and generation_config.json, and which models are refused by their config alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import ModelError
from mtplx.model.families import FAMILIES
from mtplx.model.folder import read_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}


def write(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_a_config_that_says_little(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path, LLAMA))
    assert (spec.num_kv_heads, spec.head_dim, spec.sliding_window) == (8, 8, None)
    assert (spec.eos_ids, spec.default_temperature, spec.default_top_p, spec.default_top_k) == ({2}, None, None, None)


def test_the_generation_config_rules_sampling_and_ends(tmp_path: Path) -> None:
    generation = {"eos_token_id": [5, 6], "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    spec = read_spec(write(tmp_path, LLAMA, generation))
    assert spec.eos_ids == {5, 6}
    assert (spec.default_temperature, spec.default_top_p, spec.default_top_k) == (0.6, 0.9, 20)


@pytest.mark.parametrize(
    ("architecture", "changes", "window"),
    [
        ("LlamaForCausalLM", {"sliding_window": 7}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 7}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 7, "use_sliding_window": True}, 7),
        ("MistralForCausalLM", {}, 4096),
        ("MistralForCausalLM", {"sliding_window": None}, None),
        ("Gemma3ForCausalLM", {"sliding_window": 512}, 512),
    ],
)
def test_when_a_sliding_window_counts(
    tmp_path: Path, architecture: str, changes: dict[str, Any], window: int | None
) -> None:
    model_type = FAMILIES[architecture].model_type
    config = {**LLAMA, "architectures": [architecture], "model_type": model_type, "num_key_value_heads": 2, **changes}
    assert read_spec(write(tmp_path, config)).sliding_window == window


LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
}


def test_latent_attention_has_keys_and_values_of_their_own_width(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path, {**LLAMA, **LATENT, "num_nextn_predict_layers": 2}))
    assert (spec.num_kv_heads, spec.head_dim, spec.value_head_dim, spec.num_mtp_layers) == (8, 16, 8, 2)


def test_modules_count_only_where_they_can_be_used(tmp_path: Path) -> None:
    assert read_spec(write(tmp_path, {**LLAMA, "num_nextn_predict_layers": 2})).num_mtp_layers == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({**LATENT, "num_key_value_heads": 4}, "latent attention has one a query head"),
        ({"architectures": ["OPTForCausalLM"]}, "OPTForCausalLM is not supported; supported: LlamaForCausalLM, "),
        ({"architectures": []}, "must name one architecture"),
        ({"architectures": ["T5Model"], "is_encoder_decoder": True}, "encoder-decoder"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}, "multimodal"),
        (
            {"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention", "full_attention"]},
            "recurrent",
        ),
        ({"architectures": ["MambaForCausalLM"], "state_size": 16}, "recurrent"),
        ({"model_type": "qwen2"}, "model_type 'qwen2', not 'llama'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "'longrope'"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "doesn't divide 8 heads"),
    ],
)
def test_refusals_are_one_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_spec(write(tmp_path, {**LLAMA, **changes}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="can't be read as JSON"):
        read_spec(tmp_path)


def test_reading_a_folder_loads_no_tensor_library() -> None:
    code = "import sys, mtplx.model.folder; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
