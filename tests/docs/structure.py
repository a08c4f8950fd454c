"""The rules of structure: each takes the repository's root and returns a sentence for every place that breaks it."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
SHORT_FUNCTION_LINES = 40
MIN_SHORT_SHARE = 0.9

# Spelled so that this file doesn't hold what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:work|tmp|root)/\w")
REGISTRY_HOST = re.compile(
    r"pypi\.(?:org|python)|pythonhosted\.|download\.pytorch\.|registry\.npmjs\.|conda\.anaconda\.|crates\.io|\bdeb\.debian\."
)
DATED = re.compile(r"\d{4}-\d{2}-\d{2}\b")


def long_files(root: Path) -> list[str]:
    """Files of the package over 400 lines."""
    counts = {path: len(path.read_text().splitlines()) for path in _sources(root)}
    return [
        f"{path.relative_to(root)} has {count} lines, over {MAX_FILE_LINES}"
        for path, count in counts.items()
        if count > MAX_FILE_LINES
    ]


def long_functions(root: Path) -> list[str]:
    """Functions over 80 lines, from `def` to their last line."""
    return [
        f"{where} has {count} lines, over {MAX_FUNCTION_LINES}"
        for where, count in _function_lines(root)
        if count > MAX_FUNCTION_LINES
    ]


def too_few_short_functions(root: Path) -> list[str]:
    """Set off when fewer than nine in ten functions are under 40 lines; names the longest."""
    functions = sorted(_function_lines(root), key=lambda entry: -entry[1])
    num_short = sum(count < SHORT_FUNCTION_LINES for _, count in functions)
    if not functions or num_short >= MIN_SHORT_SHARE * len(functions):
        return []
    longest = ", ".join(f"{where} ({count})" for where, count in functions[: len(functions) - num_short])
    return [f"only {num_short} of {len(functions)} functions are under {SHORT_FUNCTION_LINES} lines: {longest}"]


def missing_docstrings(root: Path) -> list[str]:
    """Modules without a docstring; an empty file needs none."""
    return [
        f"{path.relative_to(root)} has no docstring"
        for path in _sources(root)
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]


def code_in_server_package(root: Path) -> list[str]:
    """Anything in `server/__init__.py`: a module run with -m would be loaded twice, and its enums would differ."""
    path = root / "mtplx/server/__init__.py"
    return [] if path.is_file() and path.read_bytes() == b"" else [f"{path.relative_to(root)} must be there and empty"]


def utils_modules(root: Path) -> list[str]:
    """Modules named after nothing."""
    names = ("utils", "util", "helpers", "misc", "common")
    return [f"{path.relative_to(root)} needs a name" for path in _sources(root) if path.stem in names]


def places_of_one_machine(root: Path) -> list[str]:
    """Paths that one machine has and others don't, and hosts of package registries, in any tracked text file."""
    return [
        f"{path.relative_to(root)}:{number} names {found.group()}"
        for path in tracked_files(root)
        for number, line in enumerate(_text_lines(path), start=1)
        for pattern in (MACHINE_PATH, REGISTRY_HOST)
        for found in pattern.finditer(line)
    ]


def undated_results(root: Path) -> list[str]:
    """Measurements whose path under benchmarks/results begins with no date; a README may explain them."""
    folder = root / "benchmarks/results"
    return [
        f"{path.relative_to(root)} needs a date in front, such as 2026-11-29-"
        for path in tracked_files(root)
        if path.is_relative_to(folder)
        and path.name != "README.md"
        and not any(DATED.match(part) for part in path.relative_to(folder).parts)
    ]


def unpinned_dependencies(root: Path) -> list[str]:
    """Direct dependencies without an exact version in constraints.txt, and lines there that pin none."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    wanted = [*project["dependencies"], *(name for extra in extras for name in extra)]
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    loose = [
        f"constraints.txt: {line!r} is no plain pin" for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)
    ]
    pinned = {_normalised(line.partition("==")[0]) for line in lines}
    names = [_normalised(re.split(r"[\s\[<>=!~;]", entry, maxsplit=1)[0]) for entry in wanted]
    return loose + [f"constraints.txt doesn't pin {name}" for name in names if name not in pinned]


def dead_links(root: Path) -> list[str]:
    """Relative links in Markdown files that lead to no file."""
    return [
        f"{path.relative_to(root)} links to {target}, which isn't there"
        for path in tracked_files(root)
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]


def tracked_files(root: Path) -> list[Path]:
    """The files under `root` that git tracks or would add; without git, all but those in hidden folders."""
    if not (root / ".git").exists():
        visible = (path for path in root.rglob("[!.]*") if path.is_file())
        return sorted(path for path in visible if not any(part[0] == "." for part in path.relative_to(root).parts))
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (root / name for name in listing.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def _sources(root: Path) -> list[Path]:
    return sorted((root / "mtplx").rglob("*.py"))


def _function_lines(root: Path) -> Iterator[tuple[str, int]]:
    """Every function and method, nested ones too, as its place and its number of lines."""
    for path in _sources(root):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield f"{path.relative_to(root)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def _text_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []  # a picture or weights


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
