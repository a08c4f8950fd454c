"""`mtplx status`: the server's own status page as a table; it knows none of the fields, so it misses none."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from mtplx.commands.connection import add_connection_arguments, connect, plain_errors
from mtplx.commands.output import table_console

if TYPE_CHECKING:
    from mtplx.commands.public import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "status", help="what a running server is doing", description="Show what a running server is doing."
    )
    add_connection_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the status page as it is")


def run(namespace: argparse.Namespace) -> int:
    """Prints the status; 0 when the server answered."""
    with connect(namespace) as client, plain_errors(client):
        status = client.get("/status")
    if namespace.json:
        print(json.dumps(status, indent=2))
    else:
        table_console().print(status_table(status))
    return 0


def status_table(status: Mapping[str, object]) -> Table:
    """One line a field, in the server's order, what is inside another indented; `uptime_s` 5.25 is "uptime" "5.2 s"."""
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    _add_rows(table, status, indent="")
    return table


def _add_rows(table: Table, fields: Mapping[str, object], indent: str) -> None:
    for key, value in fields.items():
        name = indent + key.removesuffix("_s").replace("_", " ")
        if isinstance(value, Mapping) and not all(item.isdecimal() for item in value):  # numbers: a histogram
            table.add_row(name, "")
            _add_rows(table, value, indent + "  ")
            continue
        is_seconds = key.endswith("_s") and value is not None
        table.add_row(name, Text(_text(value) + (" s" if is_seconds else "")))


def _text(value: object) -> str:
    """None is a dash, a histogram `{"1": 20, "4": 3}` is "1: 20, 4: 3"."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "-"
    return str(value)
