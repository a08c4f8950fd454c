"""Model definitions of transformers with a folder's weights in them: nothing missing, made up or left unread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.modeling_layers import MtpModel

from mtplx.errors import ModelError
from mtplx.model.mtp import mtp_names
from mtplx.model.spec import ModelSpec
from mtplx.model.torch.attention import ATTENTION_NAME, register_attention
from mtplx.model.torch.experts import EXPERTS_NAME, register_experts

# Buffers that old checkpoints carry and every model now computes for itself.
_HARMLESS_TENSOR = re.compile(r"rotary_emb\.inv_freq$")


def load_model(folder: Path, spec: ModelSpec, dtype: torch.dtype, *, tiled: bool) -> Any:
    """Returns transformers' model with every weight read from the folder's safetensors, on the CPU, ready to infer.

    Raises:
        ModelError: a weight is missing, has another shape, or has no place in the model; or the folder can't be read.
    """
    register_attention()
    register_experts()
    model_class = getattr(transformers, spec.architecture)
    with _as_model_error(f"{folder} can't be loaded as {spec.architecture}"):
        config = model_class.config_class.from_pretrained(folder, local_files_only=True)
        _check_agreement(spec, config)
        model, found = model_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            experts_implementation=_experts_implementation(dtype, tiled=tiled),
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused below
            output_loading_info=True,
        )
    _refuse_incomplete(folder, spec, found)
    return model.eval().requires_grad_(False)


def load_mtp_model(model: Any, folder: Path, spec: ModelSpec) -> Any:
    """Returns the multi-token-prediction modules of the folder's checkpoint as transformers' own `MtpModel`.

    Embedding, output head and rotary frequencies are `model`'s own, and so is the device.

    Raises:
        ModelError: a weight is missing.
    """
    # The library looks for the names that the published checkpoints of a class have, whatever this model's depth.
    model._keys_to_ignore_on_load_unexpected = [mtp_names(spec).pattern]
    with _as_model_error(
        f"{folder} can't be loaded with its multi-token-prediction layers", "; --draft-head none does"
    ):
        mtp_model = MtpModel.from_pretrained(model, device_map={"": model.device})
    if mtp_model.config._experts_implementation == EXPERTS_NAME:
        mtp_model.config._experts_implementation = "eager"  # drafts come in batches of any size
    return mtp_model.eval().requires_grad_(False)


def _experts_implementation(dtype: torch.dtype, *, tiled: bool) -> str | None:
    """How a mixture of experts is computed; None is the library's own choice, which takes no float64."""
    if tiled:
        return EXPERTS_NAME
    return "eager" if dtype is torch.float64 else None


def _refuse_incomplete(folder: Path, spec: ModelSpec, found: dict[str, Any]) -> None:
    """Transformers only warns, and fills what is missing with random numbers."""
    mtp = mtp_names(spec)
    strange = [name for name in found["unexpected_keys"] if not (_HARMLESS_TENSOR.search(name) or mtp.search(name))]
    for what, names in (
        ("lacks weights", found["missing_keys"]),
        ("has weights of another shape than config.json says", [name for name, *_ in found["mismatched_keys"]]),
        ("has weights that the model has no place for", strange),
    ):
        if names:
            raise ModelError(f"{folder} {what} ({spec.architecture}): {_some(names)}")


def _check_agreement(spec: ModelSpec, config: Any) -> None:
    """The cache is sized from the spec and filled by the model, so that both must read config.json alike."""
    key_width = getattr(config, "qk_head_dim", None) or getattr(config, "head_dim", None) or spec.head_dim
    for name, ours, theirs in (
        ("layers", spec.num_layers, config.num_hidden_layers),
        ("heads", spec.num_heads, config.num_attention_heads),
        ("key/value heads", spec.num_kv_heads, config.num_key_value_heads),
        ("values in a head", spec.head_dim, key_width),
        ("tokens in the vocabulary", spec.vocab_size, config.vocab_size),
        ("tokens in the sliding window", spec.sliding_window, getattr(config, "sliding_window", None)),
    ):
        if ours != theirs:
            raise ValueError(f"config.json is read as {ours} {name}, transformers reads {theirs}")


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more


@contextmanager
def _as_model_error(what: str, way_out: str = "") -> Iterator[None]:
    """What transformers raises becomes a ModelError of one sentence; what it would print is not printed."""
    try:
        with _quiet_transformers():
            yield
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{what}: {shorten(first_line, 240)}{way_out}") from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings from transformers meanwhile; what they would say becomes a ModelError here."""
    logging = transformers.utils.logging
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
