"""Which architectures the runners are tested with, and how any other one is refused. Reads plain dicts, no libraries.

An architecture enters `FAMILIES` together with a test that compares it with its reference, never before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mtplx.errors import ModelError
from mtplx.model.cache import CACHED_LAYER_KINDS

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One tested architecture, and what its config.json means where it says nothing.

    `default_kv_heads` None means as many as query heads, `default_head_dim` None means hidden_size // query heads.
    `sliding` says when `sliding_window` counts: never, only with `use_sliding_window`, or always (4096 if absent).
    With `is_latent` attention keys and values have widths of their own and as many heads as queries.
    `mtp_prefix` is what the names of its multi-token-prediction weights begin with; {layer} counts on from the model's
    own layers. None: it has none, or none that can be used.
    """

    architecture: str
    model_type: str
    sliding: Literal["never", "flagged", "always"]
    default_kv_heads: int | None = None
    default_head_dim: int | None = None
    is_latent: bool = False
    has_experts: bool = False
    mtp_prefix: str | None = None


FAMILIES: Mapping[str, Family] = {
    family.architecture: family
    for family in (
        Family("LlamaForCausalLM", "llama", sliding="never"),
        Family("Qwen2ForCausalLM", "qwen2", sliding="flagged", default_kv_heads=32),
        Family("Qwen3ForCausalLM", "qwen3", sliding="flagged", default_kv_heads=32, default_head_dim=128),
        Family("MistralForCausalLM", "mistral", sliding="always", default_kv_heads=8),
        Family("Gemma3ForCausalLM", "gemma3_text", sliding="always", default_kv_heads=4, default_head_dim=256),
        Family(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            sliding="never",
            is_latent=True,
            has_experts=True,
            mtp_prefix="model.layers.{layer}.",
        ),
        Family(
            "Glm4MoeForCausalLM",
            "glm4_moe",
            sliding="never",
            default_kv_heads=8,
            has_experts=True,
            mtp_prefix="model.layers.{layer}.",
        ),
        Family(
            "MellumForCausalLM",
            "mellum",
            sliding="always",
            default_kv_heads=4,
            default_head_dim=128,
            has_experts=True,
            mtp_prefix="mtp.",
        ),
    )
}

# The others ("dynamic", "longrope") choose frequencies by the longest sequence in the call, so that a neighbour would
# change the answer.
_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})

# Keys that only configs with a recurrent state carry, whatever the class is called.
_RECURRENT_KEYS = (
    "ssm_cfg",
    "state_size",
    "mamba_d_state",
    "mamba_n_heads",
    "linear_num_key_heads",
    "hybrid_override_pattern",
    "layers_block_type",
    "block_types",
    "conv_L_cache",
    "lru_width",
)


def find_family(config: Config) -> Family:
    """Returns the tested family of a config.json.

    Raises:
        ModelError: it isn't one, or this config of it asks for something that isn't served; one sentence says why.
    """
    architecture = _architecture(config)
    _refuse_other_kinds(architecture, config)
    family = FAMILIES.get(architecture)
    if family is None:
        raise ModelError(f"architecture {architecture} is not supported; supported: {', '.join(FAMILIES)}")
    if config.get("model_type") != family.model_type:
        raise ModelError(
            f"config.json names {architecture} with model_type {config.get('model_type')!r}, not {family.model_type!r}"
        )
    _refuse_unserved_options(architecture, config)
    return family


def _architecture(config: Config) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ModelError(f"config.json must name one architecture, got {names!r}")
    return names[0]


def _refuse_other_kinds(architecture: str, config: Config) -> None:
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{architecture} is an encoder-decoder model; only decoder-only text models are supported")
    if "vision_config" in config or "audio_config" in config:
        raise ModelError(f"{architecture} is a multimodal model; only text models are supported")
    foreign = sorted({str(kind) for kind in config.get("layer_types") or ()} - CACHED_LAYER_KINDS)
    marks = foreign or [key for key in _RECURRENT_KEYS if key in config]
    if marks:
        raise ModelError(
            f"{architecture} has recurrent or otherwise unsupported layers ({', '.join(marks)}); "
            f"the cache holds only {' and '.join(sorted(CACHED_LAYER_KINDS))} layers"
        )


def _refuse_unserved_options(architecture: str, config: Config) -> None:
    if config.get("quantization_config"):
        raise ModelError(
            f"this {architecture} folder holds quantised weights (quantization_config); use unquantised ones"
        )
    if config.get("use_bidirectional_attention"):
        raise ModelError(f"this {architecture} attends in both directions, so it can't generate text")
    for rope_type in _rope_types(config):
        if rope_type not in _ROPE_TYPES:
            raise ModelError(
                f"rope type {rope_type!r} of this {architecture} is not supported; "
                f"supported: {', '.join(sorted(_ROPE_TYPES))}"
            )


def _rope_types(config: Config) -> Iterator[str]:
    """Yields every rope type named: `rope_parameters` or the older `rope_scaling`, flat or by layer kind."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if not isinstance(rope, Mapping):
            continue
        nested = [value for value in rope.values() if isinstance(value, Mapping)]
        for parameters in nested or [rope]:
            yield str(parameters.get("rope_type") or parameters.get("type") or "default")
