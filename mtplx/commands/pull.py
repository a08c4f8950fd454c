"""`mtplx pull`: brings a model into the cache and makes it ready, so that serving it later needs no network."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mtplx.model.catalog import catalog_names
from mtplx.model.store import folder_bytes, format_bytes
from mtplx.model.weights import resolve_model

if TYPE_CHECKING:
    from mtplx.commands.public import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "pull", help="download a model into the cache", description="Download a model into the cache, and convert it."
    )
    parser.add_argument(
        "name", metavar="NAME", help=f"a known name ({catalog_names()}) or a hub id (organisation/model)"
    )


def run(namespace: argparse.Namespace) -> int:
    """Fetches what is missing and prints where the model is.

    Raises:
        ModelError: it can't be had.
    """
    model = resolve_model(namespace.name, refresh=True)
    print(f"{model.name} from {model.source}: {model.path} ({format_bytes(folder_bytes(model.path))})")
    return 0
