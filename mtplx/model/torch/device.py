"""Turns the settings of device, number format and threads into torch's, and refuses what this machine hasn't got."""

from __future__ import annotations

import torch

from mtplx.errors import ConfigError
from mtplx.model.machine import available_memory_bytes, physical_cores

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


def resolve_device(name: str) -> torch.device:
    """Returns the device; auto is the first of cuda, mps, cpu that is there.

    Raises:
        ConfigError: an unknown name, or a device that isn't there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"--device {name} is not known: use auto, cpu, cuda, cuda:1 or mps", "--device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: this machine shows {torch.cuda.device_count()} CUDA devices", "--device")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("--device mps: this machine has no Metal device that PyTorch can use", "--device")
    return device


def resolve_dtype(name: str, device: torch.device, checkpoint_dtype: str | None) -> torch.dtype:
    """Returns the type of weights and cache; auto is float32 on cpu, else the checkpoint's 16-bit type or bfloat16.

    Raises:
        ConfigError: an unknown name, or one that the device can't compute with.
    """
    if name == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.float16 if checkpoint_dtype == "float16" else torch.bfloat16
    if name not in DTYPES:
        raise ConfigError(f"--dtype {name} is not known: use auto, {', '.join(DTYPES)}", "--dtype")
    if name == "float64" and device.type == "mps":
        raise ConfigError("--dtype float64 is not available on mps", "--dtype")
    return DTYPES[name]


def resolve_threads(threads: int | None, *, exact: bool) -> int:
    """Returns the number of CPU threads; default the physical cores, in exact mode the power of two below, at most 16.

    A tile of 16 rows splits evenly over a power of two. Over three threads the cut goes through a row, and the elements
    before it take the scalar code path of an element-wise operation, with other bits than the vector path.
    """
    if threads is not None:
        return threads
    cores = physical_cores()
    return min(16, 1 << (cores.bit_length() - 1)) if exact else cores


def free_bytes(device: torch.device) -> int:
    """Returns the memory that is free on the device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return available_memory_bytes()
