"""Draws a kept measurement: one panel a measured column, one line a way. Knows the JSON files, not what they measure.

Run: python -m benchmarks.plots benchmarks/results/<date>-decode.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (5.5, 4.0)
MARKERS = "osD^vPX*"


@dataclass(frozen=True, slots=True)
class Plot:
    """Which columns of the rows are drawn; `line` is the one whose values name the lines.

    Where a measured column has another beside it called "<column> spread", that becomes its error bars; and "<limit>
    <column>", with `limits` naming the limit, is drawn as grey dots: what the machine could do at that moment.
    """

    x: str
    y: tuple[str, ...]  # a panel each
    line: str
    limits: tuple[str, ...] = ()
    has_log_y: bool = False


def draw(report: Path) -> Path | None:
    """Draws a report's rows into an SVG file beside it and returns that; None without matplotlib or without a plot."""
    content = json.loads(report.read_text())
    if find_spec("matplotlib") is None or not content.get("plot"):
        return None
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    plot = Plot(**content["plot"])
    target = report.with_suffix(".svg")
    width, height = PANEL_INCHES
    # Text stays text and ids don't change from run to run: a small file, and a small difference when it is redrawn.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mtplx"}):
        figure = Figure(figsize=(width * len(plot.y), height), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, column in zip(figure.subplots(1, len(plot.y), squeeze=False)[0], plot.y, strict=True):
            _draw_panel(axes, content["rows"], plot, column)
        figure.suptitle(f"{content['benchmark']}: {content['model']}\n{content['cpu']}, {content['date']}", fontsize=9)
        figure.savefig(target, metadata={"Date": None})
    return target


def _draw_panel(axes: Axes, rows: Sequence[Mapping[str, Any]], plot: Plot, column: str) -> None:
    drawn = [row for row in rows if row.get(column) is not None]
    for name, marker in zip(dict.fromkeys(str(row[plot.line]) for row in drawn), cycle(MARKERS), strict=False):
        points = [row for row in drawn if str(row[plot.line]) == name]
        x, y = [row[plot.x] for row in points], [row[column] for row in points]
        axes.errorbar(x, y, yerr=_error_bars(points, column), label=name, marker=marker, markersize=4, capsize=2)
    for limit in (f"{name} {column}" for name in plot.limits):
        points = [row for row in drawn if limit in row]
        if points:
            axes.plot([row[plot.x] for row in points], [row[limit] for row in points], ".", color="0.7", label=limit)
    ticks = sorted({row[plot.x] for row in drawn})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=map(str, ticks), fontsize=7)
    axes.set_xticks([], minor=True)
    if plot.has_log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(column)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _error_bars(points: Sequence[Mapping[str, Any]], column: str) -> list[list[float]] | None:
    """Distances [below, above] of every point, which is how matplotlib wants them."""
    spread = f"{column} spread"
    if not all(spread in point for point in points):
        return None
    return [
        [point[column] - point[spread][0] for point in points],
        [point[spread][1] - point[column] for point in points],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, help="JSON files that a benchmark has written")
    for report in parser.parse_args().reports:
        picture = draw(report)
        print(f"drawn as {picture}" if picture else f"{report} has no plot, or matplotlib isn't installed")


if __name__ == "__main__":
    main()
