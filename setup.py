"""Compiles the native kernels while the package is built; everything else is said in pyproject.toml.

Neither a missing compiler nor a failing one stops an installation: it is said, and the torch runner serves.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

PACKAGE = Path("mtplx/model/native")


def load_builds() -> ModuleType:
    """The package's own builder, without the package: its dependencies aren't here yet."""
    spec = importlib.util.spec_from_file_location("mtplx_builds", Path(__file__).parent / PACKAGE / "builds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class BuildWithKernels(build_py):
    """Puts the libraries beside the modules: into the wheel, or into the source tree of an editable installation."""

    def run(self) -> None:
        super().run()
        target = Path() if self.editable_mode else Path(self.build_lib)
        for problem in load_builds().compile_all(target.absolute() / PACKAGE / "lib"):
            self.warn(f"native kernels: {problem}")


class PlatformDistribution(Distribution):
    """A wheel that holds compiled code serves one platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformDistribution)
