"""The page of the benchmarks lists every script with a command that starts it, and every result can be drawn again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.plots import Plot, draw
from benchmarks.report import criterion, publish, without_folders

FOLDER = Path(__file__).parents[2] / "benchmarks"
PAGE = (FOLDER / "README.md").read_text()
SCRIPTS = {path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text()}


def test_every_script_is_listed_with_its_command() -> None:
    listed = re.findall(r"^\| (\w+) \|.*\| `python -m benchmarks\.(\w+)[^`]*` \|$", PAGE, flags=re.MULTILINE)
    assert [name for name, _ in listed] == [module for _, module in listed]
    assert sorted(name for name, _ in listed) == sorted(SCRIPTS)


def test_every_other_module_is_named_as_none() -> None:
    modules = {path.name for path in FOLDER.glob("*.py") if path.stem not in SCRIPTS | {"__init__"}}
    assert set(re.findall(r"\b\w+\.py\b", PAGE)) == modules


def test_a_result_is_kept_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {"width": width, "way": way, "tokens/s": 10.0 * width, "tokens/s spread": (9.0 * width, 12.0 * width)}
        for width in (1, 2)
        for way in ("first way", "second way")
    ]
    limits = [criterion("ratio", [1.0, 2.0, 1.7], least=1.5), criterion("growth", [3.0], most=2.0)]
    kept = publish(
        "widths",
        rows,
        model="none",
        output=tmp_path / "widths.json",
        tables={"criteria": limits},
        plot=Plot("width", ("tokens/s",), "way"),
    )
    content = json.loads(kept.read_text())
    assert content["rows"][3]["tokens/s spread"] == [18.0, 24.0]
    assert [row["met"] for row in content["tables"]["criteria"]] == ["yes", "NO"]
    drawn = kept.with_suffix(".svg").read_bytes()
    assert b"first way" in drawn
    assert b"second way" in drawn
    kept.with_suffix(".svg").unlink()
    assert draw(kept) == kept.with_suffix(".svg")
    assert kept.with_suffix(".svg").read_bytes() == drawn


def test_a_result_without_a_plot_is_not_drawn(tmp_path: Path) -> None:
    kept = publish("alone", [{"case": "only", "ms": 1.0}], model="none", output=tmp_path / "alone.json")
    assert draw(kept) is None
    assert list(tmp_path.iterdir()) == [kept]


def test_commands_are_kept_without_the_folders_of_one_machine() -> None:
    words = ["--output", "/some/where/a.json", "--model=/else/where/m.gguf", "build/bin/x", "--threads=2"]
    assert [without_folders(word) for word in words] == [
        "--output",
        "a.json",
        "--model=m.gguf",
        "build/bin/x",
        "--threads=2",
    ]
