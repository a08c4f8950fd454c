"""Which runner serves: native where it can, torch where asked for or needed; contradictions are refused by flag."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtplx.errors import ConfigError
from mtplx.model.choice import RunnerChoice, Wishes, choose_runner
from mtplx.model.native.library import load_library
from mtplx.model.weights import ModelFolder
from tests.native_models import write_native_gguf, write_native_model
from tests.tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def served(tmp_path: Path) -> ModelFolder:
    return write_native_model(tmp_path / "served", "qwen3")


@pytest.fixture
def unserved(tmp_path: Path) -> ModelFolder:
    return ModelFolder(write_tiny_model(tmp_path / "unserved", "gemma3", torch.float32), "tiny", "a test")


def refusal(model: ModelFolder, **wishes: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        choose_runner(model, Wishes(**wishes))  # type: ignore[arg-type]
    return caught.value


def test_native_is_the_default_on_cpu(served: ModelFolder) -> None:
    build = load_library().build
    assert choose_runner(served, Wishes(device="cpu")) == RunnerChoice("native", "the default on cpu", build)
    assert choose_runner(served, Wishes(runner="native")) == RunnerChoice("native", "asked for", build)


def test_torch_serves_where_it_is_asked_for_or_needed(served: ModelFolder, unserved: ModelFolder) -> None:
    assert choose_runner(served, Wishes(runner="torch")) == RunnerChoice("torch", "asked for")
    found = choose_runner(served, Wishes(dtype="bfloat16", device="cpu"))
    assert found == RunnerChoice("torch", "not native: --dtype bfloat16 was asked for")
    assert choose_runner(served, Wishes(device="cuda:1")).why == "not native: --device cuda:1 was asked for"
    assert choose_runner(unserved, Wishes(device="cpu")).why.startswith("not native: Gemma3ForCausalLM has layers")


def test_what_only_the_other_runner_can_do_is_refused(served: ModelFolder, unserved: ModelFolder) -> None:
    assert refusal(unserved, runner="native").parameter == "--runner"
    assert refusal(unserved, quantization="int4", device="cpu").parameter == "--quantization"
    assert refusal(unserved, kv_cache_dtype="float16", device="cpu").parameter == "--kv-cache-dtype"
    assert refusal(served, quantization="int8", dtype="float32").parameter == "--quantization"
    assert choose_runner(unserved, Wishes(quantization="none", device="cpu")).name == "torch"


def test_rounding_a_gguf_a_second_time_is_refused_at_the_choice(tmp_path: Path) -> None:
    model, _ = write_native_gguf(tmp_path / "a.gguf", "llama", "Q4_0")
    assert "second time" in str(refusal(model, quantization="int8", device="cpu"))
    assert choose_runner(model, Wishes(quantization="none", device="cpu")).name == "native"
