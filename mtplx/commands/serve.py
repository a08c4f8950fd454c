"""`mtplx serve`: the server, with a flag for every setting."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mtplx.config import add_settings_arguments, resolve_settings

if TYPE_CHECKING:
    from mtplx.commands.public import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model to many clients, behind the OpenAI API",
        description="Serve a model to many clients at once, behind the OpenAI API.",
        epilog="Every flag is also a variable (MTPLX_MAX_QUEUE=64; lists with commas) and a key of the --config file "
        "(max_queue = 64). A flag wins over a variable, a variable over the file.",
    )
    add_settings_arguments(parser)


def run(namespace: argparse.Namespace) -> int:
    """Serves until told to stop."""
    settings = resolve_settings(namespace)  # a wrong setting is refused before anything heavy is imported
    from mtplx.server.openai import serve

    return serve(settings)
