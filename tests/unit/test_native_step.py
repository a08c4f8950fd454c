"""What the native runner prepares without its library: a step's arrays, rotary tables, a model's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mtplx.batching.state import Row, StepPlan
from mtplx.errors import ConfigError, ModelError
from mtplx.model.native.formats import Format, resolve_quantization, target_format
from mtplx.model.native.rope import inverse_frequencies, rope_tables
from mtplx.model.native.shape import Rope, read_shape
from mtplx.model.native.slots import gguf_name, model_slots, safetensors_name
from mtplx.model.native.step import lay_out

QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def shape_of(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({**QWEN, **changes}))
    return read_shape(folder)


def test_a_step_is_laid_out_as_its_docstring_draws_it() -> None:
    rows = (Row(5, 40, (7, 8), (3, 0, 5), num_logits=1), Row(2, 2, (9,), (1,), num_logits=1))
    arrays = lay_out(StepPlan(rows))
    assert arrays.token_ids.tolist() == [7, 8, 9]
    assert arrays.positions.tolist() == [40, 41, 2]
    assert arrays.sequence_of.tolist() == [0, 0, 1]
    assert (arrays.block_begin.tolist(), arrays.block_ids.tolist()) == ([0, 3, 4], [3, 0, 5, 1])
    assert arrays.wanted.tolist() == [1, 2]
    assert {getattr(arrays, name).itemsize for name in arrays.__slots__} == {4}


def test_wanted_are_the_last_tokens_of_each_row_in_plan_order() -> None:
    rows = (
        Row(0, 0, (1, 2, 3), (0,), num_logits=0),
        Row(1, 0, (1, 2, 3), (1,), num_logits=3, num_drafts=2),
        Row(2, 0, (1, 2), (2,), num_logits=1),
    )
    assert lay_out(StepPlan(rows)).wanted.tolist() == [3, 4, 5, 7]


@pytest.mark.parametrize(
    ("rope", "parameters"),
    [
        (Rope("default", 5e5), {}),
        (Rope("linear", 1e4, 4.0), {"factor": 4.0}),
        (
            Rope("llama3", 5e5, 8.0, 1.0, 4.0, 8192),
            {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
    ],
)
def test_frequencies_are_those_of_transformers(rope: Rope, parameters: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=65536,
        rope_parameters={"rope_type": rope.kind, "rope_theta": rope.theta, **parameters},
    )
    if rope.kind == "default":
        expected = rope.theta ** -(np.arange(0, 128, 2) / 128)
    else:
        expected = ROPE_INIT_FUNCTIONS[rope.kind](config, "cpu")[0].numpy()
    np.testing.assert_allclose(inverse_frequencies(rope, 128), expected, rtol=1e-6)


def test_rope_tables_turn_by_the_position() -> None:
    cos, sin = rope_tables(Rope("default", 100.0), 4, 3)
    np.testing.assert_allclose(cos, np.cos([[0, 0], [1, 0.1], [2, 0.2]]), rtol=1e-6)
    np.testing.assert_allclose(sin, np.sin([[0, 0], [1, 0.1], [2, 0.2]]), rtol=1e-6)
    assert cos.dtype == sin.dtype == np.float32
    assert cos.flags.c_contiguous
    assert sin.flags.c_contiguous


def test_older_configs_name_theta_and_scaling_apart(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    assert shape_of(tmp_path, rope_theta=1e6, rope_scaling=scaling).rope == Rope("linear", 1e6, 2.0)
    assert shape_of(tmp_path, rope_theta=1e6).rope == Rope("default", 1e6)
    assert shape_of(tmp_path, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}).rope == Rope("default", 5e5)
    with pytest.raises(ModelError, match="linear rotary positions without factor"):
        shape_of(tmp_path, rope_scaling={"type": "linear"})
    with pytest.raises(ModelError, match="partial_rotary_factor"):
        shape_of(tmp_path, partial_rotary_factor=0.5)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 8}, None),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, 8),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4}, None),
        ({"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 4}, 8),
    ],
)
def test_a_window_counts_when_all_layers_have_it(tmp_path: Path, changes: dict[str, Any], window: int | None) -> None:
    assert shape_of(tmp_path, **changes).window == window


def test_slots_follow_the_family(tmp_path: Path) -> None:
    slots = {slot.name: slot for slot in model_slots(shape_of(tmp_path))}
    assert slots["2.k_bias"].shape == (32,)
    assert "2.k_norm" not in slots
    assert slots["head"].shape == (100, 64)
    assert safetensors_name(slots["2.k_bias"]) == "model.layers.2.self_attn.k_proj.bias"
    assert gguf_name(slots["2.down"]) == "blk.2.ffn_down.weight"
    assert "head" not in {slot.name for slot in model_slots(shape_of(tmp_path, tie_word_embeddings=True))}


def test_formats_follow_the_wish_and_the_file() -> None:
    assert [resolve_quantization("auto", from_gguf=gguf) for gguf in (True, False)] == ["file", "int8"]
    kept = {
        (stored, wish): target_format(stored, wish, is_embedding=False)  # type: ignore[arg-type]
        for stored, wish in (("Q4_1", "file"), ("Q4_1", "none"), ("F16", "file"), ("BF16", "none"), ("BF16", "int4"))
    }
    assert list(kept.values()) == [Format.Q4_1, Format.F32, Format.F16, Format.F32, Format.Q4_1]
    assert target_format("F32", "int4", is_embedding=True) is Format.Q8_0
    with pytest.raises(ConfigError, match="second time"):
        target_format("Q8_0", "int4", is_embedding=False)
    with pytest.raises(ModelError, match="Q2_K"):
        target_format("Q2_K", "none", is_embedding=False)
