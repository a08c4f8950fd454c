"""Runs llama.cpp's own llama-batched-bench on a GGUF file, and says which llama.cpp that is and how it was built."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

FLAGS = "-t {threads} -npp {prompt} -ntg {new} -npl {width} --output-format jsonl"
BUILD_OPTION = re.compile(  # those that matter on a CPU
    r"^(CMAKE_BUILD_TYPE|CMAKE_C(?:XX)?_FLAGS"
    r"|GGML_(?:NATIVE|SSE|AVX|AMX|FMA|F16C|BMI2|CPU_|OPENMP|BLAS|LLAMAFILE|LTO)\w*):\w+=(.*)$",
    re.MULTILINE,
)


def batched_bench(binary: Path, gguf: Path, *, width: int, prompt: int, new: int, threads: int) -> Mapping[str, float]:
    """Returns the bench's own row: `t_pp`, `speed_pp`, `t_tg`, `speed_tg`. Prompts are its own, all in one batch.

    Raises:
        CalledProcessError: the binary failed.
    """
    flags = FLAGS.format(threads=threads, prompt=prompt, new=new, width=width).split()
    context = width * (prompt + new) + 256
    command = [str(binary), "-m", str(gguf), "-c", str(context), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: Mapping[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def describe(binary: Path, threads: int) -> dict[str, object]:
    """The version it names, the options that its build folder remembers (if it is still there) and the flags."""
    asked = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True)
    version = (asked.stdout + asked.stderr).strip().splitlines()
    cache = binary.resolve().parents[1] / "CMakeCache.txt"
    options = dict(BUILD_OPTION.findall(cache.read_text())) if cache.exists() else {}
    return {"version": version, "build_options": options, "flags": FLAGS, "threads": threads}
