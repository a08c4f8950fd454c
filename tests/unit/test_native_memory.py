"""The cache's memory: zeroed, writable, and in large pages where the system has them."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from mtplx.model import machine
from mtplx.model.native.memory import in_large_pages, zeroed_bytes

SMAPS = Path("/proc/self/smaps")


def test_memory_is_zero_and_its_own() -> None:
    first, second = zeroed_bytes(10_000), zeroed_bytes(10_000)
    assert not first.any()
    first[:] = 7
    assert not second.any()
    assert first.ctypes.data % mmap.PAGESIZE == 0


needs_large_pages = pytest.mark.skipif(not machine.has_large_pages(), reason="this system has no large pages")


@needs_large_pages
def test_what_is_written_lies_in_large_pages() -> None:
    """Shared mappings take the advice without an error, and stay in small pages."""
    memory = zeroed_bytes(64 << 20)
    memory[:] = 1
    assert _kib_in_large_pages(memory.ctypes.data + memory.nbytes // 2) > 0
    np.testing.assert_array_equal(memory[:: 1 << 20], 1)


@needs_large_pages
def test_a_file_is_copied_into_large_pages_while_there_is_room(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    np.arange(8 << 18, dtype=np.int32).tofile(file)
    mapped = np.memmap(file, dtype=np.uint8, mode="r")
    copy = in_large_pages(mapped, free_bytes=2 * mapped.nbytes)
    assert _kib_in_large_pages(copy.ctypes.data + copy.nbytes // 2) > 0
    np.testing.assert_array_equal(copy, mapped)
    assert in_large_pages(mapped, free_bytes=2 * mapped.nbytes - 1) is mapped
    assert in_large_pages(mapped[: 1 << 20], free_bytes=1 << 40).base is mapped


def test_a_system_without_large_pages_keeps_the_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(4 << 20))
    mapped = np.memmap(file, dtype=np.uint8, mode="r")
    monkeypatch.setattr(machine, "_read", lambda path: "always madvise [never]")
    assert in_large_pages(mapped, free_bytes=1 << 40) is mapped


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
