"""Packed weights: made once, mapped ever after, made anew when they or their source have changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mtplx.errors import ModelError
from mtplx.model.choice import Wishes, choose_runner
from mtplx.model.inventory import cached_models
from mtplx.model.native.formats import resolve_quantization, target_format, to_blocks, to_floats
from mtplx.model.native.loader import load_native_runner
from mtplx.model.native.shape import read_shape
from mtplx.model.native.source import open_safetensors, pair_order
from mtplx.model.native.support import why_not_native
from mtplx.model.weights import ModelFolder
from tests.native_models import all_logits, load_native, random_ids, write_native_gguf, write_native_model
from tests.tiny_models import VOCAB_SIZE, write_tiny_model

IDS = random_ids(20, VOCAB_SIZE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def llama(tmp_path: Path) -> ModelFolder:
    return write_native_model(tmp_path / "llama", "llama")


def logits_and_words(model: ModelFolder, **options: str) -> tuple[bytes, list[str]]:
    said: list[str] = []
    runner = load_native_runner(model, threads=1, kv_cache_tokens=64, max_model_len=64, say=said.append, **options)
    logits = all_logits(runner, IDS).tobytes()
    runner.close()
    return logits, said


def test_packing_happens_once_for_each_quantization(llama: ModelFolder, cache: Path) -> None:
    first, said = logits_and_words(llama)
    assert said == ["packing the weights of llama for this machine's kernels, once"]
    assert logits_and_words(llama) == (first, [])
    other, said = logits_and_words(llama, quantization="none")
    assert len(said) == 1
    assert other != first
    assert len(list((cache / "native").iterdir())) == 2
    (packed, _) = [model for model in cached_models(cache / "no-hub") if model.kind == "packed"]
    assert packed.is_whole


@pytest.mark.parametrize("damage", ["cut short", "a byte changed", "no index", "an index of another version"])
def test_damaged_packing_is_made_anew(damage: str, llama: ModelFolder, cache: Path) -> None:
    first, _ = logits_and_words(llama)
    (folder,) = (cache / "native").iterdir()
    weights, index = folder / "weights.bin", folder / "index.json"
    if damage == "cut short":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "a byte changed":
        weights.write_bytes(weights.read_bytes()[:-200] + b"\x55" * 200)
    elif damage == "no index":
        index.unlink()
    else:
        index.write_text('{"tensors": 3}')
    second, said = logits_and_words(llama)
    assert len(said) == 1
    assert second == first


def test_changed_weights_are_packed_again(llama: ModelFolder) -> None:
    """Of the same size and in the same place."""
    first, _ = logits_and_words(llama)
    path = llama.path / "model.safetensors"
    state = {name: tensor * 1.5 for name, tensor in load_file(path).items()}
    save_file(state, path, metadata={"format": "pt"})
    os.utime(path, ns=(1, 1))
    second, said = logits_and_words(llama)
    assert len(said) == 1
    assert second != first


@pytest.mark.parametrize("change", ["a tensor is missing", "a tensor too many", "another shape"])
def test_a_checkpoint_that_is_not_this_model_is_refused(change: str, llama: ModelFolder) -> None:
    path = llama.path / "model.safetensors"
    state = load_file(path)
    if change == "a tensor is missing":
        del state["model.layers.1.mlp.up_proj.weight"]
    elif change == "a tensor too many":
        state["model.layers.1.self_attn.o_proj.bias"] = torch.zeros(64)
    else:
        state["model.norm.weight"] = torch.zeros(32)
    save_file(state, path, metadata={"format": "pt"})
    said = {"a tensor is missing": "lacks model.layers.1.mlp.up", "a tensor too many": "no place for: model.layers.1"}
    reason = why_not_native(llama)
    assert reason is not None
    assert said.get(change, "model.norm.weight of shape [32] where config.json implies [64]") in reason
    with pytest.raises(ModelError):
        logits_and_words(llama)


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("gemma3", {}, "Gemma3ForCausalLM has layers of another shape"),
        ("llama", {}, "intermediate_size 48 is no multiple of 32"),
        ("llama", {"intermediate_size": 64}, "head_dim 8 is no multiple of 16"),
        ("llama_mqa_tied", {}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("mistral_yarn", {}, "yarn"),
        ("qwen2_sliding_top", {}, "mixes full and sliding attention"),
    ],
)
def test_what_is_not_native_is_named_and_left_to_torch(
    family: str, options: dict[str, object], reason: str, tmp_path: Path
) -> None:
    model = ModelFolder(write_tiny_model(tmp_path / "model", family, torch.float32, **options), "tiny", "a test")
    assert reason in (why_not_native(model) or "")
    choice = choose_runner(model, Wishes(device="cpu"))
    assert choice.name == "torch"
    assert reason in choice.why


def test_other_gguf_types_are_left_to_torch(tmp_path: Path) -> None:
    model, _ = write_native_gguf(tmp_path / "a.gguf", "llama", "MXFP4")
    native = "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16"
    assert why_not_native(model) == f"it holds MXFP4 tensors; native are {native}"


def test_row_order_of_one_head() -> None:
    """The docstring's example, and two heads that don't mix."""
    assert pair_order(1, 4).tolist() == [0, 2, 1, 3]
    assert pair_order(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_sixteen_bit_values_are_read_exactly(tmp_path: Path) -> None:
    values = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    for dtype, kind in ((torch.bfloat16, "BF16"), (torch.float16, "F16")):
        data = np.frombuffer(values.to(dtype).view(torch.uint8).numpy().tobytes(), np.uint8)
        assert np.array_equal(to_floats(data, kind, 32), values.to(dtype).float().numpy())


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_rounding_errs_by_half_a_step_at_most(quantization: str) -> None:
    values = np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32)
    kept_as = target_format("F32", resolve_quantization(quantization, from_gguf=False), is_embedding=False)
    found = to_floats(to_blocks(values, kept_as), kept_as.name, 64)
    groups = values.reshape(-1, 32)
    step = {
        "none": np.zeros(len(groups)),
        "int8": np.abs(groups).max(axis=1) / 127,
        "int4": (groups.max(axis=1) - groups.min(axis=1)) / 15,
    }[quantization]
    error = np.abs(found.reshape(-1, 32) - groups).max(axis=1)
    assert (error <= step * 0.52 + 1e-2 * step).all()  # and the scale's own rounding to float16


def test_a_packed_model_needs_neither_torch_nor_transformers(tmp_path: Path, cache: Path) -> None:
    """A second start, from a GGUF file: resolve, choose, load, compute."""
    model, _ = write_native_gguf(tmp_path / "a.gguf", "llama", "Q8_0")
    load_native(model, cache, max_model_len=64).close()
    code = f"""
