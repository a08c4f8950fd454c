"""`mtplx models`: a table of the models on this machine, and of the names that can be pulled."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from mtplx.commands.output import table_console
from mtplx.model.catalog import CATALOG
from mtplx.model.inventory import CachedModel, cached_models
from mtplx.model.store import cache_root, format_bytes

if TYPE_CHECKING:
    from mtplx.commands.public import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "models",
        help="list the cached models and their sizes",
        description="List the models on this machine: downloaded, converted from GGUF, and in the hub's cache.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")


def run(namespace: argparse.Namespace) -> int:
    """Prints what is cached."""
    models = cached_models()
    if namespace.json:
        print(json.dumps({"cache": str(cache_root()), "models": [_as_json(model) for model in models]}, indent=2))
        return 0
    console = table_console()
    console.print(models_table(models))
    total = sum(model.num_bytes for model in models)
    console.print(f"{len(models)} cached, {format_bytes(total)}", highlight=False)
    cached = {model.name for model in models}
    for entry in CATALOG:
        if entry.name not in cached:
            console.print(f"not cached: {entry.name} ({entry.title})", highlight=False)
    return 0


def models_table(models: Sequence[CachedModel]) -> Table:
    """One line a model; long folders are folded, never cut."""
    table = Table(box=None, pad_edge=False)
    for name in ("name", "kind", "size"):
        table.add_column(name, no_wrap=True)
    table.add_column("folder", overflow="fold")
    for model in models:
        kind = model.kind if model.is_whole else f"{model.kind}, damaged"
        table.add_row(Text(model.name), kind, format_bytes(model.num_bytes), Text(str(model.folder)))
    return table


def _as_json(model: CachedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "kind": model.kind,
        "source": model.source,
        "num_bytes": model.num_bytes,
        "folder": str(model.folder),
        "is_whole": model.is_whole,
    }
