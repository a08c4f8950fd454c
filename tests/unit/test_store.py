"""The cache folder: whole or absent, damage seen, full disks and wrong folders named in one sentence."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from mtplx.errors import ModelError
from mtplx.model.progress import transfer
from mtplx.model.store import (
    cache_root,
    disk_errors,
    format_bytes,
    intact_manifest,
    is_intact,
    require_space,
    staged_folder,
    stamp_file,
    write_manifest,
)


def fill_and_fail(target: Path, error: Exception) -> None:
    with staged_folder(target, 1) as staging:
        (staging / "a").write_text("half")
        raise error


def test_cache_root_follows_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("MTPLX_CACHE_DIR")
    assert cache_root().name == "mtplx"


def test_staged_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with pytest.raises(KeyError):
        fill_and_fail(target, KeyError())
    assert list(target.parent.iterdir()) == []
    for text in ("first", "second"):
        with staged_folder(target, 1) as staging:
            (staging / "a").write_text(text)
        assert (target / "a").read_text() == text
    assert list(target.parent.iterdir()) == [target]


def test_stamp_sees_every_change(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"good")
    stamp = stamp_file(path)
    os.utime(path, ns=(1, 1))  # touched, but the bytes are the same
    assert is_intact(path, stamp)
    path.write_bytes(b"goof")
    assert not is_intact(path, stamp)
    path.write_bytes(b"goo")
    assert not is_intact(path, stamp)
    path.unlink()
    assert not is_intact(path, stamp)


def test_manifest_covers_every_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("1")
    written = write_manifest(tmp_path, "a test")
    assert intact_manifest(tmp_path) == written
    assert [stamp.path for stamp in written.files] == [str(Path("sub/a"))]
    (tmp_path / "sub" / "a").unlink()
    assert intact_manifest(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "files": [{}], "gguf": null}'])
def test_unreadable_manifest_counts_as_damage(text: str, tmp_path: Path) -> None:
    (tmp_path / "mtplx.json").write_text(text)
    assert intact_manifest(tmp_path) is None


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has .* free, 1000\.0 TB are needed.*MTPLX_CACHE_DIR"):
        require_space(tmp_path, 10**15)
    with pytest.raises(ModelError, match="are needed"), staged_folder(tmp_path / "target", 10**15):
        pytest.fail("the block must not run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EFBIG, "no file of that size"),
        (errno.EIO, "the disk has failed"),
        (errno.EROFS, "can't be written"),
        (errno.ENOTDIR, "a file is in the way"),
    ],
)
def test_disk_trouble_is_one_sentence(number: int, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{sentence}.*MTPLX_CACHE_DIR"), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the disk is full"):
        fill_and_fail(tmp_path / "target", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert list(tmp_path.iterdir()) == []


def test_other_errors_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path):
        (tmp_path / "none").read_bytes()


def test_cache_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="a file is in the way"), staged_folder(tmp_path / "file" / "target", 1):
        pytest.fail("the block must not run")


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (2 * 10**12, "2.0 TB")]
)
def test_sizes_for_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_progress_off_a_terminal_is_a_few_plain_lines() -> None:
    out = io.StringIO()
    with transfer("fetching x", 1000, Console(file=out, force_terminal=False)) as show:
        for done in range(0, 1001, 10):
            show(done)
    assert out.getvalue().splitlines() == [
        "fetching x (1.0 kB)",
        "fetching x: 25 %",
        "fetching x: 50 %",
        "fetching x: 75 %",
        "fetching x: 100 %",
    ]


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = io.StringIO()
    with transfer("fetching x", 1000, Console(file=out, force_terminal=True, width=100)) as show:
        show(1000)
    assert "fetching x" in out.getvalue()
    assert "1.0/1.0 kB" in out.getvalue()
