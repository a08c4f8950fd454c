"""Which runner serves a model on this machine, and why in one sentence; loads neither of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mtplx.errors import ConfigError
from mtplx.model.machine import has_accelerator
from mtplx.model.native.library import load_library
from mtplx.model.native.support import why_not_native
from mtplx.model.weights import ModelFolder


@dataclass(frozen=True, slots=True)
class Wishes:
    """The settings that bear on the choice, as the user gave them."""

    runner: Literal["auto", "torch", "native"] = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "auto"
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """`why` is the end of the sentence "it is this runner because"; `native_build` is the kernels' that would run."""

    name: Literal["torch", "native"]
    why: str
    native_build: str | None = None


def choose_runner(model: ModelFolder, wishes: Wishes) -> RunnerChoice:
    """Returns native where it can serve and nothing asks for torch, else torch.

    Raises:
        ConfigError: the native runner, or what only it can do, was asked for and it can't serve; says why.
    """
    if wishes.runner == "torch":
        return RunnerChoice("torch", "asked for")
    refusal = _why_not(model, wishes)
    if refusal is None:
        why = "asked for" if wishes.runner == "native" else "the default on cpu"
        return RunnerChoice("native", why, load_library().build)
    if wishes.runner == "native":
        raise ConfigError(f"--runner native can't serve this: {refusal}", "--runner")
    if wishes.quantization in ("int8", "int4"):
        raise ConfigError(
            f"--quantization {wishes.quantization} needs the native runner, which can't serve this: {refusal}",
            "--quantization",
        )
    if wishes.kv_cache_dtype != "auto":
        raise ConfigError(
            f"--kv-cache-dtype needs the native runner, which can't serve this: {refusal}", "--kv-cache-dtype"
        )
    return RunnerChoice("torch", f"not native: {refusal}")


def _why_not(model: ModelFolder, wishes: Wishes) -> str | None:
    if wishes.device not in ("auto", "cpu"):
        return f"--device {wishes.device} was asked for"
    if wishes.dtype != "auto":
        return f"--dtype {wishes.dtype} was asked for"
    if wishes.device == "auto" and wishes.runner == "auto" and (device := _gpu()) is not None:
        return f"this machine has {device}"
    return why_not_native(model, wishes.quantization)


def _gpu() -> str | None:
    """The GPU that PyTorch would take, None if there is none; PyTorch is imported only where one may be."""
    if not has_accelerator():
        return None
    from mtplx.model.torch.device import resolve_device

    device = resolve_device("auto").type
    return None if device == "cpu" else device
