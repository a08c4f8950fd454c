"""Shows how far the training of a head is: a bar with the time left on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_PLAIN_STEPS = 20  # lines that a plain stage prints


class TrainingProgress:
    """The stages of `mtplx.train.run.train_head`, one bar each."""

    def __init__(self, bars: Progress, console: Console) -> None:
        self._bars = bars
        self._console = console
        self._task: TaskID | None = None
        self._label, self._total, self._done = "", 0, 0

    def begin(self, label: str, total: int, done: int) -> None:
        self._label, self._total, self._done = label, total, done
        self._task = self._bars.add_task(label, total=total, completed=done)

    def advance(self, note: str = "") -> None:
        assert self._task is not None, "a stage has begun"
        before = self._done * _PLAIN_STEPS // self._total
        self._done += 1
        self._bars.update(self._task, completed=self._done, description=f"{self._label} {note}".rstrip())
        if not self._console.is_terminal and self._done * _PLAIN_STEPS // self._total > before:
            left_s = self._bars.tasks[self._task].time_remaining
            left = "" if left_s is None else f", {left_s:.0f} s left"
            line = f"{self._label} {note}".rstrip()
            self._console.print(f"{line}: {self._done} of {self._total}{left}", highlight=False, soft_wrap=True)


@contextmanager
def training_progress(console: Console | None = None) -> Iterator[TrainingProgress]:
    """Bars on stderr while the block runs."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield TrainingProgress(bars, console)
