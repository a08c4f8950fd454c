"""Heads for the tiny models: multi-token-prediction weights as published checkpoints name them, and head files.

They are right often enough to be worth testing: the model's layers are made to whisper, so that what it says mostly
follows from its last token alone, and a head that lets the embedding through guesses it.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from mtplx.model.head_file import HeadFile, HeadMetadata, write_head
from mtplx.model.torch.loader import load_torch_runner
from mtplx.model.torch.runner import TorchRunner
from tests.tiny_models import MAX_POSITION, VOCAB_SIZE, read_tiny_model, write_tiny_model

Tensors = dict[str, torch.Tensor]

MTP_FAMILIES = ("deepseek_v3", "glm4_moe", "mellum")
WHISPER = 0.35  # what is left of each layer's contribution
STRIDE = 37
ECHO = 0.3  # how much of the hidden state a head lets through, beside all of the embedding


def write_tiny_mtp_model(
    folder: Path, name: str, num_modules: int, *, change: Callable[[Tensors], Tensors] = lambda tensors: tensors
) -> Path:
    """Writes a tiny model with that many modules; `change` gets their tensors under `MtpModel`'s own names."""
    write_whispering_model(folder, name, num_mtp_layers=num_modules)
    model = read_tiny_model(folder, name)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        mtp_model = MtpModel(model, num_modules).to(torch.float64)
        tensors = {key: tensor for key, tensor in mtp_model.state_dict().items() if key.startswith("layers.")}
        for module in range(num_modules):
            tensors |= _good_module(tensors, f"layers.{module}.", block="mtp_block.", norm="post_norm.")
    published = _published_names(change(tensors), name, model.config.num_hidden_layers)
    add_weights(folder, published)
    return folder


def write_tiny_head(
    path: Path,
    folder: Path,
    name: str,
    *,
    num_blocks: int = 1,
    intermediate_size: int = 48,
    draft_vocab: Sequence[int] | None = None,
    change: Callable[[Tensors], Tensors] = lambda tensors: tensors,
) -> HeadFile:
    """Writes a head file for the whispering model in `folder`; of several blocks only the first says anything."""
    model = read_tiny_model(folder, name)
    hidden = model.config.hidden_size
    with torch.random.fork_rng():
        torch.manual_seed(8)
        layer = model.get_decoder().layers[-1].state_dict()
        sizes = {model.config.intermediate_size: intermediate_size}
        tensors = {f"{norm}.weight": torch.zeros(hidden, dtype=torch.float64) for norm in ("enorm", "hnorm", "norm")}
        for block, (key, tensor) in itertools.product(range(num_blocks), layer.items()):
            shape = [sizes.get(size, size) for size in tensor.shape] if "mlp" in key else tensor.shape
            is_out = ".o_proj." in key or ".down_proj." in key
            scale = 0.25 * (WHISPER if is_out and block == 0 else float(not is_out))
            values = torch.randn(shape, dtype=torch.float64) * scale if tensor.ndim > 1 else tensor
            tensors[f"blocks.{block}.{key}"] = values
        torch.manual_seed(9)  # the first block is the same, however many follow
        tensors |= _good_module(tensors, "", block="blocks.0.", norm="norm.")
        if name == "gemma3":
            for key in ("enorm.weight", "hnorm.weight", "norm.weight"):
                tensors[key] -= 1
    if draft_vocab is not None:
        tensors["draft_vocab"] = torch.tensor(draft_vocab, dtype=torch.int32)
    arrays = {
        key: tensor.to(torch.float32 if tensor.is_floating_point() else tensor.dtype).numpy()
        for key, tensor in change(tensors).items()
    }
    metadata = HeadMetadata(
        num_blocks=num_blocks,
        hidden_size=hidden,
        vocab_size=VOCAB_SIZE,
        base_model=name,
        base_weights_sha256="",
        tokenizer_sha256="",
        created=date(2026, 1, 2),
    )
    return write_head(path, arrays, metadata)


def head_as_mtp_model(model: Any, head: HeadFile) -> Any:
    """The first block of a head file as transformers' multi-token-prediction layer beside `model`."""
    config = model.config
    config.num_mtp_layers, config.intermediate_size = 1, head.intermediate_size
    if model.config.model_type == "mistral":
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers  # the library makes its mask by these
    if getattr(config, "layer_types", None):
        config.mtp_layer_types = config.layer_types[-1:]
    mtp_model = MtpModel(model, 1).to(torch.float64)
    for key, tensor in mtp_model.layers[0].state_dict().items():
        name = re.sub("^post_norm", "norm", re.sub("^mtp_block", "blocks.0", key))
        tensor.copy_(torch.from_numpy(head.floats(name)))
    return mtp_model


def write_whispering_model(folder: Path, name: str, **options: Any) -> Path:
    """A tiny model that says t + STRIDE after t, where what came before doesn't speak against it."""
    write_tiny_model(folder, name, **options)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for key in weights:
        if key.startswith("model.layers.") and (".o_proj." in key or ".down_proj." in key):
            weights[key] *= WHISPER
        if name == "gemma3" and re.search(r"post_\w+_layernorm", key):
            weights[key].fill_(WHISPER - 1)  # this family norms what its layers add, by 1 + weight
    embedding = weights["model.embed_tokens.weight"]
    embedding.copy_(torch.randn(embedding.shape, generator=torch.Generator().manual_seed(6), dtype=embedding.dtype))
    save_file({**weights, "lm_head.weight": embedding.roll(STRIDE, 0)}, path, metadata={"format": "pt"})
    return folder


