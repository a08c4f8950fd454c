"""The model configuration that a GGUF file implies: by transformers' table, completed where that is silent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mtplx.errors import ModelError
from mtplx.model.gguf import GgufFile

# llama.cpp's name of an architecture, and the class of transformers that it is.
ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
LLAMA3_FACTORS = (8.0, 32.0)  # of Llama 3.1 and 3.2; low and high factor and old length are the same in all
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_OLD_LENGTH = 1.0, 4.0, 8192
SAMPLING_KEYS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def check_architecture(gguf: GgufFile) -> str:
    """The class of transformers that serves this file.

    Raises:
        ModelError: there is none yet; names what is served.
    """
    known = ", ".join(ARCHITECTURES)
    if gguf.architecture not in ARCHITECTURES:
        raise ModelError(f"{gguf.path} is of the architecture {gguf.architecture!r}; served from GGUF are {known}")
    if gguf.get("expert_count"):
        raise ModelError(f"{gguf.path} is a mixture of experts, which isn't served from GGUF; served are dense {known}")
    return ARCHITECTURES[gguf.architecture]


def build_config(gguf: GgufFile) -> Any:
    """transformers' configuration object, sizes, ids and rotary scaling as the file has them.

    Raises:
        ModelError: the architecture or its rotary scaling isn't served.
    """
    import transformers
    from transformers.integrations import GGUF_CONFIG_MAPPING

    class_name = check_architecture(gguf)
    # transformers' own table, over the header that is read already: parsing the vocabulary again costs seconds.
    values = {name: gguf.get(key) for key, name in GGUF_CONFIG_MAPPING[gguf.architecture].items() if name}
    values = {name: value for name, value in values.items() if value is not None}
    config = getattr(transformers, class_name).config_class(**values)
    config.architectures = [class_name]
    config.tie_word_embeddings = "output.weight" not in gguf.tensor_types
    config.vocab_size = len(gguf.tokens)
    config.bos_token_id = gguf.token_id("bos")
    config.eos_token_id = _one_or_list(gguf.stop_ids)
    config.pad_token_id = gguf.token_id("padding")
    if (head_dim := gguf.get("attention.key_length")) is not None:
        config.head_dim = head_dim  # transformers reads it for few architectures and else assumes its default
    if gguf.architecture == "gemma3":
        config.query_pre_attn_scalar = config.head_dim  # not in the file; so in all Gemma 3 but the 27B
    config.rope_parameters = {**config.rope_parameters, **_rope_scaling(gguf)}
    return config


def generation_settings(gguf: GgufFile) -> dict[str, Any]:
    """What belongs into generation_config.json: the ids that begin and end, and the sampling the file recommends."""
    settings: dict[str, Any] = {
        "bos_token_id": gguf.token_id("bos"),
        "eos_token_id": _one_or_list(gguf.stop_ids),
        "pad_token_id": gguf.token_id("padding"),
    }
    for key, name in SAMPLING_KEYS.items():
        settings[name] = gguf.fields.get(f"general.sampling.{key}")
    settings = {name: value for name, value in settings.items() if value is not None}
    if "temperature" in settings:
        settings["do_sample"] = settings["temperature"] > 0
    return settings


def llama3_factors(theta: float, head_dim: int, factor: float) -> npt.NDArray[np.float64]:
    """What Llama 3's scaling divides each of the head_dim / 2 rotary frequencies by.

    Long waves are stretched by `factor`, short ones kept, those between blended.
    Source: Llama 3.1 reference code, apply_scaling.
    """
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    blend = (LLAMA3_OLD_LENGTH / wavelengths - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    blend = np.clip(blend, 0.0, 1.0)
    factors: npt.NDArray[np.float64] = 1.0 / ((1.0 - blend) / factor + blend)
    return factors


def _rope_scaling(gguf: GgufFile) -> dict[str, Any]:
    kind = gguf.get("rope.scaling.type")
    if gguf.rope_factors is not None:
        return _llama3_scaling(gguf, gguf.rope_factors)
    if kind in (None, "none"):
        return {}
    if kind == "linear" and gguf.architecture != "gemma3":
        return {"rope_type": "linear", "factor": gguf.get("rope.scaling.factor")}
    raise ModelError(f"{gguf.path} scales its rotary positions by {kind!r}, which isn't read from GGUF yet")


def _llama3_scaling(gguf: GgufFile, found: npt.NDArray[np.float32]) -> dict[str, Any]:
    """The file has only the outcome of the scaling; finds the parameters that give it."""
    theta, head_dim = gguf.get("rope.freq_base"), 2 * len(found)
    for factor in LLAMA3_FACTORS:
        if theta and np.allclose(llama3_factors(theta, head_dim, factor), found, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LLAMA3_LOW,
                "high_freq_factor": LLAMA3_HIGH,
                "original_max_position_embeddings": LLAMA3_OLD_LENGTH,
            }
    raise ModelError(f"{gguf.path} scales its rotary positions by a table that is not one of Llama 3's")


def _one_or_list(ids: list[int]) -> int | list[int] | None:
    if len(ids) > 1:
        return ids
    return ids[0] if ids else None
