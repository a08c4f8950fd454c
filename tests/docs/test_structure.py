"""The repository keeps its rules of structure, and every rule fails on a tree that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import structure

REPOSITORY = Path(__file__).parents[2]

Rule = Callable[[Path], list[str]]
RULES: list[Rule] = [
    structure.long_files,
    structure.long_functions,
    structure.too_few_short_functions,
    structure.missing_docstrings,
    structure.code_in_server_package,
    structure.utils_modules,
    structure.places_of_one_machine,
    structure.undated_results,
    structure.unpinned_dependencies,
    structure.dead_links,
]


def function_of(num_lines: int, name: str = "f") -> str:
    return f"def {name}():\n" + "    x = 1\n" * (num_lines - 1)


# A small tree that keeps every rule, at the very edge of those that count.
GOOD_TREE = {
    "mtplx/server/__init__.py": "",
    "mtplx/edge.py": '"""Says what it knows."""\n' + "x = 1\n" * 399,
    "mtplx/longest.py": '"""One function in ten is long."""\n' + function_of(80),
    "mtplx/short.py": '"""Nine in ten are short."""\n' + "".join(function_of(39, f"f{i}") for i in range(9)),
    "benchmarks/results/README.md": "See [the design](../../docs/design.md#edge), docs/wo" + "rk/x, ./tm" + "p/y.\n",
    "benchmarks/results/2026-11-29-widths.json": "{}",
    "benchmarks/results/2026-11-29/widths.json": "{}",
    "docs/design.md": "See https://example.org/a.md",
    "pyproject.toml": '[project]\ndependencies = ["torch>=2.9", "prometheus-client"]\n'
    '[project.optional-dependencies]\ndev = ["Foo.Bar[x]>=1"]\n',
    "constraints.txt": "# exact\ntorch==2.13.0\nprometheus_client==0.26.0\nfoo-bar==1.0.post1\n",
}

BAD_FILES: list[tuple[Rule, dict[str, str], str]] = [
    (structure.long_files, {"mtplx/long.py": "x = 1\n" * 401}, "mtplx/long.py has 401 lines"),
    (structure.long_functions, {"mtplx/a.py": function_of(81)}, "mtplx/a.py:1 f has 81 lines"),
    (
        structure.long_functions,
        {"mtplx/a.py": "class A:\n    async def g(self):\n" + "        x = 1\n" * 80},
        "mtplx/a.py:2 g has 81 lines",
    ),
    (
        structure.too_few_short_functions,
        {"mtplx/a.py": function_of(40)},
        "only 9 of 11 functions are under 40 lines: mtplx/longest.py:2 f (80), mtplx/a.py:1 f (40)",
    ),
    (structure.missing_docstrings, {"mtplx/a.py": "x = 1\n"}, "mtplx/a.py has no docstring"),
    (structure.missing_docstrings, {"mtplx/__init__.py": "x = 1\n"}, "mtplx/__init__.py has no docstring"),
    (structure.code_in_server_package, {"mtplx/server/__init__.py": "\n"}, "mtplx/server/__init__.py must be"),
    (structure.utils_modules, {"mtplx/text/utils.py": ""}, "mtplx/text/utils.py needs a name"),
    (structure.places_of_one_machine, {"docs/a.md": "first\nin /wo" + "rk/main"}, "docs/a.md:2 names /wo" + "rk/m"),
    (structure.places_of_one_machine, {"a.py": "open('/tm" + "p/x')"}, "a.py:1 names /tm" + "p/x"),
    (structure.places_of_one_machine, {"a.toml": "https://py" + "pi.org/simple"}, "a.toml:1 names py" + "pi.org"),
    (structure.places_of_one_machine, {"a.txt": "https://download.py" + "torch.org"}, "a.txt:1 names download.py"),
    (structure.undated_results, {"benchmarks/results/widths.json": ""}, "benchmarks/results/widths.json needs a date"),
    (structure.undated_results, {"benchmarks/results/new/widths.png": ""}, "benchmarks/results/new/widths.png needs"),
    (
        structure.unpinned_dependencies,
        {"constraints.txt": "torch==2.13.0\n"},
        "constraints.txt doesn't pin prometheus-",
    ),
    (
        structure.unpinned_dependencies,
        {"constraints.txt": "torch>=2.13\n"},
        "constraints.txt: 'torch>=2.13' is no plain",
    ),
    (
        structure.unpinned_dependencies,
        {"constraints.txt": "torch==2.13.0+cpu\n"},
        "constraints.txt: 'torch==2.13.0+cpu'",
    ),
    (structure.dead_links, {"docs/a.md": "[gone](gone.md#part)"}, "docs/a.md links to gone.md"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps(rule: Rule) -> None:
    assert rule(REPOSITORY) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_tree_at_the_edge_keeps(rule: Rule, tmp_path: Path) -> None:
    assert rule(write_tree(tmp_path, GOOD_TREE)) == []


@pytest.mark.parametrize(("rule", "files", "expected"), BAD_FILES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_tree_that_breaks_a_rule_is_reported(
    rule: Rule, files: dict[str, str], expected: str, tmp_path: Path
) -> None:
    problems = rule(write_tree(tmp_path, GOOD_TREE | files))
    assert problems
    assert problems[0].startswith(expected)


def test_every_rule_has_a_tree_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BAD_FILES} == set(RULES)


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Writes the files, named by their path below `root`, and returns `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
