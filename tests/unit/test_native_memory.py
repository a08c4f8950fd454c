"""The cache's memory: zeroed, writable, and in large pages where the system has them."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from mtplx.model.native.memory import zeroed_bytes

SMAPS = Path("/proc/self/smaps")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_memory_is_zero_and_its_own() -> None:
    first, second = zeroed_bytes(10_000), zeroed_bytes(10_000)
    assert not first.any()
    first[:] = 7
    assert not second.any()
    assert first.ctypes.data % mmap.PAGESIZE == 0


@pytest.mark.skipif(
    not LARGE_PAGES.is_file() or "[never]" in LARGE_PAGES.read_text(), reason="this system has no large pages"
)
def test_what_is_written_lies_in_large_pages() -> None:
    """Shared mappings take the advice without an error, and stay in small pages."""
    memory = zeroed_bytes(64 << 20)
    memory[:] = 1
    assert _kib_in_large_pages(memory.ctypes.data + memory.nbytes // 2) > 0
    np.testing.assert_array_equal(memory[:: 1 << 20], 1)


def _kib_in_large_pages(address: int) -> int:
    """What /proc says of the mapping that holds the address."""
    is_inside = False
    for line in SMAPS.read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            begin, end = (int(bound, 16) for bound in name.split("-"))
            is_inside = begin <= address < end
        elif is_inside and name == "AnonHugePages:":
            return int(values[0])
    raise AssertionError("no mapping holds the address")
