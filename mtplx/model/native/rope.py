"""Tables of cosines and sines for rotary positions, with the model's scaling already in them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mtplx.model.native.shape import Rope

Floats = npt.NDArray[np.float32]


def rope_tables(rope: Rope, head_dim: int, num_positions: int) -> tuple[Floats, Floats]:
    """Returns cos and sin, each [num_positions, head_dim / 2] in float32.

    Angles are products of float32 numbers, as transformers computes them: at position 8000 an exact product would
    differ by half a thousandth, which is what the models were trained with.
    """
    frequencies = inverse_frequencies(rope, head_dim).astype(np.float32)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * frequencies[None, :]
    return np.cos(angles), np.sin(angles)


def inverse_frequencies(rope: Rope, head_dim: int) -> npt.NDArray[np.float64]:
    """Returns the [head_dim / 2] radians that each pair of a head turns by from one position to the next.

    linear divides all by `factor`. llama3 divides those of long waves, keeps those of short ones, and blends between.
    Source: Llama 3.1 reference code, apply_scaling.
    """
    frequencies: npt.NDArray[np.float64] = rope.theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        turns = rope.original_positions * frequencies / (2 * math.pi)  # within the length it was first trained on
        keep = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
        return frequencies * (keep + (1.0 - keep) / rope.factor)
    return frequencies
