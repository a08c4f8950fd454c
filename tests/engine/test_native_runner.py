"""The native runner on tiny models: right logits for every family, format and file, and results that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mtplx.batching.state import Row, StepPlan
from mtplx.decode.next_token import greedy_tokens
from mtplx.errors import ConfigError
from mtplx.model.native.formats import target_format, to_blocks, to_floats
from mtplx.model.native.library import NativeCallError
from mtplx.model.native.pack import open_source
from mtplx.model.native.reference import reference_logits
from mtplx.model.native.shape import read_shape
from mtplx.model.native.slots import EMBEDDINGS, model_slots
from mtplx.model.weights import ModelFolder
from tests.native_models import (
    NATIVE_MODELS,
    all_logits,
    load_native,
    random_ids,
    relative_error,
    write_native_gguf,
    write_native_model,
)
from tests.tiny_models import VOCAB_SIZE, read_tiny_model

IDS = random_ids(60, VOCAB_SIZE)
CLOSE = 0.01  # of the logits' length; without rounding in the reference it is some 0.05


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def llama(tmp_path: Path) -> ModelFolder:
    return write_native_model(tmp_path / "llama", "llama")


def expected_logits(model: Any) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        logits: np.ndarray[Any, Any] = model.double()(torch.tensor([IDS])).logits[0].numpy()
    return logits


def kept_weights(model: ModelFolder, quantization: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The model's weights as the runner keeps them: rounded by the GGUF package's reference, then exact again."""
    shape = read_shape(model.path)
    source, weights = open_source(model, shape), {}
    for slot in model_slots(shape):
        stored = source[slot.name]
        weights[slot.name] = stored.floats()
        if slot.is_matrix:
            kept_as = target_format(stored.kind, quantization, is_embedding=slot.part in EMBEDDINGS)
            if kept_as.name != stored.kind:
                blocks = to_blocks(weights[slot.name], kept_as)
                weights[slot.name] = to_floats(blocks, kept_as.name, slot.shape[1])
    return weights


