"""Memory that caches and weights live in: on page boundaries, in large pages where the system has them.

A step reads all weights. In pages of 4 KiB it meets some 25,000 of them in a model of 100 MB, more than a processor
remembers, and what is fetched ahead stops at each.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from mtplx.model.machine import has_large_pages
from mtplx.model.native.formats import Bytes

_LARGE_PAGE = 2 << 20  # bytes
_MOST_OF_FREE = 0.5  # of the free memory, that weights are copied into


def zeroed_bytes(num_bytes: int) -> Bytes:
    """Returns `num_bytes` of zeros that take real memory only as they are written."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
    # Private, which isn't Python's default: Linux gives shared memory no large pages, however it is asked.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


def in_large_pages(mapped: Bytes, free_bytes: int) -> Bytes:
    """Returns a copy of a file's bytes, or the bytes themselves.

    They are returned as they are where the system has no large pages, where they don't fill one, and where the copy
    would take more than half of `free_bytes`: a mapped file needs no memory that the system can't have back.
    """
    if not has_large_pages() or not _LARGE_PAGE <= mapped.nbytes <= _MOST_OF_FREE * free_bytes:
        return mapped
    copy = zeroed_bytes(mapped.nbytes)
    copy[:] = mapped
    return copy
