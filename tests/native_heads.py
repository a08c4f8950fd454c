"""Draft heads for native models: random ones, and one that is right often enough to be worth verifying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from mtplx.model.folder import read_spec
from mtplx.model.head_file import HeadFile, HeadMetadata, tokenizer_sha256, write_head
from mtplx.model.native.pack import open_source
from mtplx.model.native.shape import read_shape
from mtplx.model.native.slots import Slot, head_file_name, head_slots
from mtplx.model.weights import ModelFolder
from tests.tiny_heads import ECHO, write_whispering_model

Floats = npt.NDArray[np.float32]

INTERMEDIATE = 160  # unlike any tiny model's own
LOWER = 0.4  # a wider model's layers speak louder


def write_random_head(
    model: ModelFolder, path: Path, *, num_blocks: int = 1, draft_ids: Sequence[int] | None = None, **metadata: Any
) -> HeadFile:
    """A head whose every number matters, for a tiny model; its MLP is as wide as INTERMEDIATE."""
    shape = replace(read_shape(model.path), num_layers=num_blocks, intermediate=INTERMEDIATE)
    rng = np.random.default_rng(11)
    values = {slot: _random(slot, rng) for slot in head_slots(shape)}
    return _write(model, path, values, num_blocks, draft_ids, metadata)


def write_echoing_head(model: ModelFolder, path: Path, draft_ids: Sequence[int] | None = None) -> HeadFile:
    """A head that hands the token's embedding on, with a little of the hidden state: for a whispering model."""
    shape = replace(read_shape(model.path), num_layers=1, intermediate=INTERMEDIATE)
    rng, unit = np.random.default_rng(12), np.eye(shape.hidden, dtype=np.float32)
    values = {slot: 0.3 * _random(slot, rng) if slot.is_matrix else _ones(slot) for slot in head_slots(shape)}
    values[next(slot for slot in values if slot.name == "eh_proj")] = np.concatenate([unit, ECHO * unit], axis=1)
    return _write(model, path, values, 1, draft_ids, {})


def write_trunk_head(model: ModelFolder, path: Path, draft_ids: Sequence[int] | None = None) -> HeadFile:
    """A head that starts where training does: the model's own last layer and norm over the mean of both inputs."""
    trunk = read_shape(model.path)
    source, shape = open_source(model, trunk), replace(trunk, num_layers=1)
    unit = 0.5 * np.eye(shape.hidden, dtype=np.float32)
    values: dict[Slot, Floats] = {}
    for slot in head_slots(shape):
        if slot.name in ("enorm", "hnorm"):
            values[slot] = _ones(slot)
        elif slot.name == "eh_proj":
            values[slot] = np.concatenate([unit, unit], axis=1)
        else:
            layer = f"{trunk.num_layers - 1}.{slot.part}" if "." in slot.name else slot.name
            values[slot] = source[layer].floats()
    return _write(model, path, values, 1, draft_ids, {})


def write_whispering(folder: Path) -> ModelFolder:
    """A tiny model in sizes that the native runner takes, of which an echoing head guesses a good part."""
    write_whispering_model(folder, "llama", dtype=torch.float32, hidden_size=64, intermediate_size=96)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name in weights:
        if ".o_proj." in name or ".down_proj." in name:
            weights[name] *= LOWER
    save_file(weights, path, metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(TOKENIZER)
    return ModelFolder(folder, "whisper", "made in a test")


# What a head's file is checked against; nobody reads text with it.
TOKENIZER = '{"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<eos>"}]}'


def _random(slot: Slot, rng: np.random.Generator) -> Floats:
    if slot.is_matrix:
        return (rng.normal(size=slot.shape) / np.sqrt(slot.shape[1])).astype(np.float32)
    centre = 0.0 if slot.part.endswith("bias") else 1.0
    return (centre + 0.3 * rng.normal(size=slot.shape)).astype(np.float32)


def _ones(slot: Slot) -> Floats:
    return np.ones(slot.shape, dtype=np.float32)


def _write(
    model: ModelFolder,
    path: Path,
    values: Mapping[Slot, Floats],
    num_blocks: int,
    draft_ids: Sequence[int] | None,
    given: Mapping[str, Any],
) -> HeadFile:
    spec = read_spec(model.path)
    if not (model.path / "tokenizer.json").exists():
        (model.path / "tokenizer.json").write_text(TOKENIZER)
    described: dict[str, Any] = {
        "num_blocks": num_blocks,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "base_model": model.name,
        "base_weights_sha256": model.gguf_sha256 or "0" * 64,
        "tokenizer_sha256": tokenizer_sha256(model.path),
        "created": date(2026, 11, 29),
    }
    tensors: dict[str, npt.NDArray[Any]] = {head_file_name(slot): value for slot, value in values.items()}
    if draft_ids is not None:
        tensors["draft_vocab"] = np.array(draft_ids, dtype=np.int32)
    return write_head(path, tensors, HeadMetadata(**{**described, **given}))
