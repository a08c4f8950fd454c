"""Writes docs/cli.md from the command line's own parser; a test fails when the page is stale."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from mtplx.commands.public import COMMANDS, build_parser
from mtplx.config import Settings, variable_name

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

This page is generated from the command line's parser: change it there, then run `python scripts/make_cli_docs.py`.

Exit codes: 0 done, 1 failed, 2 wrong arguments or settings, 130 interrupted. `mtplx --version` prints the version.
`python -m mtplx.server.openai serve` is `mtplx serve` under another name, with the same flags.
"""

SETTINGS_NOTE = """\
Every setting can be given as a flag, as a variable, or as a key of the TOML file that `--config` names; the first of
these that has it wins. The file's keys are the flags' names with underscores: `max_queue = 64`, `exact = false`,
`cors_origin = ["https://a.example"]`. In a variable, lists are written with commas and switches as `true` or `false`.
An unknown flag, key or `MTPLX_` variable is refused, and so is an empty value.

Variables that are no settings: `MTPLX_CACHE_DIR` is where models are kept; `MTPLX_BASE_URL` is where `mtplx chat`,
`mtplx status` and `mtplx.client` look for a server. Under Kubernetes a service called `mtplx` makes it set variables
such as `MTPLX_PORT` of its own: give the pod `enableServiceLinks: false`, or the service another name.
"""


def main() -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render_page(), encoding="utf-8")


def render_page() -> str:
    """The page's text; the same on every machine, since it uses none of argparse's own layout."""
    parsers = subparsers_of(build_parser(COMMANDS.keys()))
    return "\n".join([INTRODUCTION, *(line for name in COMMANDS for line in _command_section(name, parsers[name]))])


def subparsers_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of every subcommand by its name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _command_section(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    has_settings = any(action.dest in Settings.model_fields for action in actions if name == "serve")
    yield f"## mtplx {name}\n"
    yield f"{parser.description}\n"
    if has_settings:
        yield SETTINGS_NOTE
    elif parser.epilog:
        yield f"{parser.epilog}.\n"
    yield "| flag | variable | meaning |" if has_settings else "| argument | meaning |"
    yield "|---|---|---|" if has_settings else "|---|---|"
    for action in actions:
        variable = f" {_variable(action)} |" if has_settings else ""
        yield f"| {_spelling(action)} |{variable} {_meaning(action)} |"
    yield ""


def _spelling(action: argparse.Action) -> str:
    """The argument as one writes it: `--port N`, `--exact, --no-exact`, `MODEL`."""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return f"`{metavar}`"
    takes_value = action.nargs != 0
    return ", ".join(f"`{option} {metavar}`" if takes_value else f"`{option}`" for option in action.option_strings)


def _variable(action: argparse.Action) -> str:
    return f"`{variable_name(action.dest)}`" if action.dest in Settings.model_fields else ""


def _meaning(action: argparse.Action) -> str:
    return str(action.help or "").replace("%%", "%").replace("|", "\\|")


if __name__ == "__main__":
    main()
