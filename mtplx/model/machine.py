"""What the machine offers: physical cores and free memory, as far as this process may use them."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path


def physical_cores() -> int:
    """Returns the number of physical cores among the CPUs that this process may run on, at least 1."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or str(cpu) for cpu in cpus}
    return max(1, len(cores))


def cpu_name() -> str:
    """Returns what the CPUs call themselves, such as "AMD EPYC 7B13"; their architecture where they don't."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def has_accelerator() -> bool:
    """Whether there is a GPU that PyTorch might use, found out without PyTorch, whose import takes seconds.

    Asks the driver for NVIDIA's, looks for the device node of AMD's, and takes every Mac to have Metal.
    """
    return sys.platform == "darwin" or _num_cuda_devices() > 0 or Path("/dev/kfd").exists()


def available_memory_bytes() -> int:
    """Returns the memory that can be taken without swapping: the system's, or what a control group leaves if less.

    Where the system doesn't tell (no /proc/meminfo), half of the installed memory.
    """
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return min(int(value.split()[0]) * 1024, _control_group_bytes())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def has_large_pages() -> bool:
    """Whether the system gives memory in large pages to who asks for them (Linux's transparent huge pages)."""
    enabled = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    return enabled is not None and "[never]" not in enabled


def _num_cuda_devices() -> int:
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return 0
        return count.value
    except (OSError, AttributeError):  # no driver, or something else by its name
        return 0


def _control_group_bytes() -> int:
    limit = _read(Path("/sys/fs/cgroup/memory.max"))
    used = _read(Path("/sys/fs/cgroup/memory.current"))
    if limit is None or used is None or limit == "max":
        return 2**63
    return max(0, int(limit) - int(used))


def _read(path: Path) -> str | None:
    """Returns the stripped text of a file of the kernel's, None where this system has no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
