"""What every benchmark here prints and keeps: tables, and JSON with hardware, versions, model and command; a plot."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.plots import Plot, draw

RESULTS = Path(__file__).parent / "results"
Spread = tuple[float, float]  # the smallest and the largest
Value = float | int | str | Spread | None
Row = Mapping[str, Value]


def publish(
    name: str,
    rows: Sequence[Row],
    *,
    model: str,
    output: Path | None = None,
    tables: Mapping[str, Sequence[Row]] | None = None,
    details: Mapping[str, object] | None = None,
    plot: Plot | None = None,
) -> Path:
    """Prints `rows` and writes them to `output`, by default a dated file in `results`; returns the file.

    `tables` are further tables by their titles, `details` are only written. A plot is drawn beside the file where
    matplotlib is installed, and can be drawn again from the file.
    """
    tables = tables or {}
    for title, table in {f"{name} ({model})": rows, **tables}.items():
        print_table(title, table)
    target = output or RESULTS / f"{date.today().isoformat()}-{name}.json"
    report = {"benchmark": name, "date": date.today().isoformat(), "model": model, **environment(), **(details or {})}
    report |= {"rows": list(rows), "tables": {title: list(table) for title, table in tables.items()}}
    report["plot"] = asdict(plot) if plot else None
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {target}")
    if plot and (picture := draw(target)):
        print(f"drawn as {picture}")
    return target


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints rows of the same columns; nothing where there are none."""
    if not rows:
        return
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console(width=max(120, 14 * len(rows[0]))).print(table)  # wide enough where there is no terminal to ask


def criterion(what: str, samples: Sequence[float], *, least: float | None = None, most: float | None = None) -> Row:
    """A row that says whether the median of `samples` keeps its one limit."""
    assert (least is None) != (most is None), "one limit"
    median, spread = median_and_spread(samples)
    is_met = median >= least if least is not None else median <= (most or 0.0)
    limit = f">= {least:g}" if least is not None else f"<= {most:g}"
    return {"criterion": what, "median": median, "spread": spread, "limit": limit, "met": "yes" if is_met else "NO"}


def median_and_spread(samples: Sequence[float]) -> tuple[float, Spread]:
    return statistics.median(samples), (min(samples), max(samples))


def environment() -> dict[str, object]:
    """The machine, the versions and the command of this run."""
    packages = ("mtplx", "torch", "transformers", "numpy")
    return {
        "command": " ".join([Path(sys.executable).name, "-m", _module_name(), *map(without_folders, sys.argv[1:])]),
        "cpu": _cpu_name(),
        "num_cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def without_folders(argument: str) -> str:
    """An absolute path becomes its name: where files lay on one machine is of no use on another."""
    flag, equals, value = argument.rpartition("=")
    return flag + equals + (Path(value).name if Path(value).is_absolute() else value)


def _cell(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return f"{value[0]:.3g}-{value[1]:.3g}"
    return "" if value is None else str(value)


def _module_name() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).name


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
