"""From a head file to the weights that the library reads: rounded and laid out in memory while the model is loaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mtplx.errors import ModelError
from mtplx.model.head_file import HeadFile
from mtplx.model.head_shapes import DRAFT_VOCAB
from mtplx.model.native.formats import Bytes, Floats, Format, Quantization, target_format, to_blocks
from mtplx.model.native.library import NativeLibrary
from mtplx.model.native.memory import zeroed_bytes
from mtplx.model.native.packed import ALIGNMENT, PackedTensor, PackedWeights, PackIndex
from mtplx.model.native.shape import GROUP, NativeShape
from mtplx.model.native.slots import EMBEDDINGS, Slot, head_file_name, head_slots


def head_shape(head: HeadFile, trunk: NativeShape) -> NativeShape:
    """The head's blocks as a decoder of its own.

    Raises:
        ModelError: its layers lack what the model's have, or have more, or are of a size that isn't native.
    """
    if head.intermediate_size % GROUP:
        raise ModelError(
            f"the draft head {head.path} has intermediate size {head.intermediate_size}, no multiple of 32"
        )
    shape = replace(trunk, num_layers=head.metadata.num_blocks, intermediate=head.intermediate_size)
    wanted = {head_file_name(slot) for slot in head_slots(shape)}
    odd = sorted(wanted ^ (set(head.shapes) - {DRAFT_VOCAB}))
    if odd:
        raise ModelError(f"the draft head {head.path} doesn't have the layers of this model: they differ in {odd[0]}")
    return shape


def pack_head(
    head: HeadFile, shape: NativeShape, quantization: Quantization, trunk: PackedWeights, library: NativeLibrary
) -> PackedWeights:
    """Returns the head's weights and, where its vocabulary is reduced, the rows of the trunk's output head for it.

    int4 keeps those rows in 8 bits: in 4 every fifth argmax was another one (SmolLM2-135M).
    """
    values = {slot: head.floats(head_file_name(slot)) for slot in head_slots(shape)}
    if head.draft_vocab is not None:
        rows = library.unpack_rows(trunk.matrix("head" if "head" in trunk else "embedding"), head.draft_vocab)
        values[Slot("head", rows.shape)] = rows
    tensors, offset = {}, 0
    for slot in values:
        kept_as = _format(slot, quantization)
        num_bytes = library.packed_bytes(kept_as, *slot.shape) if slot.is_matrix else 4 * slot.shape[0]
        tensors[slot.name] = PackedTensor(kept_as, slot.shape, offset, num_bytes)
        offset += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    data = zeroed_bytes(offset)
    for slot, floats in values.items():
        tensor = tensors[slot.name]
        _write(floats, tensor, library, data[tensor.offset : tensor.offset + tensor.num_bytes])
    return PackedWeights(PackIndex((), tensors), data)


def _format(slot: Slot, quantization: Quantization) -> Format:
    return target_format("F32", quantization, is_embedding=slot.part in EMBEDDINGS) if slot.is_matrix else Format.F32


def _write(floats: Floats, tensor: PackedTensor, library: NativeLibrary, out: Bytes) -> None:
    if floats.ndim == 1:
        out[:] = floats.view(np.uint8)
    else:
        num_rows, num_cols = tensor.shape
        library.pack(tensor.format, num_rows, num_cols, None, to_blocks(floats, tensor.format), out)
