"""`mtplx inspect`: what a model is and what would run it, read from its files without loading the weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtplx.config import AUTO
from mtplx.model.checkpoint import count_parameters, weight_types
from mtplx.model.choice import Wishes, choose_runner
from mtplx.model.folder import read_spec
from mtplx.model.gguf import read_gguf
from mtplx.model.head_file import load_head
from mtplx.model.mtp import MtpWeights, find_mtp_weights
from mtplx.model.store import folder_bytes, format_bytes
from mtplx.model.weights import ModelFolder, resolve_model

if TYPE_CHECKING:
    from mtplx.commands.public import Subparsers

Value = str | int | list[int] | list[float] | None


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="what a model is, and what would run it",
        description="Show what a model is and which runner would serve it. Fetches and converts it first if needed.",
    )
    parser.add_argument("model", metavar="MODEL", help="catalog name, hub id, local folder or .gguf file")
    parser.add_argument("--offline", action="store_true", help="use what is on this machine, never the network")
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")


def run(namespace: argparse.Namespace) -> int:
    """Prints the facts.

    Raises:
        ModelError: the model can't be found, read or served; the sentence says why.
    """
    facts = inspect_model(resolve_model(namespace.model, offline=namespace.offline, with_weights=False))
    if namespace.json:
        print(json.dumps(facts, indent=2))
    else:
        Console().print(facts_table(facts))
    return 0


def inspect_model(model: ModelFolder) -> dict[str, Value]:
    """The facts in the order in which they are shown."""
    spec = read_spec(model.path)
    choice = choose_runner(model, Wishes())
    own = find_mtp_weights(model.path, spec) if model.gguf_path is None else MtpWeights()
    head = load_head(AUTO, model, spec)
    return {
        "name": model.name,
        "source": model.source,
        "folder": str(model.path),
        "gguf": None if model.gguf_path is None else str(model.gguf_path),
        "architecture": spec.architecture,
        **_weight_facts(model),
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "context_length": spec.max_position,
        "sliding_window": spec.sliding_window,
        "eos_ids": sorted(spec.eos_ids),
        "num_mtp_modules": own.num_modules or None,
        "mtp_note": own.why_none,
        "draft_head": None if head is None else str(head.path),
        "draft_blocks": None if head is None else head.info.num_blocks,
        "draft_vocab_size": None if head is None else head.info.draft_vocab_size,
        "draft_acceptance": None if head is None else list(head.info.greedy_acceptance),
        "runner": choice.name,
        "runner_reason": choice.why,
        "native_build": choice.native_build,
    }


def _weight_facts(model: ModelFolder) -> dict[str, Value]:
    """Of a GGUF the file's own: what its folder holds may be as little as tokenizer and configuration."""
    if model.gguf_path is None:
        return {
            "num_parameters": count_parameters(model.path),
            "weight_type": weight_types(model.path)[0],
            "num_bytes": folder_bytes(model.path),
        }
    gguf = read_gguf(model.gguf_path)
    return {
        "num_parameters": gguf.num_parameters,
        "weight_type": "+".join(gguf.matrix_types),
        "num_bytes": model.gguf_path.stat().st_size,
    }


def facts_table(facts: Mapping[str, Value]) -> Table:
    """One line a fact; what the model doesn't have is left out."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in facts.items():
        if value is not None:
            name = "size" if key == "num_bytes" else key.removeprefix("num_").replace("_", " ")
            table.add_row(name, Text(_text(key, value), overflow="fold"))
    return table


def _text(key: str, value: Value) -> str:
    if isinstance(value, int):
        return format_bytes(value) if key == "num_bytes" else f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
