"""From a model folder or GGUF file to packed weights in the cache, packed once and mapped ever after."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from mtplx.model.checkpoint import weight_files
from mtplx.model.native.formats import Bytes, Format, Quantization, target_format, to_blocks
from mtplx.model.native.library import NativeLibrary
from mtplx.model.native.packed import (
    ALIGNMENT,
    WEIGHTS_NAME,
    PackedTensor,
    PackedWeights,
    PackIndex,
    known_stamps,
    open_packed,
    write_index,
)
from mtplx.model.native.shape import NativeShape
from mtplx.model.native.slots import EMBEDDINGS, Slot, model_slots
from mtplx.model.native.source import StoredTensor, open_gguf, open_safetensors
from mtplx.model.store import FileStamp, Say, exclusive, is_intact, staged_folder, stamp_file, write_manifest
from mtplx.model.weights import ModelFolder

PACKER_VERSION = 1  # raised when the same file would give other bytes in the same layout
INDEX_BYTES = 10_000_000  # more than index and manifest take


def packed_weights(
    model: ModelFolder, shape: NativeShape, quantization: Quantization, library: NativeLibrary, root: Path, say: Say
) -> tuple[PackedWeights, str]:
    """Returns the model's weights, packed now if they aren't yet, and a digest of the source's bytes.

    Raises:
        ModelError: the source is damaged or holds what can't be kept; or the cache's disk is full.
        ConfigError: `quantization` would round a second time.
    """
    stamps = () if model.gguf_sha256 else _stamps(weight_files(model.path), root)
    digest = model.gguf_sha256 or joined_sha256(stamps)
    target = root / "native" / _key(model, shape, quantization, digest, library.layout_version)
    packed = open_packed(target)
    if packed is not None:
        return packed, digest
    with exclusive(root, target.name, say):
        packed = open_packed(target)  # another process may have packed it meanwhile
        if packed is None:
            say(f"packing the weights of {model.name} for this machine's kernels, once")
            pack(open_source(model, shape), shape, quantization, library, target, stamps, model.source)
            packed = open_packed(target)
    assert packed is not None, f"{target} was written and can't be read"
    return packed, digest


def is_packed(
    model: ModelFolder, shape: NativeShape, quantization: Quantization, library: NativeLibrary, root: Path
) -> bool:
    """Whether the model's weights lie packed in the cache; False where finding out would take reading them all."""
    if model.gguf_sha256 is None:
        return False
    key = _key(model, shape, quantization, model.gguf_sha256, library.layout_version)
    return open_packed(root / "native" / key) is not None


def open_source(model: ModelFolder, shape: NativeShape) -> dict[str, StoredTensor]:
    """The model's tensors as they are stored, from its GGUF if it has one. Raises: ModelError."""
    return open_safetensors(model.path, shape) if model.gguf_path is None else open_gguf(model.gguf_path, shape)


def pack(
    source: Mapping[str, StoredTensor],
    shape: NativeShape,
    quantization: Quantization,
    library: NativeLibrary,
    target: Path,
    stamps: Sequence[FileStamp],
    origin: str,
) -> None:
    """Writes the folder `target`, whole or not at all. The caller holds its lock."""
    index = _lay_out(source, shape, quantization, library, stamps)
    with staged_folder(target, index.num_bytes + INDEX_BYTES) as staging:
        data = _new_file(staging / WEIGHTS_NAME, index.num_bytes)
        for name, tensor in index.tensors.items():
            _write(source[name], tensor, library, data[tensor.offset : tensor.offset + tensor.num_bytes])
        del data  # unmaps; the manifest's writer flushes it to the disk
        write_index(staging, index)
        write_manifest(staging, origin)


def joined_sha256(stamps: Iterable[FileStamp]) -> str:
    """One digest of several files, in their order."""
    return hashlib.sha256("".join(stamp.sha256 for stamp in stamps).encode()).hexdigest()


def _new_file(path: Path, num_bytes: int) -> Bytes:
    """Maps a new file whose room on the disk is taken first: a disk that fills up under a mapping kills the process."""
    with path.open("xb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        else:
            file.truncate(num_bytes)
    return np.memmap(path, dtype=np.uint8, mode="r+", shape=(num_bytes,))


def _lay_out(
    source: Mapping[str, StoredTensor],
    shape: NativeShape,
    quantization: Quantization,
    library: NativeLibrary,
    stamps: Sequence[FileStamp],
) -> PackIndex:
    tensors, offset = {}, 0
    for slot in model_slots(shape):
        kept_as = _format(slot, source[slot.name].kind, quantization)
        num_bytes = library.packed_bytes(kept_as, *slot.shape) if slot.is_matrix else 4 * slot.shape[0]
        assert num_bytes > 0, f"{slot} in {kept_as.name} passed the checks of the shape"
        tensors[slot.name] = PackedTensor(kept_as, slot.shape, offset, num_bytes)
        offset += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return PackIndex(tuple(stamps), tensors)


def _format(slot: Slot, stored: str, quantization: Quantization) -> Format:
    if not slot.is_matrix:
        return Format.F32
    return target_format(stored, quantization, is_embedding=slot.part in EMBEDDINGS)


def _write(stored: StoredTensor, tensor: PackedTensor, library: NativeLibrary, out: Bytes) -> None:
    """Rounds where asked for, puts rows into the model's order, and lays the matrix out as the kernels read it."""
    if len(tensor.shape) == 1:
        out[:] = stored.floats().view(np.uint8)
        return
    num_rows, num_cols = tensor.shape
    if tensor.format.name == stored.kind:
        library.pack(tensor.format, num_rows, num_cols, stored.row_order, stored.data, out)
    else:
        library.pack(tensor.format, num_rows, num_cols, None, to_blocks(stored.floats(), tensor.format), out)


def _stamps(paths: Sequence[Path], root: Path) -> tuple[FileStamp, ...]:
    """The files' stamps, known ones where nothing has changed since."""
    known = {stamp.path: stamp for stamp in known_stamps(root)}
    stamps = []
    for path in paths:
        stamp = known.get(str(path.absolute()))
        stamps.append(stamp if stamp is not None and is_intact(path, stamp) else stamp_file(path))
    return tuple(stamps)


def _key(model: ModelFolder, shape: NativeShape, quantization: Quantization, digest: str, layout_version: int) -> str:
    """Names all that the bytes depend on. The shape counts: it says which rows are reordered, and what is tied."""
    stem = re.sub(r"[^\w.-]+", "-", model.name)
    content = hashlib.sha256(f"{digest} {model_slots(shape)} {shape.head_dim}".encode()).hexdigest()
    return f"{stem}-{content[:16]}-{quantization}-v{PACKER_VERSION}.{layout_version}"
