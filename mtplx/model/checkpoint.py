"""Looks over a folder in Hugging Face layout without loading it: whether all is there, and how large it is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtplx.errors import ModelError

MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a safetensors file; its bytes are those from `begin` up to `end` of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def check_checkpoint(folder: Path) -> None:
    """Raises ModelError if the folder lacks a file that serving needs, or one of its weight files is cut short."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is no model folder: it has no config.json")
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} has no tokenizer.json")
    for path in weight_files(folder):
        read_header(path)


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, those of the index if there is one.

    Raises:
        ModelError: there are none, or the index names one that is missing.
    """
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if index.is_file():
        paths = [folder / name for name in sorted(set(_read_json(index).get("weight_map", {}).values()))]
    else:
        paths = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not paths:
        pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        why = ", only pickled weights, which may run code when loaded" if pickles else ""
        raise ModelError(f"{folder} has no safetensors weights{why}")
    for path in paths:
        if not path.is_file():
            raise ModelError(f"{folder} lacks {path.name}, which its index names")
    return paths


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file by name, from its header alone.

    Raises:
        ModelError: the file is cut short or isn't safetensors.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 0 < header_bytes <= min(size, MAX_HEADER_BYTES):
                raise ValueError("the header doesn't fit")
            header = json.loads(file.read(header_bytes))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        tensors = {name: _tensor_info(entry, 8 + header_bytes) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(f"{path} is damaged, it can't be read as safetensors") from error
    if size != 8 + header_bytes + end:
        raise ModelError(f"{path} is cut short or damaged: {size} bytes instead of {8 + header_bytes + end}")
    return tensors


def count_parameters(folder: Path) -> int:
    """Numbers in all weight files; a tied head counts once."""
    return sum(tensor.num_elements for path in weight_files(folder) for tensor in read_header(path).values())


def weight_types(folder: Path) -> list[str]:
    """The types of the weights, the one with most numbers first, such as F32 or BF16."""
    totals: dict[str, int] = {}
    for path in weight_files(folder):
        for tensor in read_header(path).values():
            totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.num_elements
    return sorted(totals, key=lambda dtype: -totals[dtype])


def _tensor_info(entry: Mapping[str, Any], data_begin: int) -> TensorInfo:
    begin, end = entry["data_offsets"]
    return TensorInfo(entry["dtype"], tuple(entry["shape"]), data_begin + int(begin), data_begin + int(end))


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read as JSON") from error
    return data
