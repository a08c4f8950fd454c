"""docs/cli.md says what the command line's parser says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mtplx.commands.public import COMMANDS
from mtplx.config import Settings, flag_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cli_docs", ROOT / "scripts" / "make_cli_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_what_the_generator_writes(generator: ModuleType) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == generator.render_page(), "docs/cli.md is stale: run python scripts/make_cli_docs.py"


def test_page_names_every_command_and_every_setting(generator: ModuleType) -> None:
    page = generator.render_page()
    missing = [name for name in COMMANDS if f"## mtplx {name}\n" not in page]
    missing += [name for name in Settings.model_fields if f"`{flag_name(name)}" not in page]
    assert missing == []


def test_every_argument_has_a_help_text(generator: ModuleType) -> None:
    parsers = generator.subparsers_of(generator.build_parser(COMMANDS.keys()))
    silent = [
        f"{name} {action.dest}" for name, parser in parsers.items() for action in parser._actions if not action.help
    ]
    assert silent == []
