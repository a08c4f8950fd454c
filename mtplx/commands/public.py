"""The command `mtplx`: finds the subcommand, imports its module alone, and turns errors into one sentence and a code.

Exit codes: 0 done, 1 failed, 2 wrong arguments or settings, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Protocol, TypeAlias, cast

from mtplx import __version__
from mtplx.config import Parser
from mtplx.errors import ConfigError, MtplxError

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

# Each name is a module beside this one; its line is what `mtplx --help` says, so that help needs none of them.
COMMANDS = MappingProxyType(
    {
        "serve": "serve a model to many clients, behind the OpenAI API",
        "chat": "chat with a running server",
        "status": "what a running server is doing",
        "profile": "where the time of a step goes, stage by stage",
        "pull": "download a model into the cache",
        "models": "list the cached models and their sizes",
        "inspect": "what a model is, and what would run it",
        "train-head": "make a draft head for a model",
    }
)


class Command(Protocol):
    """What the module of a subcommand has."""

    def add_parser(self, subparsers: Subparsers) -> object:
        """Adds the subcommand's own parser, with its arguments."""
        ...

    def run(self, namespace: argparse.Namespace) -> int:
        """Does it; returns the exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code. `--help` and `--version` leave by SystemExit, as argparse does."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        namespace = build_parser(COMMANDS.keys() & arguments).parse(arguments)
        return load_command(namespace.command).run(namespace)
    except MtplxError as error:
        print(f"mtplx: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def build_parser(commands: Collection[str]) -> Parser:
    """The parser of the whole command line, with the arguments of these `commands` and just the names of the others."""
    parser = Parser(prog="mtplx", description="Serve language models to many clients at once.")
    parser.add_argument("--version", action="version", version=f"mtplx {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name in commands:
            load_command(name).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser


def load_command(name: str) -> Command:
    return cast(Command, import_module("mtplx.commands." + name.replace("-", "_")))