def read_mtp_model(folder: Path, name: str) -> Any:
    """Transformers' own model, told under which names this checkpoint's modules are: it knows the published depths."""
    model = read_tiny_model(folder, name)
    first = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"^model\.layers\.{first + i}\." for i in range(4)] + [r"^mtp\."]
    return model


def load_tiny_runner(folder: Path, *, dtype: str = "float64", **settings: Any) -> TorchRunner:
    return load_torch_runner(
        folder, device="cpu", dtype=dtype, threads=1, kv_cache_tokens=1024, max_model_len=MAX_POSITION, **settings
    )


@torch.inference_mode()
def reference_guesses(
    model: Any, mtp_model: Any, known: Sequence[int], depth: int, ids: Sequence[int] = range(VOCAB_SIZE)
) -> tuple[int, ...]:
    """Guesses after `known`, greedy among `ids`: transformers' layers over all slots, afresh at each level."""
    inputs_ND = model.get_decoder()(torch.tensor([known[:-1]])).last_hidden_state[0]
    tokens, first, guesses = list(known[1:]), 1, []
    for level in range(depth):
        module = min(level, mtp_model.num_mtp_layers - 1)
        positions = torch.arange(first, first + len(tokens))[None]
        out_1ND = mtp_model.forward_layer(module, inputs_ND[None], positions, None, input_ids=torch.tensor([tokens]))
        guesses.append(ids[int(model.lm_head(out_1ND[0, -1])[ids].argmax())])
        tokens.append(guesses[-1])
        if level + 1 < mtp_model.num_mtp_layers:
            inputs_ND, first = out_1ND[0], first + 1
            del tokens[0]
        else:
            inputs_ND = torch.cat((inputs_ND, out_1ND[0, -1:]))
    return tuple(guesses)


def add_weights(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})


def drop_weights(folder: Path, target: Path, is_dropped: Callable[[str], object]) -> Path:
    """A copy of the folder without some of its weights."""
    shutil.copytree(folder, target)
    path = target / "model.safetensors"
    kept = {key: tensor for key, tensor in load_file(path).items() if not is_dropped(key)}
    save_file(kept, path, metadata={"format": "pt"})
    return target


def swap_norms(tensors: Tensors) -> Tensors:
    """The embedding under the hidden state's norm, and the reverse."""
    names = {"enorm": "hnorm", "hnorm": "enorm"}
    return {_renamed(key, names): tensor for key, tensor in tensors.items()}


def swap_halves(tensors: Tensors) -> Tensors:
    """The projection for the hidden state first, then the embedding."""
    return {
        key: torch.cat(tensor.chunk(2, dim=1)[::-1], dim=1) if "eh_proj" in key else tensor
        for key, tensor in tensors.items()
    }


def _good_module(tensors: Tensors, prefix: str, *, block: str, norm: str) -> Tensors:
    """Norms that can't be taken for each other, a projection that undoes them, and a block that whispers."""
    hidden = len(tensors[f"{prefix}enorm.weight"])
    spread = torch.randn(2, hidden, dtype=torch.float64)
    enorm, hnorm = (spread.sign() * (0.5 + spread.abs())).unbind()
    changed = {
        f"{prefix}enorm.weight": enorm,
        f"{prefix}hnorm.weight": hnorm,
        f"{prefix}eh_proj.weight": torch.cat(((1 / enorm).diag(), (ECHO / hnorm).diag()), dim=1),
        f"{prefix}{norm}weight": torch.ones(hidden, dtype=torch.float64),
    }
    for key, tensor in tensors.items():
        if key.startswith(f"{prefix}{block}") and tensor.is_floating_point() and tensor.ndim > 1:
            is_out = ".o_proj." in key or "down_proj" in key
            changed[key] = torch.randn_like(tensor) * 0.25 * (WHISPER if is_out else 1.0)
    return changed


def _published_names(tensors: Tensors, name: str, num_layers: int) -> Tensors:
    """As in checkpoints of DeepSeek and GLM, or of Mellum: every expert by itself."""
    published = {}
    for key, tensor in tensors.items():
        for expert_key, part in _single_experts(key, tensor):
            _, module, rest = expert_key.split(".", 2)
            rest = rest.removeprefix("mtp_block.")
            if name == "mellum":
                names = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden"}
                is_outside = rest.split(".")[0] in (*names, "post_norm")
                published_key = (
                    f"mtp.{_renamed(rest, {**names, 'post_norm': 'norm'})}" if is_outside else f"mtp.layers.0.{rest}"
                )
            else:
                rest = rest.replace("post_norm.", "shared_head.norm.")
                published_key = f"model.layers.{num_layers + int(module)}.{rest}"
            published[published_key] = part.clone().contiguous()
    return published


def _single_experts(key: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    if key.endswith("experts.gate_up_proj"):
        stem = key.removesuffix("gate_up_proj")
        halves = [(expert, *both.chunk(2)) for expert, both in enumerate(tensor)]
        return [(f"{stem}{e}.gate_proj.weight", gate) for e, gate, _ in halves] + [
            (f"{stem}{e}.up_proj.weight", up) for e, _, up in halves
        ]
    if key.endswith("experts.down_proj"):
        stem = key.removesuffix("down_proj")
        return [(f"{stem}{expert}.down_proj.weight", down) for expert, down in enumerate(tensor)]
    return [(key, tensor)]


def _renamed(key: str, names: Mapping[str, str]) -> str:
    return ".".join(names.get(part, part) for part in key.split("."))
