"""How matrices may be kept: the formats that the kernels multiply, which one a tensor gets, and rounding to it.

Blocks are GGUF's own: 32 values with one scale (and in some one offset), in the K formats 256 with scales of scales.
Rounding happens here or not at all: what a GGUF holds in a format of the kernels stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mtplx.errors import ConfigError, ModelError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# What `--quantization` asks for, once `auto` is resolved: `file` keeps every tensor as the file has it.
Quantization = Literal["file", "none", "int8", "int4"]


class Format(IntEnum):
    """The kernels' formats, by the numbers of GGUF's tensor types."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What one block holds; `float16_at` is where its scale lies and, if it has one, its minimum."""

    num_bytes: int
    num_weights: int
    float16_at: tuple[int, ...]


BLOCK_FORMATS: Mapping[Format, BlockFormat] = {
    Format.Q4_0: BlockFormat(18, 32, (0,)),
    Format.Q4_1: BlockFormat(20, 32, (0, 2)),
    Format.Q5_0: BlockFormat(22, 32, (0,)),
    Format.Q5_1: BlockFormat(24, 32, (0, 2)),
    Format.Q8_0: BlockFormat(34, 32, (0,)),
    Format.Q4_K: BlockFormat(144, 256, (0, 2)),
    Format.Q5_K: BlockFormat(176, 256, (0, 2)),
    Format.Q6_K: BlockFormat(210, 256, (208,)),
}


def resolve_quantization(setting: str, *, from_gguf: bool) -> Quantization:
    """Returns what `--quantization` comes to: `auto` is a GGUF's own formats, and int8 for safetensors."""
    if setting == "auto":
        return "file" if from_gguf else "int8"
    assert setting in ("none", "int8", "int4"), setting
    return setting  # type: ignore[return-value]


def target_format(stored: str, quantization: Quantization, *, is_embedding: bool) -> Format:
    """Returns the format that a matrix stored as `stored` (GGUF's name of the type) is kept in.

    int4 keeps embedding and head in 8 bits: they are read once a token, and hold the rarest words.

    Raises:
        ModelError: the kernels can't keep this type as it is.
        ConfigError: it is rounded already, and would be rounded a second time.
    """
    is_rounded = stored not in ("F32", "F16", "BF16")
    if is_rounded and stored not in Format.__members__:
        raise ModelError(f"it holds {stored} tensors; native are {', '.join((*Format.__members__, 'BF16'))}")
    if quantization in ("int8", "int4"):
        if is_rounded:
            raise ConfigError(
                f"--quantization {quantization} would round {stored} weights a second time: use auto or none",
                "--quantization",
            )
        return Format.Q4_1 if quantization == "int4" and not is_embedding else Format.Q8_0
    if is_rounded:
        return Format[stored] if quantization == "file" else Format.F32
    return Format.F16 if stored == "F16" else Format.F32


def to_floats(data: Bytes, stored: str, num_cols: int) -> Floats:
    """Returns the exact float32 values [rows, num_cols] of a tensor's bytes."""
    if stored == "F32":
        return data.view(np.float32).reshape(-1, num_cols)
    if stored == "F16":
        return data.view(np.float16).astype(np.float32).reshape(-1, num_cols)
    if stored == "BF16":  # the upper half of a float32
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(-1, num_cols)
    quants, kind = _gguf_quants(stored)
    blocks_per_row = num_cols // quants.GGML_QUANT_SIZES[kind][0]
    rows = data.reshape(-1, blocks_per_row * quants.GGML_QUANT_SIZES[kind][1])
    floats: Floats = quants.dequantize(rows, kind)
    return floats


def to_blocks(floats: Floats, target: Format) -> Bytes:
    """Returns the bytes of float32 values [rows, cols] in the target's format, row after row; rounds to blocks."""
    if target is Format.F32:
        return floats.reshape(-1).view(np.uint8)
    if target is Format.F16:
        return floats.astype(np.float16).reshape(-1).view(np.uint8)
    quants, kind = _gguf_quants(target.name)
    blocks: Bytes = quants.quantize(np.ascontiguousarray(floats), kind)
    return blocks.reshape(-1)


def _gguf_quants(name: str) -> tuple[Any, Any]:
    """The GGUF package's reference of the block formats; imported here, since a packed model needs none of it."""
    from gguf import GGMLQuantizationType, quants

    return quants, GGMLQuantizationType[name]
