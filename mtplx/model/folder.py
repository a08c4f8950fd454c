"""Reads what a model folder in Hugging Face layout says of itself; imports no torch, so that it is quick."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtplx.errors import ModelError
from mtplx.model.families import Config, Family, find_family
from mtplx.model.spec import ModelSpec

log = logging.getLogger(__name__)


def read_spec(folder: Path) -> ModelSpec:
    """Returns the spec of the model in `folder`, from config.json and, where there is one, generation_config.json.

    Raises:
        ModelError: no such folder or file, broken JSON, a missing field, or a model that isn't supported.
    """
    config = read_config(folder)
    if "auto_map" in config:
        log.warning("%s names Python code of its own (auto_map), which is never run", folder / "config.json")
    family = find_family(config)
    generation = _read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    num_heads = _size(config, "num_attention_heads")
    hidden_size = _size(config, "hidden_size")
    return ModelSpec(
        architecture=family.architecture,
        num_layers=_size(config, "num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, family, num_heads),
        head_dim=_head_dim(config, family, hidden_size // num_heads),
        vocab_size=_size(config, "vocab_size"),
        max_position=_size(config, "max_position_embeddings"),
        eos_ids=_eos_ids(generation, config),
        sliding_window=_sliding_window(config, family),
        default_temperature=_number(generation, "temperature"),
        default_top_p=_number(generation, "top_p"),
        default_top_k=None if (top_k := _number(generation, "top_k")) is None else int(top_k),
        num_mtp_layers=_num_mtp_layers(config, family),
        value_head_dim=_size(config, "v_head_dim") if family.is_latent else None,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Returns config.json of a model folder as it is.

    Raises:
        ModelError: the folder or the file is missing, or isn't a JSON object.
    """
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it isn't a model folder in Hugging Face layout")
    return _read_json(folder / "config.json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _size(config: Config, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json must give {key} as a positive number, got {value!r}")
    return value


def _num_kv_heads(config: Config, family: Family, num_heads: int) -> int:
    num_kv_heads = config.get("num_key_value_heads", family.default_kv_heads) or num_heads
    if not isinstance(num_kv_heads, int) or num_heads % num_kv_heads:
        raise ModelError(f"config.json gives {num_kv_heads!r} key/value heads, which doesn't divide {num_heads} heads")
    if family.is_latent and num_kv_heads != num_heads:
        raise ModelError(f"config.json gives {num_kv_heads} key/value heads; latent attention has one a query head")
    return num_kv_heads


def _head_dim(config: Config, family: Family, default: int) -> int:
    """The width of a query and a key."""
    if family.is_latent:
        return _size(config, "qk_nope_head_dim") + _size(config, "qk_rope_head_dim")
    return int(config.get("head_dim") or family.default_head_dim or default)


def _num_mtp_layers(config: Config, family: Family) -> int:
    if family.mtp_prefix is None:
        return 0
    return int(config.get("num_nextn_predict_layers") or config.get("num_mtp_layers") or 0)


def _sliding_window(config: Config, family: Family) -> int | None:
    if family.sliding == "never" or (family.sliding == "flagged" and not config.get("use_sliding_window")):
        return None
    window = config.get("sliding_window", 4096)
    return None if window is None else int(window)


def _eos_ids(generation: Mapping[str, Any], config: Config) -> frozenset[int]:
    """The generation config's ids win over config.json's, as in transformers' own generate."""
    ids = generation.get("eos_token_id")
    if ids is None:
        ids = config.get("eos_token_id")
    if ids is None:
        return frozenset()
    return frozenset(int(token_id) for token_id in (ids if isinstance(ids, list) else [ids]))


def _number(generation: Mapping[str, Any], key: str) -> float | None:
    value = generation.get(key)
    return None if value is None else float(value)
