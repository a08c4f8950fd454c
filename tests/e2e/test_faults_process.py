"""A server that was killed, or whose disk was too small: the next one starts as if nothing had been."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import ServerProcess, running_server
from tests.fakes import VOCAB_SIZE, write_byte_tokenizer
from tests.faults import PATIENCE_S
from tests.native_models import write_native_model

FLAGS = ("--scheduler-mode", "ar_batch", "--kv-cache-tokens", "512", "--threads", "1")
PACKING = "packing the weights"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_native_model(folder, "llama", vocab_size=VOCAB_SIZE)
    return write_byte_tokenizer(folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def answer(server: ServerProcess) -> Any:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 16, "temperature": 1, "seed": 3, "return_token_ids": True}
    response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    return response.json()["choices"], response.json()["system_fingerprint"]


def has_packed(server: ServerProcess) -> bool:
    return any(PACKING in line for line in server.lines)


def test_killed_and_started_again_on_its_port_and_its_cache(model: Path, cache: Path) -> None:
    """The connections of its clients are still there when it dies."""
    with running_server("--model", str(model), *FLAGS) as server, httpx.Client(timeout=PATIENCE_S) as client:
        assert has_packed(server)
        expected = answer(server)
        client.get(f"{server.url}/health")
        server.process.kill()
        server.process.wait(PATIENCE_S)
    port = server.url.rpartition(":")[2]
    with running_server("--model", str(model), *FLAGS, "--port", port) as again:
        assert again.url == server.url
        assert not has_packed(again)
        assert answer(again) == expected


def test_what_a_killed_server_leaves_half_written_is_made_again(model: Path, cache: Path) -> None:
    with running_server("--model", str(model), *FLAGS) as server:
        expected = answer(server)
    [packed] = (cache / "native").iterdir()
    for damage in (half_staged, half_written):
        damage(packed)
        assert list((cache / "locks").iterdir()), "the lock's file stays, which locks nobody out"
        with running_server("--model", str(model), *FLAGS) as server:
            assert has_packed(server)
            assert answer(server) == expected
        assert list((cache / "native").iterdir()) == [packed], "nothing is left over"


def half_staged(packed: Path) -> None:
    """As if it had been killed while it packed."""
    staging = packed.with_name(f".{packed.name}.partial")
    shutil.copytree(packed, staging)
    (staging / "weights.bin").write_bytes(b"half")
    shutil.rmtree(packed)


def half_written(packed: Path) -> None:
    """As no server leaves it, but a disk that lost its power may."""
    with (packed / "weights.bin").open("r+b") as file:
        file.truncate(100)


def test_a_disk_that_takes_no_more_is_one_sentence_and_no_half_model(model: Path, cache: Path) -> None:
    """The limit on a file's size stops the writing where a full disk would: in the middle."""
    command = [sys.executable, "-m", "mtplx.server.openai", "serve", "--port", "0", "--model", str(model), *FLAGS]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        env=os.environ,
    )
    assert done.returncode == 1
    assert f"mtplx: the cache folder {cache / 'native'} can't be used" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((cache / "native").iterdir()) == []
    with running_server("--model", str(model), *FLAGS) as server:
        assert has_packed(server)
        answer(server)
