"""What models are on this machine: in mtplx's own cache, and in the hub library's, which other programs share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mtplx.model.store import cache_root, folder_bytes, intact_manifest, read_manifest


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One folder that holds a model or the file that it is made from."""

    name: str  # what `--model` takes, where there is such a name
    kind: str  # downloaded, converted, packed or hub
    source: str
    num_bytes: int
    folder: Path
    is_whole: bool  # every file is as it was written


def cached_models(hub_cache: Path | None = None) -> list[CachedModel]:
    """All of them, downloads first, by name within a kind. Reads no weights unless a file's time has changed.

    `hub_cache` None is the hub library's own place.
    """
    root = cache_root()
    downloads = [_own(folder, "downloaded") for folder in sorted((root / "models").glob("[!.]*/"))]
    converted = [_own(folder, "converted") for folder in sorted((root / "converted").glob("[!.]*/"))]
    packed = [_own(folder, "packed") for folder in sorted((root / "native").glob("[!.]*/"))]
    return [*downloads, *converted, *packed, *_hub_models(hub_cache)]


def _own(folder: Path, kind: str) -> CachedModel:
    manifest = read_manifest(folder)
    name = folder.name
    if manifest is not None and manifest.gguf is not None:
        name = Path(manifest.gguf.path).name
    source = "unknown" if manifest is None else manifest.source
    return CachedModel(name, kind, source, folder_bytes(folder), folder, intact_manifest(folder) is not None)


def _hub_models(hub_cache: Path | None) -> list[CachedModel]:
    """Snapshots with a configuration and safetensors; whether they can be served shows when they are inspected."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir(hub_cache)
    except CacheNotFound:
        return []
    found = []
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        for revision in sorted(repo.revisions, key=lambda revision: revision.commit_hash):
            names = {file.file_name for file in revision.files}
            if repo.repo_type == "model" and "config.json" in names and any(n.endswith(".safetensors") for n in names):
                folder, num_bytes = revision.snapshot_path, revision.size_on_disk
                found.append(CachedModel(repo.repo_id, "hub", f"model hub {repo.repo_id}", num_bytes, folder, True))
    return found
