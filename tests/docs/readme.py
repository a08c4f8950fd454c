"""What the README holds: fenced blocks of known kinds, and a file tree that can be compared with a disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# The info string of a block says how it is checked; there is no other kind.
KINDS = {
    "sh make": "targets of the Makefile, looked up without running them",
    "sh model": "commands that need the default model, run",
    "sh live": "commands that need a server, run against one",
    "python model": "a program that needs the default model, run",
    "python live": "a program that needs a server, run against one",
    "text tree": "the file tree, compared with the disk",
}

TOP_LEVEL_FILES = ("Makefile", "constraints.txt", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Block:
    line: int  # of its opening fence, counted from 1
    kind: str
    text: str


def read_blocks(markdown: str) -> list[Block]:
    """The fenced blocks in order; every fence is three backquotes at the beginning of a line."""
    blocks = []
    opened: tuple[int, str] | None = None
    body: list[str] = []
    for number, line in enumerate(markdown.splitlines(), start=1):
        if not line.startswith("```"):
            body.append(line)
        elif opened is None:
            opened, body = (number, line.removeprefix("```").strip()), []
        else:
            blocks.append(Block(*opened, "\n".join(body) + "\n"))
            opened = None
    assert opened is None, f"the block of line {opened} never ends"
    return blocks


def block_problems(blocks: list[Block]) -> list[str]:
    """Blocks of a kind that nothing checks, and kinds that a README must have and this one lacks."""
    unknown = [f"line {block.line}: nothing checks a block of kind {block.kind!r}" for block in blocks]
    missing = [f"no block of kind {kind!r}: {why}" for kind, why in KINDS.items()]
    kinds = {block.kind for block in blocks}
    return [
        *(problem for problem, block in zip(unknown, blocks, strict=True) if block.kind not in KINDS),
        *(problem for problem, kind in zip(missing, KINDS, strict=True) if kind not in kinds),
    ]


def tree_paths(text: str) -> list[str]:
    """The paths that a tree names, folders with a slash at their end.

    A line is two spaces a level, one or more names with commas between, two or more spaces, what they are:

        mtplx/              the package      -> mtplx/
          a.py, b.py        one idea         -> mtplx/a.py, mtplx/b.py
    """
    paths: list[str] = []
    parents: list[str] = []  # of the line being read, from the top
    for line in text.splitlines():
        match = re.fullmatch(r"( *)(\S+(?:, \S+)*)  +\S.*", line)
        assert match, f"no line of a tree: {line!r}"
        level, names = len(match[1]) // 2, match[2].split(", ")
        parents = parents[:level]
        assert len(match[1]) == 2 * len(parents), f"no folder above: {line!r}"
        paths += ["".join(parents) + name for name in names]
        if names[-1].endswith("/"):
            parents.append(names[-1])
    return paths


def expected_tree(root: Path) -> set[str]:
    """What a tree must name: the top-level folders, the package's folders and sources, three files at the top.

    Hidden files and folders and what git ignores are nobody's business; a folder stands for its `__init__.py`.
    """
    ignored = {line.strip("/\n") for line in (root / ".gitignore").read_text().splitlines()}
    top = {
        f"{path.name}/"
        for path in root.iterdir()
        if path.is_dir() and path.name[0] != "." and not any(path.match(pattern) for pattern in ignored if pattern)
    }
    sources = {path for path in (root / "mtplx").rglob("*.py") if path.name != "__init__.py"}
    packages = {path.parent for path in (root / "mtplx").rglob("__init__.py")}
    return (
        top
        | {f"{path.relative_to(root)}/" for path in packages}
        | {str(path.relative_to(root)) for path in sources}
        | {name for name in TOP_LEVEL_FILES if (root / name).exists()}
    )
