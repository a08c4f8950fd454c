"""The user's cache folder: where it is, how something gets into it whole, and how damage is seen later.

Every cached model is a folder with a manifest (`mtplx.json`) that lists its files. It is filled under another name and
renamed when it is complete, so it is there whole or not at all. Knows nothing of models.

    <root>/models/<name>/       what was downloaded by a catalog name
    <root>/converted/<key>/     Hugging Face folders made from GGUF files
    <root>/native/<key>/        weights packed for the native runner
    <root>/costs/<key>.json     what steps and drafts cost on this machine
    <root>/train-head/<key>/    text and checkpoints of heads in training
    <root>/locks/               one lock file a folder
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from mtplx.errors import ModelError

Say = Callable[[str], None]  # tells the user one line

MANIFEST_NAME = "mtplx.json"
MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a file was when it was known to be good. `path` is absolute, or a name inside the manifest's folder."""

    path: str
    num_bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a cached folder holds. `gguf` is the file that it was converted from, kept for runners that read it."""

    source: str  # where the bytes came from, for people
    files: tuple[FileStamp, ...]
    gguf: FileStamp | None = None


def cache_root() -> Path:
    """The folder for all that mtplx keeps: MTPLX_CACHE_DIR, else the system's place for a user's caches."""
    override = os.environ.get("MTPLX_CACHE_DIR")
    return Path(override).expanduser().absolute() if override else platformdirs.user_cache_path("mtplx", False)


def stamp_file(path: Path, *, relative_to: Path | None = None) -> FileStamp:
    """Reads the whole file once and returns its size, time and checksum."""
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = str(path.relative_to(relative_to)) if relative_to else str(path.absolute())
    return FileStamp(name, before.st_size, before.st_mtime_ns, digest)


def is_intact(path: Path, stamp: FileStamp) -> bool:
    """Whether the file is still what was stamped. Its bytes are read again only if its time has changed."""
    if not path.is_file():
        return False
    now = path.stat()
    if now.st_size != stamp.num_bytes:
        return False
    return now.st_mtime_ns == stamp.mtime_ns or stamp_file(path).sha256 == stamp.sha256


def write_manifest(folder: Path, source: str, gguf: FileStamp | None = None) -> Manifest:
    """Flushes every file of `folder` to the disk, stamps it, and writes the manifest beside them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    manifest = Manifest(source, tuple(stamp_file(path, relative_to=folder) for path in files), gguf)
    text = json.dumps({"format": MANIFEST_FORMAT, **asdict(manifest)}, indent=2)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None where there is none that this version can read."""
    try:
        data = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        if data["format"] != MANIFEST_FORMAT:
            return None
        files = tuple(FileStamp(**item) for item in data["files"])
        gguf = FileStamp(**data["gguf"]) if data["gguf"] else None
        return Manifest(data["source"], files, gguf)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def intact_manifest(folder: Path) -> Manifest | None:
    """The manifest if every file that it lists is as it was; None if the folder is absent or damaged."""
    manifest = read_manifest(folder)
    if manifest is None or not all(is_intact(folder / stamp.path, stamp) for stamp in manifest.files):
        return None
    return manifest


@contextmanager
def exclusive(root: Path, key: str, say: Say) -> Iterator[None]:
    """Holds the lock of `key` against other threads and processes; says so when it has to wait."""
    with disk_errors(root):
        (root / "locks").mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / "locks" / f"{key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"another process is preparing {key}, waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def staged_folder(target: Path, num_bytes: int) -> Iterator[Path]:
    """Yields an empty folder that becomes `target` if the block ends well, and vanishes if it doesn't.

    The caller holds the target's lock. `num_bytes` is what the block will write at most.

    Raises:
        ModelError: too little space, or the disk is full, read-only or not ours.
    """
    staging = target.with_name(f".{target.name}.partial")
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
        require_space(target.parent, num_bytes)
        staging.mkdir()
        try:
            yield staging
            if target.exists():
                shutil.rmtree(target)
            staging.replace(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def require_space(folder: Path, num_bytes: int) -> None:
    """Raises ModelError if `folder`'s disk has less than `num_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ModelError(
            f"the disk that holds {folder} has {format_bytes(free)} free, {format_bytes(num_bytes)} are needed: "
            "make room, or name another folder in MTPLX_CACHE_DIR"
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turns a disk that is full or can't be written into one sentence that names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full"
        elif error.errno == errno.EFBIG:
            reason = "it takes no file of that size"
        elif error.errno == errno.EIO:
            reason = "the disk has failed"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "it can't be written"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            reason = "a file is in the way"
        else:
            raise
        raise ModelError(
            f"the cache folder {folder} can't be used, {reason}: put that right, or name another in MTPLX_CACHE_DIR"
        ) from error


def format_bytes(num_bytes: int) -> str:
    """`98362432` as `98.4 MB`; powers of 1000."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def folder_bytes(folder: Path) -> int:
    """Sum of the sizes of all files below `folder`; a link counts as what it points at."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
