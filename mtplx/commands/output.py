"""Where tables are printed: folded to a terminal's width, and not at all where no terminal reads them."""

from __future__ import annotations

import sys

from rich.console import Console

WIDE = 1000


def table_console() -> Console:
    """A console on standard output whose lines are whole when they go to a pipe or a file."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)