@pytest.mark.parametrize("name", NATIVE_MODELS)
def test_float32_logits_are_those_of_transformers(name: str, tmp_path: Path, cache: Path) -> None:
    """Chunks of 7 tokens: no chunk's end is a block's end."""
    model = write_native_model(tmp_path / "model", name)
    runner = load_native(model, cache, quantization="none")
    found = all_logits(runner, IDS, chunk=7)
    runner.close()
    expected = expected_logits(read_tiny_model(model.path, NATIVE_MODELS[name][0]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.abs(expected).max() > 0.3, "logits that are all small prove nothing"


@pytest.mark.parametrize("name", NATIVE_MODELS)
def test_the_reference_is_transformers_graph_too(name: str, tmp_path: Path) -> None:
    model = write_native_model(tmp_path / "model", name)
    found = reference_logits(kept_weights(model, "none"), read_shape(model.path), IDS)
    expected = expected_logits(read_tiny_model(model.path, NATIVE_MODELS[name][0]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_checkpoints_are_kept_exactly(dtype: torch.dtype, tmp_path: Path, cache: Path) -> None:
    model = write_native_model(tmp_path / "model", "llama", dtype)
    runner = load_native(model, cache, quantization="none")
    found = all_logits(runner, IDS)
    assert runner.info.quantization == {torch.float16: "f16", torch.bfloat16: "f32"}[dtype]
    runner.close()
    np.testing.assert_allclose(found, expected_logits(read_tiny_model(model.path, "llama")), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "llama tied", "qwen2", "qwen3"])
@pytest.mark.parametrize(("quantization", "formats"), [("int8", "q8_0"), ("int4", "q4_1+q8_0"), ("auto", "q8_0")])
def test_rounded_weights_are_those_of_the_reference(
    name: str, quantization: str, formats: str, tmp_path: Path, cache: Path
) -> None:
    """The reference rounds activations as the kernels do; what is left are floats on the other side of a half."""
    model = write_native_model(tmp_path / "model", name)
    runner = load_native(model, cache, quantization=quantization, kv_cache_dtype="float32")
    found = all_logits(runner, IDS, chunk=7)
    runner.close()
    weights = kept_weights(model, "int8" if quantization == "auto" else quantization)
    expected = reference_logits(weights, read_shape(model.path), IDS, rounds_activations=True)
    assert relative_error(found, expected) < CLOSE
    assert runner.info.quantization == formats


def test_the_cache_is_float16_where_weights_are_rounded(llama: ModelFolder, cache: Path) -> None:
    logits = {}
    for dtype in ("auto", "float16", "float32"):
        runner = load_native(llama, cache, kv_cache_dtype=dtype)
        logits[dtype] = all_logits(runner, IDS)
        assert runner.info.kv_cache_dtype == ("float32" if dtype == "float32" else "float16")
        runner.close()
    assert np.array_equal(logits["auto"], logits["float16"])
    assert 0 < relative_error(logits["float16"], logits["float32"]) < 0.05


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tensor_type", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q6_K"])
def test_gguf_blocks_are_used_as_they_are(architecture: str, tensor_type: str, tmp_path: Path, cache: Path) -> None:
    """Rows of q and k are put back into the model's order, in blocks too."""
    model, _ = write_native_gguf(tmp_path / "a.gguf", architecture, tensor_type)
    runner = load_native(model, cache, kv_cache_dtype="float32", max_model_len=128)
    found = all_logits(runner, IDS, chunk=7)
    runner.close()
    weights, is_float = kept_weights(model, "file"), tensor_type in ("F32", "F16")
    expected = reference_logits(weights, read_shape(model.path), IDS, rounds_activations=not is_float)
    assert relative_error(found, expected) < (1e-5 if is_float else CLOSE)
    assert runner.info.quantization == tensor_type.lower()
    assert runner.info.weights_sha256 == model.gguf_sha256
    assert not list(model.path.glob("*.safetensors")), "float32 weights were made for nothing"


@pytest.mark.parametrize(
    ("tensor_type", "is_tied", "formats"),
    [("Q4_K_M", True, "q4_k+q6_k"), ("Q4_K_M", False, "q4_k+q6_k"), ("Q5_K", False, "q5_k")],
)
def test_k_formats_and_their_mixtures(
    tensor_type: str, is_tied: bool, formats: str, tmp_path: Path, cache: Path
) -> None:
    """Matrices of one layer in several formats; embedding rows and, where it is tied, the head from K blocks."""
    model, _ = write_native_gguf(tmp_path / "a.gguf", "llama", tensor_type, tie_word_embeddings=is_tied)
    runner = load_native(model, cache, kv_cache_dtype="float32", max_model_len=128)
    found = all_logits(runner, IDS, chunk=7)
    whole = all_logits(runner, IDS)
    runner.close()
    expected = reference_logits(kept_weights(model, "file"), read_shape(model.path), IDS, rounds_activations=True)
    assert relative_error(found, expected) < CLOSE
    assert np.array_equal(found, whole)
    assert runner.info.quantization == formats


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_gguf_gives_the_logits_of_the_model_it_was_made_from(architecture: str, tmp_path: Path, cache: Path) -> None:
    """Independent of our own reading of names, shapes and row order."""
    model, original = write_native_gguf(tmp_path / "a.gguf", architecture, "F32")
    runner = load_native(model, cache, kv_cache_dtype="float32", max_model_len=128)
    np.testing.assert_allclose(all_logits(runner, IDS), expected_logits(original), rtol=0, atol=2e-4)
    runner.close()


def test_gguf_blocks_can_be_computed_in_float32(tmp_path: Path, cache: Path) -> None:
    model, _ = write_native_gguf(tmp_path / "a.gguf", "llama", "Q4_1")
    runner = load_native(model, cache, quantization="none", max_model_len=128)
    found = all_logits(runner, IDS)
    assert (runner.info.quantization, runner.info.kv_cache_dtype) == ("f32", "float32")
    runner.close()
    expected = reference_logits(kept_weights(model, "none"), read_shape(model.path), IDS)
    assert relative_error(found, expected) < 1e-5


def test_rounding_a_second_time_is_refused(tmp_path: Path, cache: Path) -> None:
    model, _ = write_native_gguf(tmp_path / "a.gguf", "llama", "Q8_0")
    with pytest.raises(ConfigError, match="int4 would round Q8_0 weights a second time"):
        load_native(model, cache, quantization="int4")


def test_results_stay_when_the_runner_goes_on(llama: ModelFolder, cache: Path) -> None:
    runner = load_native(llama, cache)
    first = runner.run(StepPlan((Row(0, 0, (5, 6, 7), (0,), num_logits=2),)))
    kept = first.copy()
    second = runner.run(StepPlan((Row(1, 0, (9,), (1,), num_logits=1), Row(0, 3, (8,), (0,), num_logits=1))))
    runner.close()
    assert np.array_equal(first, kept)
    assert (first.shape, second.shape, first.dtype) == ((2, VOCAB_SIZE), (2, VOCAB_SIZE), np.float32)
    assert not np.array_equal(second[0], second[1])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("head", ["random", "with ties", "with a NaN", "with infinities"])
def test_the_largest_logits_are_found_on_the_way(tmp_path: Path, cache: Path, head: str, threads: int) -> None:
    model = write_native_model(tmp_path / "llama", "llama")
    weights = load_file(model.path / "model.safetensors")
    output = weights["lm_head.weight"]
    if head == "with ties":
        output[:] = output[torch.arange(len(output)) % 7]
    elif head == "with a NaN":
        output[len(output) - 1, 3] = torch.nan
    elif head == "with infinities":
        output[40, 5] = torch.inf
    save_file(weights, model.path / "model.safetensors", {"format": "pt"})
    runner = load_native(model, cache, quantization="none", threads=threads)
    logits_WV, argmax_W = runner.run_with_argmax(StepPlan((Row(0, 0, IDS, tuple(range(4)), num_logits=len(IDS)),)))
    runner.close()
    assert list(argmax_W) == greedy_tokens(logits_WV)
    num_largest = (logits_WV == logits_WV.max(axis=1, keepdims=True)).sum(axis=1)
    assert (num_largest > 1).all() == (head == "with ties")
    num_refused = list(argmax_W).count(-1)
    if head == "with a NaN":
        assert num_refused == len(IDS)
    elif head == "with infinities":
        assert 0 < num_refused < len(IDS)
    else:
        assert num_refused == 0


def test_a_step_can_be_repeated_and_may_want_no_logits(llama: ModelFolder, cache: Path) -> None:
    runner = load_native(llama, cache)
    assert runner.run(StepPlan((Row(0, 0, (5, 6, 7), (0,), num_logits=0),))).shape == (0, VOCAB_SIZE)
    plan = StepPlan((Row(0, 3, (8,), (0,), num_logits=1),))
    assert np.array_equal(runner.run(plan), runner.run(plan))
    assert runner.run(StepPlan(())).shape == (0, VOCAB_SIZE)
    runner.close()


def test_a_step_that_cannot_be_computed_says_why_and_the_next_one_can(llama: ModelFolder, cache: Path) -> None:
    runner = load_native(llama, cache)
    good = StepPlan((Row(0, 0, (5, 6, 7), (0,), num_logits=1),))
    before = runner.run(good)
    with pytest.raises(NativeCallError, match="token"):
        runner.run(StepPlan((Row(0, 0, (VOCAB_SIZE,), (0,), num_logits=1),)))
    with pytest.raises(NativeCallError, match="block"):
        runner.run(StepPlan((Row(0, 16, (5,), (0,), num_logits=1),)))
    assert np.array_equal(runner.run(good), before)
    runner.close()


def test_hidden_states_lead_to_the_logits(llama: ModelFolder, cache: Path) -> None:
    """What a draft head will read: the final norm's output of every row, wanted or not."""
    runner = load_native(llama, cache, quantization="none")
    logits_WV, hidden_ND = runner.run_with_hidden(StepPlan((Row(0, 0, (5, 6, 7), (0,), num_logits=1),)))
    runner.close()
    head = kept_weights(llama, "none")["head"]
    assert hidden_ND.shape == (3, 64)
    np.testing.assert_allclose(hidden_ND[-1:] @ head.T, logits_WV, atol=1e-5)
