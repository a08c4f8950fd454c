"""Memory that a cache lives in: zero at first, on page boundaries, in large pages where the system has them."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from mtplx.model.native.formats import Bytes


def zeroed_bytes(num_bytes: int) -> Bytes:
    """Returns `num_bytes` of zeros that take real memory only as they are written."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
    # Private, which isn't Python's default: Linux gives shared memory no large pages, however it is asked.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)
