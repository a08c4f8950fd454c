"""Code that comes with a model is never run: not what a folder's configuration names, and not what a pickle holds."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from mtplx.config import load_settings
from mtplx.errors import ModelError
from mtplx.server.assemble import assemble
from tests.fakes import write_byte_tokenizer
from tests.tiny_models import write_tiny_model

CODE_MAP = {
    "AutoConfig": "evil.EvilConfig",
    "AutoModelForCausalLM": "evil.EvilModel",
    "AutoTokenizer": ["evil.EvilTokenizer", None],
}


def merge(path: Path, **more: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    """What the code would write if it ran."""
    return tmp_path / "it-ran"


@pytest.fixture
def folder(tmp_path: Path, witness: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose configuration and tokenizer name code of their own, in every way that libraries know."""
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    folder = write_byte_tokenizer(write_tiny_model(tmp_path / "model", "llama"))
    merge(folder / "config.json", auto_map=CODE_MAP)
    merge(folder / "tokenizer_config.json", auto_map=CODE_MAP, tokenizer_class="EvilTokenizer")
    (folder / "evil.py").write_text(f"open({str(witness)!r}, 'w')\nclass EvilConfig: ...\nclass EvilModel: ...\n")
    return folder


def settings_of(folder: Path) -> Any:
    given = {"model": str(folder), "device": "cpu", "runner": "torch", "dtype": "float64", "threads": 1}
    return load_settings({**given, "kv_cache_tokens": 64})


def test_code_that_a_folder_names_is_left_alone_with_a_sentence(
    folder: Path, witness: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assemble(settings_of(folder)).core.runner.close()
    assert not witness.exists()
    assert "names Python code of its own (auto_map), which is never run" in caplog.text


def test_a_model_that_needs_its_code_is_refused_by_name(folder: Path, witness: Path) -> None:
    merge(folder / "config.json", architectures=["EvilModel"], model_type="evil")
    with pytest.raises(ModelError, match="architecture EvilModel is not supported"):
        assemble(settings_of(folder))
    assert not witness.exists()


def test_pickled_weights_are_refused_unread(folder: Path, witness: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return open, (str(witness), "w")

    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ModelError, match="only pickled weights, which may run code when loaded"):
        assemble(settings_of(folder))
    assert not witness.exists()
