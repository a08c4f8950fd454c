"""A real server process on a free port, as a user starts it."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    url: str
    process: subprocess.Popen[str]
    lines: list[str]  # what it printed before its address


@contextmanager
def running_server(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Starts `python -m mtplx.server.openai serve --port 0` with more flags; stops it with SIGTERM at the end."""
    command = [sys.executable, "-m", "mtplx.server.openai", "serve", "--port", "0", *flags]
    process = subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    printed: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, printed), daemon=True)
    reader.start()
    try:
        lines, url = _wait_for_address(printed)
        yield ServerProcess(url, process, lines)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        reader.join(10)
        assert process.stdout is not None
        process.stdout.close()


def _read(process: subprocess.Popen[str], printed: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        printed.put(line.rstrip("\n"))
    printed.put(None)


def _wait_for_address(printed: queue.Queue[str | None]) -> tuple[list[str], str]:
    lines: list[str] = []
    while (line := printed.get(timeout=START_TIMEOUT_S)) is not None:
        lines.append(line)
        if line.startswith("address "):
            return lines, line.removeprefix("address ").strip()
    raise AssertionError("the server ended at its start:\n" + "\n".join(lines))
