"""Shows how far a long transfer is: a bar on a terminal, a few plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mtplx.model.store import format_bytes

PLAIN_STEPS = 4  # lines that a plain transfer prints after its first


def say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def transfer(label: str, total_bytes: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Yields a function to be called with the bytes done so far, as often as one likes."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(label, total_bytes, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda done: bar.update(task, completed=min(done, total_bytes))


def _plain_lines(label: str, total_bytes: int, console: Console) -> Callable[[int], None]:
    next_step = 1
    console.print(f"{label} ({format_bytes(total_bytes)})", highlight=False, soft_wrap=True)

    def show(done: int) -> None:
        nonlocal next_step
        step = min(done, total_bytes) * PLAIN_STEPS // max(total_bytes, 1)
        if step >= next_step:
            console.print(f"{label}: {step * 100 // PLAIN_STEPS} %", highlight=False, soft_wrap=True)
            next_step = step + 1

    return show
