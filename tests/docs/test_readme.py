"""The README is true: its commands and programs run, its file tree is the disk's, and it stays short."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtplx.batching.state import SchedulerMode
from tests.docs.readme import Block, block_problems, expected_tree, read_blocks, tree_paths

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
BLOCKS = read_blocks(README)
MAX_LINES = 150
TIMEOUT_S = 240

# What a target of the Makefile does on a machine that has nothing, in order.
MAKE_STEPS = {
    "serve": ("-m venv .venv", "--constraint constraints.txt", "--editable .", "mtplx serve"),
    "test": ("-m venv .venv", "--constraint constraints.txt", "--editable", ".[dev]", "mtplx pull", "scripts/test"),
}


def blocks_of(kind: str) -> list[object]:
    return [pytest.param(block, id=f"line{block.line}") for block in BLOCKS if block.kind == kind]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert block_problems(BLOCKS) == []


def test_the_file_tree_is_the_disks() -> None:
    (tree,) = (block for block in BLOCKS if block.kind == "text tree")
    named = tree_paths(tree.text)
    assert len(named) == len(set(named))
    assert set(named) == expected_tree(REPOSITORY)


def test_every_mode_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", README, flags=re.MULTILINE)
    assert rows == list(SchedulerMode)


@pytest.mark.parametrize("block", blocks_of("sh make"))
def test_make_commands_do_what_they_say(block: Block) -> None:
    for command in block.text.splitlines():
        program, target, *arguments = re.split(r"\s+", command.partition("#")[0].strip(), maxsplit=2)
        assert program == "make"
        steps = dry_run(f"make --dry-run --always-make {target} {' '.join(arguments)}")
        positions = [steps.find(step) for step in MAKE_STEPS[target]]
        assert -1 not in positions, steps
        assert positions == sorted(positions), steps
        for argument in re.findall(r'_ARGS="(.*)"', command):
            assert argument in steps.splitlines()[-1]


@pytest.mark.real_model
@pytest.mark.parametrize("block", blocks_of("sh model"))
def test_commands_run(block: Block, tmp_path: Path) -> None:
    assert run_shell(block.text, tmp_path).strip()


@pytest.mark.real_model
@pytest.mark.parametrize("block", blocks_of("sh live"))
def test_commands_run_against_a_server(block: Block, tmp_path: Path, live_server_url: str) -> None:
    assert run_shell(at(live_server_url, block.text), tmp_path, MTPLX_BASE_URL=f"{live_server_url}/v1").strip()


@pytest.mark.real_model
@pytest.mark.parametrize("block", blocks_of("python model"))
def test_programs_run(block: Block) -> None:
    assert run([sys.executable, "-c", block.text]).strip()


@pytest.mark.real_model
@pytest.mark.parametrize("block", blocks_of("python live"))
def test_programs_run_against_a_server(block: Block, live_server_url: str) -> None:
    program = at(live_server_url, block.text)
    assert run([sys.executable, "-c", program], MTPLX_BASE_URL=f"{live_server_url}/v1").strip()


def test_an_unknown_or_missing_kind_is_reported() -> None:
    problems = block_problems(read_blocks("```ruby\nputs 1\n```\n```\nplain\n```\n```sh live\nx\n```\n"))
    assert [problem.partition(":")[0] for problem in problems] == [
        "line 1",
        "line 4",
        "no block of kind 'sh make'",
        "no block of kind 'sh model'",
        "no block of kind 'python model'",
        "no block of kind 'python live'",
        "no block of kind 'text tree'",
    ]


def test_a_block_that_never_ends_is_reported() -> None:
    with pytest.raises(AssertionError, match="never ends"):
        read_blocks("```sh\nls\n")


def test_a_tree_is_read_with_its_levels() -> None:
    text = "mtplx/  the package\n  a.py, b.py  one idea\n  text/    words\n    c.py   a word\nMakefile  commands\n"
    assert tree_paths(text) == ["mtplx/", "mtplx/a.py", "mtplx/b.py", "mtplx/text/", "mtplx/text/c.py", "Makefile"]
    with pytest.raises(AssertionError, match="no folder above"):
        tree_paths("mtplx/  the package\n    a.py  too deep\n")
    with pytest.raises(AssertionError, match="no line of a tree"):
        tree_paths("mtplx/\n")


def test_the_disk_is_read_without_what_git_ignores(tmp_path: Path) -> None:
    for name in (
        "mtplx/__init__.py",
        "mtplx/text/__init__.py",
        "mtplx/text/a.py",
        "mtplx/b.py",
        "docs/c.md",
        "Makefile",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("build", "mtplx.egg-info", ".github"):
        (tmp_path / name).mkdir()
    (tmp_path / ".gitignore").write_text("build/\n*.egg-info/\n\n")
    assert expected_tree(tmp_path) == {"mtplx/", "mtplx/text/", "mtplx/text/a.py", "mtplx/b.py", "docs/", "Makefile"}


def at(url: str, text: str) -> str:
    """`text` with the address that users have replaced by the one under test."""
    moved = re.sub(r"http://(?:127\.0\.0\.1|localhost):8000", url, text)
    assert "8000" not in moved
    return moved


def dry_run(command: str) -> str:
    assert shutil.which("make"), "make is needed to check the README"
    # This test may itself run below a `make test`, whose variables would change what is printed.
    return run(["sh", "-c", f"unset MAKEFLAGS MFLAGS MAKELEVEL; {command}"])


def run_shell(script: str, scratch: Path, **variables: str) -> str:
    """The output of a script that must succeed; `scratch` holds curl's settings."""
    # Readers write plain `curl -s`; here an HTTP error must be seen.
    (scratch / ".curlrc").write_text("fail-with-body\n")
    return run(["sh", "-euc", script], CURL_HOME=str(scratch), **variables)


def run(command: list[str], **variables: str) -> str:
    """Runs in the repository with this environment's programs first; returns what was printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PATH": path, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}"
    return done.stdout
