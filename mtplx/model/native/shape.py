"""Sizes and options of a model that the native runner can serve, read from config.json; refuses the others by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtplx.errors import ModelError
from mtplx.model.families import Config
from mtplx.model.folder import read_config, read_spec
from mtplx.model.spec import ModelSpec

GROUP = 32  # values that share a scale; every row of weights is a whole number of groups
MAX_HEAD_DIM = 256

# What sets the families apart: biases on q, k and v (and not on o); norms over each head of q and k.
_HAS_QKV_BIAS: Mapping[str, bool] = {
    "LlamaForCausalLM": False,
    "MistralForCausalLM": False,
    "Qwen2ForCausalLM": True,
    "Qwen3ForCausalLM": False,
}
_HAS_QK_NORM = frozenset({"Qwen3ForCausalLM"})


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: `kind` is default, linear or llama3; what a kind doesn't use is 1."""

    kind: str
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_positions: int = 1


@dataclass(frozen=True, slots=True)
class NativeShape:
    """One decoder of the Llama shape. `window` is how many keys a query sees, None all."""

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    norm_eps: float
    rope: Rope
    window: int | None
    is_tied: bool
    has_qkv_bias: bool
    has_qk_norm: bool

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_shape(folder: Path) -> NativeShape:
    """Returns the shape of the model in `folder`.

    Raises:
        ModelError: the folder can't be read, or the native runner can't serve such a model; one sentence says why.
    """
    config, spec = read_config(folder), read_spec(folder)
    _refuse_other_graphs(config, spec)
    shape = NativeShape(
        num_layers=spec.num_layers,
        hidden=spec.hidden_size,
        intermediate=_intermediate(config),
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab=spec.vocab_size,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_read_rope(config),
        window=_window(config, spec),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=_HAS_QKV_BIAS[spec.architecture],
        has_qk_norm=spec.architecture in _HAS_QK_NORM,
    )
    _refuse_odd_sizes(shape)
    return shape


def _refuse_other_graphs(config: Config, spec: ModelSpec) -> None:
    if spec.architecture not in _HAS_QKV_BIAS:
        raise ModelError(f"{spec.architecture} has layers of another shape; native are {', '.join(_HAS_QKV_BIAS)}")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"its activation is {config['hidden_act']}, only silu is native")
    if spec.architecture != "Qwen2ForCausalLM" and config.get("attention_bias"):  # Qwen2 doesn't read the key
        raise ModelError("its attention has a bias on every projection (attention_bias), which isn't native")
    if config.get("mlp_bias"):
        raise ModelError("its MLP has biases (mlp_bias), which aren't native")


def _refuse_odd_sizes(shape: NativeShape) -> None:
    for name, size in (
        ("hidden_size", shape.hidden),
        ("intermediate_size", shape.intermediate),
        ("attention width", shape.query_width),
    ):
        if size % GROUP:
            raise ModelError(f"its {name} {size} is no multiple of {GROUP}")
    if shape.head_dim % 16 or shape.head_dim > MAX_HEAD_DIM:
        raise ModelError(f"its head_dim {shape.head_dim} is no multiple of 16 up to {MAX_HEAD_DIM}")


def _intermediate(config: Config) -> int:
    value = config.get("intermediate_size")
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json must give intermediate_size as a positive number, got {value!r}")
    return value


def _window(config: Config, spec: ModelSpec) -> int | None:
    """The window that all layers share. Qwen2 and Qwen3 slide from layer `max_window_layers` on, Mistral everywhere."""
    if spec.sliding_window is None:
        return None
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28) if "use_sliding_window" in config else 0
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(spec.num_layers)]
    if len(set(kinds)) > 1:
        raise ModelError("it mixes full and sliding attention, native models have one kind in all layers")
    return spec.sliding_window if "sliding_attention" in kinds else None


def _read_rope(config: Config) -> Rope:
    """From `rope_parameters`, or from the older `rope_theta` and `rope_scaling`."""
    given: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = str(given.get("rope_type") or given.get("type") or "default")
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10000.0)
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"its rotary positions are scaled by {kind}; native are default, linear and llama3")
    if (given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("it rotates only a part of each head (partial_rotary_factor), which isn't native")
    if kind == "default":
        return Rope(kind, theta)
    try:
        if kind == "linear":
            return Rope(kind, theta, float(given["factor"]))
        return Rope(
            kind,
            theta,
            float(given["factor"]),
            float(given["low_freq_factor"]),
            float(given["high_freq_factor"]),
            int(given["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"config.json gives {kind} rotary positions without {error.args[0]}") from None
