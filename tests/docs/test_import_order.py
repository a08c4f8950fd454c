"""The package keeps its import order, and every rule of that order fails on a tree that breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.import_order import LAYERS, Module, order_problems, read_modules

REPOSITORY = Path(__file__).parents[2]


def test_the_package_keeps_its_import_order() -> None:
    modules = read_modules(REPOSITORY)
    assert {"mtplx.errors", "mtplx.batching.state", "mtplx.config"} <= set(modules)
    assert order_problems(modules) == []


def test_no_pattern_is_listed_twice() -> None:
    patterns = [pattern for layer in LAYERS for pattern in layer]
    assert len(patterns) == len(set(patterns))


def test_imports_of_all_forms_are_read(tmp_path: Path) -> None:
    files = {
        "errors.py": "X = 1",
        "batching/__init__.py": "",
        "batching/state.py": "from ..errors import X\nfrom mtplx import __version__",
        "batching/blocks.py": "import os.path\nfrom . import state\nfrom mtplx import errors\nimport mtplx.errors",
        "batching/budget.py": "def late():\n    from mtplx.batching.state import X\n    import torch\n",
    }
    modules = read_modules(write_tree(tmp_path, files))
    assert modules == {
        "mtplx.errors": Module("mtplx.errors", frozenset(), frozenset()),
        "mtplx.batching.state": Module("mtplx.batching.state", frozenset({"mtplx.errors"}), frozenset()),
        "mtplx.batching.blocks": Module(
            "mtplx.batching.blocks", frozenset({"mtplx.batching.state", "mtplx.errors"}), frozenset({"os"})
        ),
        "mtplx.batching.budget": Module(
            "mtplx.batching.budget", frozenset({"mtplx.batching.state"}), frozenset({"torch"})
        ),
    }


def test_what_only_a_type_checker_reads_is_free(tmp_path: Path) -> None:
    source = "if {guard}:\n    import mtplx.commands.serve\n    import torch\nelse:\n    import mtplx.errors\n"
    files = {
        "batching/state.py": source.format(guard="typing.TYPE_CHECKING"),
        "batching/blocks.py": source.format(guard="TYPE_CHECKING"),
    }
    modules = read_modules(write_tree(tmp_path, files))
    assert order_problems(modules) == []
    assert all(module.internal == {"mtplx.errors"} for module in modules.values())


# Each case is one file that breaks one rule, and a part of the sentence that must name it.
BAD_TREES: Mapping[str, tuple[dict[str, str], str]] = {
    "a module without a layer": (
        {"server/helpers.py": "X = 1"},
        "mtplx.server.helpers has no layer",
    ),
    "a package's code without a layer": (
        {"server/__init__.py": "X = 1"},
        "mtplx.server has no layer",
    ),
    "errors import the vocabulary": (
        {"errors.py": "import mtplx.batching.state"},
        "mtplx.errors (layer 0) imports mtplx.batching.state (layer 1)",
    ),
    "the vocabulary imports settings": (
        {"batching/state.py": "from mtplx.config import Settings"},
        "mtplx.batching.state (layer 1) imports mtplx.config",
    ),
    "settings import the allocator": (
        {"config.py": "from mtplx.batching.blocks import BlockAllocator"},
        "mtplx.config (layer 2) imports mtplx.batching.blocks",
    ),
    "sampling parameters import next_token": (
        {"sampling_params.py": "from mtplx.decode import next_token"},
        "mtplx.sampling_params (layer 2) imports mtplx.decode",
    ),
    "batching imports a model": (
        {"batching/blocks.py": "from mtplx.model.runner import Runner"},
        "mtplx.batching.blocks (layer 3) imports mtplx.model.runner",
    ),
    "text imports a model": (
        {"text/chat.py": "import mtplx.model.catalog"},
        "mtplx.text.chat (layer 3) imports mtplx.model.catalog",
    ),
    "a model's facts import its weights": (
        {"model/spec.py": "from . import weights", "model/weights.py": "X = 1"},
        "mtplx.model.spec (layer 3) imports mtplx.model.weights (layer 4)",
    ),
    "decode imports the engine": (
        {"decode/noise.py": "from mtplx.server.engine import Engine"},
        "mtplx.decode.noise (layer 4) imports mtplx.server.engine",
    ),
    "a mode imports the engine": (
        {"server/serial.py": "import mtplx.server.engine"},
        "mtplx.server.serial (layer 6) imports mtplx.server.engine",
    ),
    "a mode imports more than batching": (
        {"server/ar_batch.py": "from mtplx.decode.noise import philox"},
        "mtplx.server.ar_batch imports mtplx.decode.noise, which isn't among",
    ),
    "a mode imports the text side": (
        {"server/cooperative.py": "from mtplx.text.tokenizer import Tokenizer"},
        "mtplx.server.cooperative imports mtplx.text.tokenizer, which isn't among",
    ),
    "mtp_batch imports hyper": (
        {"server/mtp_batch.py": "import mtplx.server.hyper"},
        "mtplx.server.mtp_batch (layer 6) imports mtplx.server.hyper (layer 7)",
    ),
    "the table of modes imports the engine": (
        {"server/modes.py": "import mtplx.server.engine"},
        "mtplx.server.modes (layer 8) imports mtplx.server.engine",
    ),
    "the engine imports its worker": (
        {"server/engine.py": "from mtplx.server import worker", "server/worker.py": "X = 1"},
        "mtplx.server.engine (layer 9) imports mtplx.server.worker",
    ),
    "the worker imports the handlers": (
        {"server/worker.py": "import mtplx.server.handlers.info"},
        "mtplx.server.worker (layer 10) imports mtplx.server.handlers.info",
    ),
    "assembling imports in-process use": (
        {"server/assemble.py": "from mtplx.inference import Engine"},
        "mtplx.server.assemble (layer 11) imports mtplx.inference (layer 12)",
    ),
    "the engine imports the package's exports": (
        {"server/engine.py": "from mtplx import Engine", "__init__.py": "X = 1"},
        "mtplx.server.engine (layer 9) imports mtplx (layer 12)",
    ),
    "in-process use imports the app": (
        {"inference.py": "import mtplx.server.app"},
        "mtplx.inference (layer 12) imports mtplx.server.app",
    ),
    "counters import metrics": (
        {"telemetry/counters.py": "import mtplx.telemetry.metrics"},
        "mtplx.telemetry.counters (layer 3) imports mtplx.telemetry.metrics (layer 13)",
    ),
    "an answer imports the handlers": (
        {"server/answers/chat.py": "import mtplx.server.handlers.info"},
        "mtplx.server.answers.chat (layer 13) imports mtplx.server.handlers.info (layer 14)",
    ),
    "handlers import the app": (
        {"server/handlers/info.py": "import mtplx.server.app"},
        "mtplx.server.handlers.info (layer 14) imports mtplx.server.app",
    ),
    "the app imports the program": (
        {"server/app.py": "import mtplx.server.openai"},
        "mtplx.server.app (layer 15) imports mtplx.server.openai",
    ),
    "the program imports a command": (
        {"server/openai.py": "def main():\n    from mtplx.commands.serve import run\n"},
        "mtplx.server.openai (layer 16) imports mtplx.commands.serve",
    ),
    "the client imports settings": (
        {"client/__init__.py": "import mtplx.config"},
        "mtplx.client (layer 1) imports mtplx.config",
    ),
    "the client imports the vocabulary": (
        {"client/http.py": "import mtplx.batching.state"},
        "mtplx.client.http imports mtplx.batching.state, which isn't among",
    ),
    "batching imports torch": (
        {"batching/blocks.py": "import torch"},
        "mtplx.batching.blocks imports torch",
    ),
    "batching imports numpy in a function": (
        {"batching/blocks.py": "def f():\n    from numpy import array\n"},
        "mtplx.batching.blocks imports numpy",
    ),
    "a mode imports the web framework": (
        {"server/serial.py": "import fastapi.responses"},
        "mtplx.server.serial imports fastapi",
    ),
    "a mode reaches torch through batching": (
        {"server/serial.py": "import mtplx.batching.blocks", "batching/blocks.py": "import torch"},
        "mtplx.server.serial imports torch through mtplx.batching.blocks",
    ),
    "text imports torch": (
        {"text/tokenizer.py": "import torch"},
        "mtplx.text.tokenizer imports torch",
    ),
    "decode reaches torch through a runner": (
        {"decode/noise.py": "import mtplx.model.torch.runner", "model/torch/runner.py": "import torch"},
        "mtplx.decode.noise imports torch through mtplx.model.torch.runner",
    ),
    "a model's facts import numpy": (
        {"model/spec.py": "import numpy as np"},
        "mtplx.model.spec imports numpy",
    ),
    "the client imports torch": (
        {"client/__init__.py": "import torch"},
        "mtplx.client imports torch",
    ),
    "two modules of one layer import each other": (
        {"text/chat.py": "import mtplx.text.tokenizer", "text/tokenizer.py": "def f():\n    import mtplx.text.chat\n"},
        "mtplx.text.chat imports itself through mtplx.text.tokenizer",
    ),
}


@pytest.mark.parametrize(("files", "expected"), BAD_TREES.values(), ids=BAD_TREES.keys())
def test_a_tree_that_breaks_a_rule_is_reported(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    problems = order_problems(read_modules(write_tree(tmp_path, files)))
    assert any(problem.startswith(expected) for problem in problems), problems


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Writes sources, named by their path below `mtplx/`, and returns `root`."""
    for name, source in files.items():
        path = root / "mtplx" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root
