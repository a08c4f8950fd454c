"""Folders that can't be served, and settings that this machine can't obey: each is one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mtplx.errors import ConfigError, ModelError
from mtplx.model.torch.device import resolve_dtype, resolve_threads
from mtplx.model.torch.loader import load_torch_runner
from mtplx.model.torch.runner import TorchRunner
from tests.tiny_models import MAX_POSITION, write_tiny_model


def load(folder: Path, **settings: Any) -> TorchRunner:
    defaults = {"device": "cpu", "threads": 1, "kv_cache_tokens": 64, "max_model_len": MAX_POSITION}
    return load_torch_runner(folder, **{**defaults, **settings})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", "llama", torch.float32)


def change_weights(folder: Path, *, drop: str | None = None, **add: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    weights = {name: tensor for name, tensor in load_file(path).items() if name != drop}
    save_file({**weights, **add}, path, metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_weight_is_refused(folder: Path, name: str) -> None:
    """Transformers would fill it with random numbers and warn."""
    change_weights(folder, drop=name)
    message = refusal(folder)
    assert "lacks weights" in message
    assert name in message


def test_a_weight_without_a_place_is_refused(folder: Path) -> None:
    change_weights(folder, **{"model.layers.0.self_attn.q_norm.weight": torch.ones(8)})
    assert "no place for (LlamaForCausalLM): model.layers.0.self_attn.q_norm.weight" in refusal(folder)


def test_frequencies_of_old_checkpoints_are_harmless(folder: Path) -> None:
    change_weights(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert load(folder).num_blocks == 4


def test_a_weight_of_another_shape_is_refused(folder: Path) -> None:
    change_weights(folder, **{"model.norm.weight": torch.ones(31)})
    assert "another shape than config.json says (LlamaForCausalLM): model.norm.weight" in refusal(folder)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in refusal(folder)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere")


def test_code_in_the_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    """Even where config.json points at it, the library's own class is used."""
    witness = tmp_path / "was_run"
    (folder / "modeling_own.py").write_text(f"open({str(witness)!r}, 'w')\n")
    change_config(folder, auto_map={"AutoModelForCausalLM": "modeling_own.Own", "AutoConfig": "modeling_own.OwnConfig"})
    load(folder)
    assert not witness.exists()


def test_nothing_is_printed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"device": "tpu"}, "--device"),
        ({"device": "meta"}, "--device"),
        ({"device": "cuda:99"}, "--device"),
        ({"dtype": "int4"}, "--dtype"),
        ({"kv_cache_tokens": 10**12}, "--kv-cache-tokens"),
    ],
)
def test_a_setting_that_cannot_hold_names_its_flag(folder: Path, settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag) as caught:
        load(folder, **settings)
    assert caught.value.parameter == flag


def test_automatic_number_format() -> None:
    """float32 on a CPU, elsewhere 16 bits, the checkpoint's where it has 16."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert resolve_dtype("auto", cpu, "bfloat16") is torch.float32
    assert resolve_dtype("auto", cuda, "float32") is torch.bfloat16
    assert resolve_dtype("auto", cuda, "float16") is torch.float16
    assert resolve_dtype("float32", cuda, "float16") is torch.float32


def test_exact_mode_takes_a_power_of_two_of_threads_unless_told() -> None:
    assert resolve_threads(3, exact=True) == 3
    threads = resolve_threads(None, exact=True)
    assert threads & (threads - 1) == 0
    assert 1 <= threads <= min(16, resolve_threads(None, exact=False))
