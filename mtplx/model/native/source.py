"""Where weights come from: a GGUF file or safetensors, seen as bytes by slot, mapped and not read until asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mtplx.errors import ModelError
from mtplx.model.checkpoint import read_header, weight_files
from mtplx.model.native.formats import Bytes, Floats, to_floats
from mtplx.model.native.shape import NativeShape
from mtplx.model.native.slots import Slot, gguf_name, model_slots, safetensors_name

RowOrder = npt.NDArray[np.int32]

# Tensors that hold nothing the model needs: tables of rotary frequencies, which follow from the configuration.
_HARMLESS = re.compile(r"rotary_emb\.inv_freq$|^rope_freqs\.weight$")
_TIED_COPY = frozenset({"lm_head.weight", "output.weight"})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its file has it. Row i of the model is row `row_order[i]` of the file, row i where that is None."""

    kind: str  # the type by GGUF's name, such as BF16 or Q4_1
    shape: tuple[int, ...]
    data: Bytes  # flat, a view of the mapped file
    row_order: RowOrder | None = None

    def floats(self) -> Floats:
        """Returns the values in the model's order, [rows, cols] of a matrix and [size] of a vector."""
        values = to_floats(self.data, self.kind, self.shape[-1])
        if len(self.shape) == 1:
            values = values.reshape(-1)
        return values if self.row_order is None else values[self.row_order]


def open_gguf(path: Path, shape: NativeShape) -> dict[str, StoredTensor]:
    """The tensors of a GGUF file by slot.

    Raises:
        ModelError: the file doesn't hold exactly this model's tensors.
    """
    from gguf import GGUFReader

    reader = GGUFReader(path)
    field = reader.fields["general.architecture"]
    found = {
        tensor.name: StoredTensor(
            tensor.tensor_type.name,
            tuple(int(size) for size in reversed(tensor.shape)),
            tensor.data.reshape(-1).view(np.uint8),
        )
        for tensor in reader.tensors
    }
    stored = _fill_slots(path, shape, found, {slot.name: gguf_name(slot) for slot in model_slots(shape)})
    return _in_model_order(stored, shape) if field.contents() == "llama" else stored


def open_safetensors(folder: Path, shape: NativeShape) -> dict[str, StoredTensor]:
    """The tensors of a Hugging Face folder by slot.

    Raises:
        ModelError: as for `open_gguf`, or a file is damaged.
    """
    found: dict[str, StoredTensor] = {}
    for path in weight_files(folder):
        data = np.memmap(path, dtype=np.uint8, mode="r")
        for name, tensor in read_header(path).items():
            found[name] = StoredTensor(tensor.dtype, tensor.shape, data[tensor.begin : tensor.end])
    return _fill_slots(folder, shape, found, {slot.name: safetensors_name(slot) for slot in model_slots(shape)})


def pair_order(num_heads: int, head_dim: int) -> RowOrder:
    """The row order that takes rows made for rotating neighbours back to rotating the halves of a head.

    GGUF's llama files hold row 2j + h of a head where the model's definition has row h * head_dim / 2 + j:

        one head of 4:  in the file a0 b0 a1 b1,  in the model a0 a1 b0 b1,  order 0 2 1 3
    """
    rows = np.arange(num_heads * head_dim, dtype=np.int32).reshape(num_heads, head_dim // 2, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def _in_model_order(stored: Mapping[str, StoredTensor], shape: NativeShape) -> dict[str, StoredTensor]:
    orders = {
        "q": pair_order(shape.num_heads, shape.head_dim),
        "k": pair_order(shape.num_kv_heads, shape.head_dim),
    }
    ordered = {}
    for name, tensor in stored.items():
        part = name.rpartition(".")[2].removesuffix("_bias")
        order = orders.get(part)
        ordered[name] = StoredTensor(tensor.kind, tensor.shape, tensor.data, order)
    return ordered


def _fill_slots(
    path: Path, shape: NativeShape, found: Mapping[str, StoredTensor], names: Mapping[str, str]
) -> dict[str, StoredTensor]:
    slots = model_slots(shape)
    _refuse_others(path, found, set(names.values()), shape)
    return {slot.name: _checked(path, slot, names[slot.name], found) for slot in slots}


def _checked(path: Path, slot: Slot, name: str, found: Mapping[str, StoredTensor]) -> StoredTensor:
    tensor = found.get(name)
    if tensor is None:
        raise ModelError(f"{path} lacks {name}")
    if tensor.shape != slot.shape:
        raise ModelError(
            f"{path} has {name} of shape {list(tensor.shape)} where config.json implies {list(slot.shape)}"
        )
    return tensor


def _refuse_others(path: Path, found: Mapping[str, Any], known: set[str], shape: NativeShape) -> None:
    """A tensor without a place means that the model computes something that this runner doesn't."""
    tied = _TIED_COPY if shape.is_tied else frozenset()
    strange = [name for name in found if name not in known and name not in tied and not _HARMLESS.search(name)]
    if strange:
        raise ModelError(f"{path} has weights that a native model has no place for: {_some(strange)}")


def _some(names: Sequence[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
