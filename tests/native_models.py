"""Tiny models in sizes that the native runner takes, as folders and GGUF files, and what their logits should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mtplx.batching.state import Row, StepPlan
from mtplx.model.native.loader import load_native_runner
from mtplx.model.native.runner import NativeRunner
from mtplx.model.runner import Runner
from mtplx.model.weights import ModelFolder, resolve_model
from tests.gguf_files import K_SIZES, tiny_model, write_gguf
from tests.tiny_models import MAX_POSITION, write_tiny_model

_SIZES = {"hidden_size": 64, "intermediate_size": 96}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

# A tiny family of tests/tiny_models.py, and options over it. Between them: every rope type, head grouping, bias, norm,
# window and tie that the runner serves; a head width that isn't hidden_size / heads.
NATIVE_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama3 rope": ("llama3_rope", {}),
    "linear rope": ("llama", {"rope_parameters": _LINEAR}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "mistral sliding": ("mistral_sliding", {}),
    "mistral full": ("mistral_full", {}),
}


def write_native_model(folder: Path, name: str, dtype: torch.dtype = torch.float32, **options: Any) -> ModelFolder:
    """Writes the named model into `folder`."""
    family, own = NATIVE_MODELS[name]
    write_tiny_model(folder, family, dtype, **{**_SIZES, **own, **options})
    return ModelFolder(folder, name, "made in a test")


def write_native_gguf(path: Path, architecture: str, tensor_type: str, **sizes: Any) -> tuple[ModelFolder, Any]:
    """Writes and resolves a GGUF file; returns it with the model it was made from. Needs a cache folder of its own."""
    own = K_SIZES if "_K" in tensor_type else {"hidden_size": 64} if architecture == "qwen2" else {}
    original = tiny_model(architecture, **own, **sizes)
    write_gguf(path, architecture, original, tensor_type=tensor_type)
    return resolve_model(str(path), with_weights=False), original


def load_native(model: ModelFolder, root: Path, **options: Any) -> NativeRunner:
    """A runner with a small cache on one thread, its packed weights below `root`."""
    defaults: dict[str, Any] = {"threads": 1, "kv_cache_tokens": 1024, "max_model_len": MAX_POSITION}
    return load_native_runner(model, root=root, say=lambda line: None, **{**defaults, **options})


def all_logits(
    runner: Runner, token_ids: Sequence[int], *, chunk: int = 10_000, first_block: int = 0
) -> npt.NDArray[np.float32]:
    """logits_NV of every position of one sequence, computed in chunks, in blocks from `first_block` on."""
    num_blocks = -(-len(token_ids) // runner.block_size)
    blocks = tuple(range(first_block, first_block + num_blocks))
    parts = []
    for start in range(0, len(token_ids), chunk):
        piece = tuple(token_ids[start : start + chunk])
        parts.append(runner.run(StepPlan((Row(0, start, piece, blocks, num_logits=len(piece)),))))
    return np.concatenate(parts).astype(np.float32)


def random_ids(count: int, vocab_size: int, seed: int = 5) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, vocab_size, count).tolist()
    return ids


def relative_error(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """The error's length over the expectation's."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
