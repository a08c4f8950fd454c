"""The packed weights on disk: one file of tensors in the kernels' layout, and an index beside it.

<root>/native/<key>/weights.bin     tensors one after another, each from a multiple of 64 bytes
<root>/native/<key>/index.json      what lies where, and which files it was made from
<root>/native/<key>/mtplx.json      the manifest by which damage is seen
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mtplx.model.native.formats import Bytes, Floats, Format
from mtplx.model.native.library import Weight
from mtplx.model.native.memory import in_large_pages
from mtplx.model.store import FileStamp, intact_manifest

ALIGNMENT = 64  # bytes; a cache line, and the widest vector
WEIGHTS_NAME = "weights.bin"
INDEX_NAME = "index.json"


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """`offset` and `num_bytes` are the tensor's place in the file; a vector is F32 and one row after another."""

    format: Format
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PackIndex:
    """What a weights file holds by slot; `sources` are the files it was made from, where they had to be hashed."""

    sources: tuple[FileStamp, ...]
    tensors: Mapping[str, PackedTensor]

    @property
    def num_bytes(self) -> int:
        """Size of the weights file."""
        return max(tensor.offset + tensor.num_bytes for tensor in self.tensors.values())

    def formats(self) -> str:
        """The formats of the matrices, most bytes first, such as `q4_1+q8_0`."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            if len(tensor.shape) == 2:
                name = tensor.format.name.lower()
                sizes[name] = sizes.get(name, 0) + tensor.num_bytes
        return "+".join(sorted(sizes, key=lambda name: -sizes[name]))


class PackedWeights:
    """A weights file in memory, mapped or copied. Addresses hold for as long as the object lives."""

    def __init__(self, index: PackIndex, data: Bytes) -> None:
        self.index = index
        self._data = data
        self._base = data.ctypes.data

    def __contains__(self, name: str) -> bool:
        return name in self.index.tensors

    def in_large_pages(self, free_bytes: int) -> PackedWeights:
        """The same, copied into large pages where that can be had and leaves half of `free_bytes`."""
        return PackedWeights(self.index, in_large_pages(self._data, free_bytes))

    def address(self, name: str) -> int:
        return self._base + self.index.tensors[name].offset

    def matrix(self, name: str) -> Weight:
        """What the library is told of a matrix."""
        tensor = self.index.tensors[name]
        rows, cols = tensor.shape
        return Weight(format=tensor.format, num_rows=rows, num_cols=cols, data=self.address(name))

    def vector(self, name: str) -> Floats:
        """Returns a norm or bias as a view."""
        tensor = self.index.tensors[name]
        return self._data[tensor.offset : tensor.offset + tensor.num_bytes].view(np.float32)


def open_packed(folder: Path) -> PackedWeights | None:
    """Maps the folder's weights; None if there are none, or they aren't what was written."""
    if intact_manifest(folder) is None:
        return None
    index = read_index(folder)
    if index is None:
        return None
    return PackedWeights(index, np.memmap(folder / WEIGHTS_NAME, dtype=np.uint8, mode="r", shape=(index.num_bytes,)))


def write_index(folder: Path, index: PackIndex) -> None:
    data = {
        "sources": [asdict(stamp) for stamp in index.sources],
        "tensors": {name: asdict(tensor) for name, tensor in index.tensors.items()},
    }
    (folder / INDEX_NAME).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def read_index(folder: Path) -> PackIndex | None:
    """The folder's index; None where there is none that this version can read."""
    try:
        data = json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))
        tensors = {
            name: PackedTensor(Format(item["format"]), tuple(item["shape"]), item["offset"], item["num_bytes"])
            for name, item in data["tensors"].items()
        }
        return PackIndex(tuple(FileStamp(**item) for item in data["sources"]), tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def known_stamps(root: Path) -> Iterator[FileStamp]:
    """Stamps of source files from earlier packing: large files take long to read."""
    for folder in sorted((root / "native").glob("*/")):
        index = read_index(folder)
        if index is not None:
            yield from index.sources
