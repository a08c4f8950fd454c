"""The import order of the package as a table, and what breaks it in a tree of sources; reads files, imports nothing.

A pattern is a module's name, or `package.*` for the package and all in it; the longest that fits a module is its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MODE_FILES = (
    "mtplx.server.serial",
    "mtplx.server.cooperative",
    "mtplx.server.ar_batch",
    "mtplx.server.mtp_batch",
    "mtplx.server.cohort",
    "mtplx.server.hyper",
)

# From the bottom up: a module imports from its own layer and the layers above its line, never from those below it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("mtplx.errors",),
    ("mtplx.client.*", "mtplx.batching.state"),
    ("mtplx.config", "mtplx.sampling_params"),
    (
        "mtplx.batching.*",
        "mtplx.telemetry.counters",
        "mtplx.telemetry.stages",
        "mtplx.telemetry.profile",
        "mtplx.telemetry.trace",
        "mtplx.text.*",
        "mtplx.model.spec",
    ),
    ("mtplx.model.*", "mtplx.decode.*"),
    ("mtplx.train.*",),
    MODE_FILES[:-1],
    ("mtplx.server.hyper",),  # is mtp_batch at width 1, so it may import that file
    ("mtplx.server.modes",),
    ("mtplx.server.engine", "mtplx.server.head_calls"),
    (
        "mtplx.server.worker",
        "mtplx.server.admission",
        "mtplx.server.choice_text",
        "mtplx.server.stream",
        "mtplx.server.protocol.*",
        "mtplx.server.answers.shapes",
        "mtplx.server.answers.messages_shapes",
        "mtplx.server.answers.responses_shapes",
        "mtplx.server.error_bodies",
        "mtplx.server.disconnect",
        "mtplx.server.grammar_line",
        "mtplx.server.sse",
    ),
    ("mtplx.server.assemble",),
    ("mtplx", "mtplx.inference"),
    (
        "mtplx.telemetry.engine_metrics",
        "mtplx.telemetry.logs",
        "mtplx.telemetry.metrics",
        "mtplx.telemetry.record",
        "mtplx.telemetry.tracing",
        "mtplx.telemetry.watch",
        "mtplx.server.context",
        "mtplx.server.auth",
        "mtplx.server.body",
        "mtplx.server.boundary",
        "mtplx.server.connections",
        "mtplx.server.schema",
        "mtplx.server.answers.*",
        "mtplx.server.generation",
    ),
    ("mtplx.server.handlers.*",),
    ("mtplx.server.app",),
    ("mtplx.server.openai",),
    ("mtplx.commands.*",),
)

BELOW_MODES = ("mtplx.errors", "mtplx.config", "mtplx.sampling_params", "mtplx.batching.*", "mtplx.telemetry.counters")

# Tighter than the order: of mtplx these may import nothing but what is named.
ONLY: Mapping[str, tuple[str, ...]] = {
    "mtplx.client.*": ("mtplx.errors", "mtplx.client.*"),
    **dict.fromkeys(MODE_FILES, (*BELOW_MODES, *MODE_FILES)),
}

TENSORS = frozenset({"torch", "numpy", "transformers", "safetensors", "gguf"})
WEB = frozenset({"fastapi", "starlette", "uvicorn"})

# A constant at the head of the package, there for everyone whatever else the package exports.
VERSION = "mtplx.__version__"

# Libraries that may not be reached, neither directly nor through the modules of mtplx that are imported.
FORBIDDEN_LIBRARIES: Mapping[str, frozenset[str]] = {
    "mtplx.batching.*": TENSORS | WEB,
    "mtplx.telemetry.counters": TENSORS | WEB,
    "mtplx.telemetry.profile": TENSORS | WEB,
    "mtplx.telemetry.trace": TENSORS | WEB,
    "mtplx.model.spec": TENSORS | WEB,
    "mtplx.text.*": frozenset({"torch"}) | WEB,
    "mtplx.decode.*": frozenset({"torch"}) | WEB,
    "mtplx.client.*": TENSORS | WEB,
    **dict.fromkeys(MODE_FILES, TENSORS | WEB),
}


@dataclass(frozen=True, slots=True)
class Module:
    """What one file imports anywhere in it, functions included, `if TYPE_CHECKING:` excluded."""

    name: str
    internal: frozenset[str]  # modules of mtplx
    libraries: frozenset[str]  # top-level names of all others, the standard library's too


def read_modules(root: Path) -> dict[str, Module]:
    """Every module under `root / "mtplx"` by name; empty files say nothing and are left out."""
    paths = {_module_name(path.relative_to(root)): path for path in sorted((root / "mtplx").rglob("*.py"))}
    return {
        name: _read_module(name, path, known=frozenset(paths))
        for name, path in paths.items()
        if path.read_text().strip()
    }


def order_problems(modules: Mapping[str, Module]) -> list[str]:
    """One sentence for every module without a layer, arrow that points back, stray import, library and cycle."""
    unlisted = [f"{name} has no layer: add it to LAYERS" for name in modules if _layer(name) is None]
    return unlisted + [
        problem for check in (_back_arrows, _strays, _forbidden_libraries, _cycles) for problem in check(modules)
    ]


def _back_arrows(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        own = _layer(module.name)
        for target in sorted(module.internal):
            other = _layer(target)
            if own is not None and other is not None and other > own:
                yield f"{module.name} (layer {own}) imports {target} (layer {other})"


def _strays(modules: Mapping[str, Module]) -> Iterator[str]:
    for pattern, allowed in ONLY.items():
        for module in _matching(modules, pattern):
            for target in sorted(module.internal):
                if not any(_fits(target, allowed_pattern) for allowed_pattern in allowed):
                    yield f"{module.name} imports {target}, which isn't among {', '.join(allowed)}"


def _forbidden_libraries(modules: Mapping[str, Module]) -> Iterator[str]:
    for pattern, libraries in FORBIDDEN_LIBRARIES.items():
        for module in _matching(modules, pattern):
            for reached in _reachable(modules, module.name):
                for library in sorted(modules[reached].libraries & libraries):
                    way = "" if reached == module.name else f" through {reached}"
                    yield f"{module.name} imports {library}{way}"


def _cycles(modules: Mapping[str, Module]) -> Iterator[str]:
    for name, module in modules.items():
        if any(name in _reachable(modules, target) for target in module.internal if target in modules):
            yield f"{name} imports itself through {', '.join(sorted(module.internal))}"


def _reachable(modules: Mapping[str, Module], start: str) -> list[str]:
    """`start` and all that it imports, directly or not, in the order found."""
    found = [start]
    for name in found:
        found += [target for target in sorted(modules[name].internal) if target in modules and target not in found]
    return found


def _matching(modules: Mapping[str, Module], pattern: str) -> list[Module]:
    return [module for module in modules.values() if _fits(module.name, pattern)]


def _fits(name: str, pattern: str) -> bool:
    package = pattern.removesuffix(".*")
    return name == package or (pattern.endswith(".*") and name.startswith(package + "."))


def _layer(name: str) -> int | None:
    fits = [(len(pattern), index) for index, layer in enumerate(LAYERS) for pattern in layer if _fits(name, pattern)]
    return max(fits)[1] if fits else None


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read_module(name: str, path: Path, known: frozenset[str]) -> Module:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    targets: set[str] = set()
    for node in _running_nodes(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            targets.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                qualified = f"{base}.{alias.name}"
                if qualified != VERSION:
                    targets.add(qualified if qualified in known else base)
    internal = {target for target in targets if _fits(target, "mtplx.*")}
    return Module(name, frozenset(internal), frozenset(target.partition(".")[0] for target in targets - internal))


def _running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below `node` but those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for branch in child.orelse:
                yield branch
                yield from _running_nodes(branch)
        else:
            yield child
            yield from _running_nodes(child)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that `from ... import` names; one dot is `package`, each more goes one package up."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)
