"""What of the base model a head is trained against: embedding, output head, and the layers that it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtplx.model.native.shape import NativeShape
from mtplx.model.native.slots import model_slots, safetensors_name
from mtplx.model.native.source import StoredTensor, open_safetensors
from mtplx.train.head import DraftHead


@dataclass(frozen=True, slots=True)
class Base:
    """The frozen parts of a model: embedding and output head, [V, H] in float32, one tensor where they are tied."""

    shape: NativeShape
    embedding: Tensor
    output: Tensor


def load_base(folder: Path, shape: NativeShape) -> Base:
    """Reads embedding and output head of a Hugging Face folder. Raises: ModelError."""
    stored = open_safetensors(folder, shape)
    embedding = _floats(stored["embedding"])
    return Base(shape, embedding, embedding if shape.is_tied else _floats(stored["head"]))


def fresh_head(folder: Path, shape: NativeShape, *, num_blocks: int, max_positions: int) -> DraftHead:
    """A head that starts as the model's last layers over the mean of state and embedding; all of it is learned.

    Raises:
        ModelError: the folder can't be read.
    """
    stored = open_safetensors(folder, shape)
    names = {safetensors_name(slot): slot.name for slot in model_slots(shape)}
    head = DraftHead(shape, num_blocks, max_positions)
    with torch.no_grad():
        for index, block in enumerate(head.blocks):
            layer = shape.num_layers - num_blocks + index
            for name, parameter in block.named_parameters():
                parameter.copy_(_floats(stored[names[f"model.layers.{layer}.{name}"]]))
        half = torch.eye(shape.hidden) / 2
        head.eh_proj.weight.copy_(torch.cat((half, half), dim=1))
        head.norm.weight.copy_(_floats(stored["final_norm"]))
    return head


def _floats(stored: StoredTensor) -> Tensor:
    return torch.from_numpy(stored.floats().copy())
