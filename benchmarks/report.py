"""What every benchmark here prints and keeps: a table, and JSON with hardware, versions, model and command."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
Value = float | int | str | None
Row = Mapping[str, Value]


def publish(name: str, rows: Sequence[Row], *, model: str, output: Path | None = None) -> Path:
    """Prints `rows` as a table and writes them to `output`, by default a dated file in `results`; returns the file."""
    table = Table(title=f"{name} ({model})")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=max(120, 14 * len(rows[0]))).print(table)  # wide enough where there is no terminal to ask
    target = output or RESULTS / f"{date.today().isoformat()}-{name}.json"
    report = {"benchmark": name, "date": date.today().isoformat(), "model": model, **environment(), "rows": list(rows)}
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {target}")
    return target


def environment() -> dict[str, object]:
    """The machine, the versions and the command of this run."""
    packages = ("mtplx", "torch", "transformers", "numpy")
    return {
        "command": " ".join([Path(sys.executable).name, "-m", _module_name(), *sys.argv[1:]]),
        "cpu": _cpu_name(),
        "num_cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def median_and_spread(samples: Sequence[float]) -> tuple[float, str]:
    """The median, and the span from smallest to largest as text."""
    return statistics.median(samples), f"{min(samples):.3g}-{max(samples):.3g}"


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