import sys
from mtplx.batching.state import Row, StepPlan
from mtplx.config import load_settings
from mtplx.server.assemble import assemble
settings = dict(model={str(tmp_path / "a.gguf")!r}, kv_cache_tokens=64, device="cpu", threads=1)
assembly = assemble(load_settings(settings))
logits = assembly.core.runner.run(StepPlan((Row(0, 0, (5, 6), (0,), num_logits=1),)))
assert assembly.core.runner.info.runner == "native" and logits.shape[0] == 1
assembly.core.runner.close()
sys.exit(",".join(name for name in ("torch", "transformers", "safetensors", "gguf") if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_mapping_of_the_source_is_let_go(llama: ModelFolder, cache: Path) -> None:
    runner = load_native(llama, cache)
    mapped = Path("/proc/self/maps")
    if not mapped.exists():
        pytest.skip("this system doesn't list mappings")
    lines = mapped.read_text()
    runner.close()
    assert str(llama.path / "model.safetensors") not in lines
    assert "weights.bin" in lines


def test_shards_are_read_by_their_index(llama: ModelFolder) -> None:
    whole = {name: tensor.floats() for name, tensor in open_safetensors(llama.path, read_shape(llama.path)).items()}
    state = load_file(llama.path / "model.safetensors")
    (llama.path / "model.safetensors").unlink()
    names = sorted(state)
    save_file({name: state[name] for name in names[:7]}, llama.path / "one.safetensors")
    save_file({name: state[name] for name in names[7:]}, llama.path / "two.safetensors")
    weight_map = {name: "one.safetensors" if name in names[:7] else "two.safetensors" for name in names}
    (llama.path / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map!s}}}'.replace("'", '"'))
    found = open_safetensors(llama.path, read_shape(llama.path))
    assert found.keys() == whole.keys()
    assert all(np.array_equal(found[name].floats(), whole[name]) for name in whole)
