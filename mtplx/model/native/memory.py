"""Memory that a cache lives in: zero at first, on page boundaries, in large pages where the system has them."""

from __future__ import annotations

import mmap

import numpy as np

from mtplx.model.native.formats import Bytes


def zeroed_bytes(num_bytes: int) -> Bytes:
    """Returns `num_bytes` of zeros that take real memory only as they are written."""
    memory = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)
