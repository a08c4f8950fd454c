"""mtplx serves language models to many clients at once and lets you choose how requests share the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtplx.sampling_params import Grammar, SamplingParams

if TYPE_CHECKING:
    from mtplx.inference import Engine

__version__ = "0.1.0"

__all__ = ["Engine", "Grammar", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """`mtplx.Engine`, imported when asked for, so that `import mtplx` stays free of torch."""
    if name == "Engine":
        from mtplx.inference import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
