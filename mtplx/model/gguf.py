"""Reads a GGUF file's header: metadata, names and types of its tensors. Weights and tokenizers are built elsewhere."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mtplx.errors import ModelError

ROPE_FACTORS = "rope_freqs.weight"  # derived from the configuration; not a weight of the model


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file says of itself."""

    path: Path
    architecture: str  # llama.cpp's name, such as llama or qwen3
    fields: Mapping[str, Any]  # all metadata, arrays as lists
    tensor_types: Mapping[str, str]  # the type of each tensor by its name, such as Q4_1
    matrix_types: Sequence[str]  # the types of its matrices, the one with most numbers first
    num_parameters: int
    rope_factors: npt.NDArray[np.float32] | None = None  # [head_dim / 2], what each frequency is divided by

    def get(self, key: str) -> Any:
        """The architecture's own value, such as `context_length`; None where the file has none."""
        return self.fields.get(f"{self.architecture}.{key}")

    @property
    def tokens(self) -> Sequence[str]:
        """The vocabulary in id order; empty if the file carries no tokenizer."""
        tokens: Sequence[str] = self.fields.get("tokenizer.ggml.tokens", ())
        return tokens

    def token_id(self, role: str) -> int | None:
        """The id of a special token by its role: bos, eos, eot, eom, unknown, padding."""
        found: int | None = self.fields.get(f"tokenizer.ggml.{role}_token_id")
        return found

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end an answer: of the sequence, of the turn, of the message."""
        found = (self.token_id(role) for role in ("eos", "eot", "eom"))
        return list(dict.fromkeys(token_id for token_id in found if token_id is not None))


def read_gguf(path: Path) -> GgufFile:
    """Reads the header; weights are mapped, not read.

    Raises:
        ModelError: no such file, not GGUF, cut short, or without an architecture.
    """
    _check_magic(path)
    # The reader walks offsets that it finds in the file, so damage shows as any of these.
    damage = (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, MemoryError, struct.error)
    try:
        return _read(path)
    except damage as error:
        raise ModelError(f"{path} is damaged or cut short, it can't be read as GGUF: fetch it again") from error


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path}") from error
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file")


def _read(path: Path) -> GgufFile:
    from gguf import GGUFReader

    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    factors = next((tensor.data for tensor in reader.tensors if tensor.name == ROPE_FACTORS), None)
    architecture = fields["general.architecture"]
    weights = [tensor for tensor in reader.tensors if tensor.name != ROPE_FACTORS]
    return GgufFile(
        path=path,
        architecture=architecture,
        fields=fields,
        tensor_types={tensor.name: tensor.tensor_type.name for tensor in weights},
        matrix_types=_types_by_size(tensor for tensor in weights if len(tensor.shape) > 1),
        num_parameters=sum(int(tensor.n_elements) for tensor in weights),
        rope_factors=None if factors is None else np.array(factors, dtype=np.float32),
    )


def _types_by_size(tensors: Iterable[Any]) -> list[str]:
    totals: Counter[str] = Counter()
    for tensor in tensors:
        totals[tensor.tensor_type.name] += int(tensor.n_elements)
    return [name for name, _ in totals.most_common()]
