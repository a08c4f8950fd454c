"""Compiles the kernels, one shared library for each instruction set; standard library only.

`setup.py` runs this at installation; `python -m mtplx.model.native.builds` does it again after a change. Without a
compiler nothing is built, and that is no error: the torch runner serves then.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
LIBRARIES = Path(__file__).parent / "lib"
SUFFIX = {"Windows": ".dll", "Darwin": ".dylib"}.get(platform.system(), ".so")
COMPILER_TIMEOUT_S = 600

# What a result's bits may depend on is written in the source: no fused or reordered operations but those.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-DNDEBUG")


@dataclass(frozen=True, slots=True)
class Build:
    """One instruction set's compilation. The portable build runs on every machine of its architecture."""

    name: str
    flags: tuple[str, ...]

    @property
    def file_name(self) -> str:
        return f"mtplx-{self.name}{SUFFIX}"


PORTABLE = Build("portable", ())
X86_BUILDS = (
    Build(
        "avx512", ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mprefer-vector-width=512")
    ),
    Build("avx2", ("-mavx2", "-mfma", "-mf16c")),
    PORTABLE,
)
# NEON is in every 64-bit Arm, so the portable build there is the NEON build.
ARM_BUILDS = (Build("neon", ()),)


def builds_here() -> tuple[Build, ...]:
    """This architecture's builds, the best first; the last one is the yardstick of the others."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return X86_BUILDS
    return ARM_BUILDS if machine in ("aarch64", "arm64") else (PORTABLE,)


def source_hash() -> str:
    """Tells one state of the sources and flags from another."""
    digest = hashlib.sha256(repr((FLAGS, X86_BUILDS, ARM_BUILDS)).encode())
    for path in source_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def source_files() -> list[Path]:
    return sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")])


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: the variable CXX, or the first of c++, g++, clang++ on the path."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    return [found] if found else None


def compile_build(compiler: list[str], build: Build, folder: Path, extra: tuple[str, ...] = ()) -> Path:
    """Compiles one build into `folder` and returns the library's path; an older one is replaced in one piece.

    Raises:
        OSError, subprocess.SubprocessError: there is no such compiler, or it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / build.file_name
    staging = target.with_name(f"{target.name}.{os.getpid()}")
    names = (f'-DMTPLX_BUILD="{build.name}"', f'-DMTPLX_SOURCE_HASH="{source_hash()}"')
    sources = [str(path) for path in source_files() if path.suffix == ".cpp"]
    command = [*compiler, *FLAGS, *build.flags, *names, *extra, *sources, "-o", str(staging)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S)
        staging.replace(target)
    finally:
        staging.unlink(missing_ok=True)
    return target


def compile_all(folder: Path) -> list[str]:
    """Compiles what this machine's compiler can; returns a sentence for every build that it can't. Raises nothing."""
    compiler = find_compiler()
    if compiler is None:
        return ["no C++ compiler was found (c++, g++, clang++, or the variable CXX)"]
    problems = []
    for build in builds_here():
        try:
            compile_build(compiler, build, folder)
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(f"the {build.name} build failed: {_reason(error)}")
    return problems


def _reason(error: Exception) -> str:
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else type(error).__name__)


def main() -> int:
    """Compiles into the package's own folder; the exit status is 1 if nothing was built."""
    for problem in compile_all(LIBRARIES):
        print(problem, file=sys.stderr)
    built = [build.name for build in builds_here() if (LIBRARIES / build.file_name).is_file()]
    print(f"built: {', '.join(built) or 'nothing'}, in {LIBRARIES}")
    return 0 if built else 1


if __name__ == "__main__":
    sys.exit(main())
