"""The tensors of the paged key/value cache. Layout and size are `mtplx.model.cache`'s business."""

from __future__ import annotations

import math

import numpy as np
import torch

from mtplx.model.cache import BLOCK_SIZE, CacheLayout


class PagedCache:
    """Per layer a key and a value tensor [num_slots, num_kv_heads, width], zero at first.

    The last block is spare: in no sequence's table, so nobody reads what padding writes there (exact mode), and nobody
    writes where padding reads from (batched mode).
    """

    def __init__(self, layout: CacheLayout, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.device = device
        num_slots = (num_blocks + 1) * BLOCK_SIZE
        self.keys = [
            _zeros((num_slots, layout.num_kv_heads, layout.key_width), dtype, device) for _ in range(layout.num_layers)
        ]
        self.values = [
            _zeros((num_slots, layout.num_kv_heads, layout.value_width), dtype, device)
            for _ in range(layout.num_layers)
        ]

    @property
    def spare_block(self) -> int:
        return self.num_blocks

    def zeros(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor [num_slots, width] for what else is kept by slot."""
        return _zeros((self.keys[0].shape[0], width), dtype, self.device)

    def write(self, layer: int, slots_N: torch.Tensor, keys_NHD: torch.Tensor, values_NHD: torch.Tensor) -> None:
        self.keys[layer].index_copy_(0, slots_N, keys_NHD)
        self.values[layer].index_copy_(0, slots_N, values_NHD)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On a CPU memory is taken page by page as it is first written, so that a large cache costs no time at start."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
