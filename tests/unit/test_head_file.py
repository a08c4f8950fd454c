"""The head file: what is written is read, what isn't a head for this model is refused, and where one is looked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mtplx.errors import ModelError
from mtplx.model import head_file
from mtplx.model.catalog import CATALOG, WheelSource
from mtplx.model.head_file import (
    FILE_NAME,
    METADATA_KEY,
    HeadMetadata,
    check_head,
    find_head,
    load_head,
    open_head,
    tokenizer_sha256,
    warn_of_other_weights,
    write_head,
)
from mtplx.model.head_shapes import required_shapes
from mtplx.model.spec import ModelSpec
from mtplx.model.weights import ModelFolder

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=20,
    max_position=64,
    eos_ids=frozenset({2}),
)
METADATA = HeadMetadata(
    hidden_size=8,
    vocab_size=20,
    base_model="tiny",
    base_weights_sha256="ab",
    tokenizer_sha256="cd",
    training={"command": "mtplx train-head tiny", "seed": 1},
    acceptance={"greedy": [0.5, 0.25, 1]},
    created=date(2026, 11, 29),
)
Tensors = dict[str, np.ndarray[Any, Any]]


def tensors(num_blocks: int = 1) -> Tensors:
    rng = np.random.default_rng(0)
    shapes = required_shapes(SPEC, num_blocks, intermediate=12)
    return {name: rng.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}


def without(name: str) -> Tensors:
    return {key: value for key, value in tensors().items() if key != name}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ids = np.array([1, 3, 19], dtype=np.int32)
    head = write_head(tmp_path / "h.safetensors", {**tensors(), "draft_vocab": ids}, METADATA)
    assert [path.name for path in tmp_path.iterdir()] == ["h.safetensors"]
    assert head.metadata == METADATA
    assert head.draft_vocab is not None
    assert head.draft_vocab.tolist() == [1, 3, 19]
    assert (head.intermediate_size, head.max_depth, head.greedy_acceptance) == (12, 8, (0.5, 0.25, 1.0))
    assert (head.info.name, head.info.num_blocks, head.info.draft_vocab_size) == ("h.safetensors", 1, 3)
    floats = head.floats("eh_proj.weight")
    assert floats.dtype == np.float32
    assert np.array_equal(floats, tensors()["eh_proj.weight"].astype(np.float32))
    check_head(head, SPEC, "cd")


def test_without_a_draft_vocabulary_all_ids_can_be_guessed(tmp_path: Path) -> None:
    head = write_head(tmp_path / "h.safetensors", tensors(2), METADATA.model_copy(update={"num_blocks": 2}))
    assert (head.draft_vocab, head.info.draft_vocab_size, head.info.num_blocks) == (None, 20, 2)
    check_head(head, SPEC, "cd")


def test_layers_may_have_biases_and_head_norms(tmp_path: Path) -> None:
    more = {
        "blocks.0.self_attn.q_norm.weight": np.ones(4, dtype=np.float32),
        "blocks.0.self_attn.k_proj.bias": np.ones(4, dtype=np.float32),
    }
    check_head(write_head(tmp_path / "h.safetensors", {**tensors(), **more}, METADATA), SPEC, "cd")


@pytest.mark.parametrize(
    ("given", "spec", "says"),
    [
        (tensors(), replace(SPEC, hidden_size=16), "its hidden size is 8, the model's 16"),
        (tensors(), replace(SPEC, vocab_size=21), "its vocabulary is 20, the model's 21"),
        (tensors(), replace(SPEC, num_kv_heads=2), "k_proj.weight has shape [4, 8] instead of [8, 8]"),
        (without("enorm.weight"), SPEC, "it lacks enorm.weight"),
        (without("blocks.0.mlp.gate_proj.weight"), SPEC, "it lacks blocks.0.mlp.gate_proj.weight"),
        ({**tensors(2)}, SPEC, "there is no place for blocks.1."),
        ({**tensors(), "lm_head.weight": np.ones((20, 8), np.float32)}, SPEC, "there is no place for lm_head.weight"),
        ({**tensors(), "draft_vocab": np.array([3, 1], np.int32)}, SPEC, "other than ascending ids"),
        ({**tensors(), "draft_vocab": np.array([3, 3], np.int32)}, SPEC, "other than ascending ids"),
        ({**tensors(), "draft_vocab": np.array([3, 20], np.int32)}, SPEC, "other than ascending ids"),
        ({**tensors(), "draft_vocab": np.array([], np.int32)}, SPEC, "other than ascending ids"),
        ({**tensors(), "draft_vocab": np.array([[1], [2]], np.int32)}, SPEC, "instead of one dimension"),
    ],
)
def test_a_head_for_another_model_is_refused(given: Tensors, spec: ModelSpec, says: str, tmp_path: Path) -> None:
    head = write_head(tmp_path / "h.safetensors", given, METADATA)
    with pytest.raises(ModelError) as caught:
        check_head(head, spec, "cd")
    assert says in str(caught.value)
    assert "--draft-head none" in str(caught.value)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    head = write_head(tmp_path / "h.safetensors", tensors(), METADATA)
    with pytest.raises(ModelError, match="its tokenizer is another"):
        check_head(head, SPEC, "ef")


def changed(**fields: Any) -> dict[str, str]:
    return {METADATA_KEY: json.dumps({**json.loads(METADATA.model_dump_json()), **fields})}


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, "no draft head: its metadata has no mtplx_head"),
        ({METADATA_KEY: "{"}, "another kind"),
        (changed(format_version=2), "another kind: format_version"),
        (changed(layout="eagle3"), "another kind: layout"),
        (changed(colour="red"), "another kind: colour"),
        (changed(hidden_layers=[3, -1]), "only [-1] is supported"),
        (changed(num_blocks=0), "0 blocks"),
    ],
)
def test_another_format_is_refused(metadata: dict[str, str], says: str, tmp_path: Path) -> None:
    path = tmp_path / "h.safetensors"
    save_file(tensors(), path, metadata=metadata)
    with pytest.raises(ModelError) as caught:
        open_head(path)
    assert says in str(caught.value)


def test_another_number_format_is_refused(tmp_path: Path) -> None:
    wide = {**tensors(), "norm.weight": np.ones(8, dtype=np.float64)}
    with pytest.raises(ModelError, match=r"has norm\.weight in F64"):
        write_head(tmp_path / "h.safetensors", wide, METADATA)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 100])
def test_a_damaged_file_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "h.safetensors"
    write_head(path, tensors(), METADATA)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match="is damaged"):
        open_head(path)


def test_other_weights_are_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = write_head(tmp_path / "h.safetensors", tensors(), METADATA)
    with caplog.at_level(logging.WARNING):
        warn_of_other_weights(head, "ab")
        assert caplog.records == []
        warn_of_other_weights(head, "ef")
    assert ["other weights of tiny" in record.message for record in caplog.records] == [True]


class TestTokenizerDigest:
    """Equal where every id stands for the same text."""

    @staticmethod
    def digest(folder: Path, **data: Any) -> str:
        (folder / "tokenizer.json").write_text(json.dumps(data))
        return tokenizer_sha256(folder)

    def test_it_depends_on_ids_and_texts_only(self, tmp_path: Path) -> None:
        first = self.digest(tmp_path, model={"vocab": {"a": 0, "b": 1}}, added_tokens=[{"id": 2, "content": "<e>"}])
        same = self.digest(tmp_path, model={"vocab": {"b": 1, "<e>": 2, "a": 0}, "merges": []}, version="2")
        other = self.digest(tmp_path, model={"vocab": {"a": 1, "b": 0, "<e>": 2}})
        unigram = self.digest(tmp_path, model={"vocab": [["a", -1.0], ["b", -2.0], ["<e>", 0]]})
        assert first == same == unigram != other

    @pytest.mark.parametrize("text", ["{", "[]", '{"model": {}}', '{"model": {"vocab": 3}}'])
    def test_what_is_no_tokenizer_is_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ModelError, match="can't be read as a tokenizer"):
            tokenizer_sha256(tmp_path)


class TestFinding:
    @pytest.fixture
    def model(self, tmp_path: Path) -> ModelFolder:
        (tmp_path / "model").mkdir()
        return ModelFolder(tmp_path / "model", "tiny", "made in a test")

    @pytest.fixture
    def shipped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A head that comes with the package, for the first model of the catalog."""
        monkeypatch.setattr(head_file, "SHIPPED", tmp_path / "heads")
        (tmp_path / "heads").mkdir()
        path = tmp_path / "heads" / f"{CATALOG[0].name}.safetensors"
        path.write_bytes(b"head")
        return path

    def test_auto_takes_the_file_beside_the_model(self, model: ModelFolder, shipped: Path) -> None:
        assert find_head("auto", model) is None
        (model.path / FILE_NAME).write_bytes(b"head")
        assert find_head("auto", model) == model.path / FILE_NAME
        assert find_head("none", model) is None

    def test_auto_takes_the_shipped_file_for_a_model_of_the_catalog(self, model: ModelFolder, shipped: Path) -> None:
        by_name = [replace(model, source=str(source)) for source in CATALOG[0].sources]
        wheel = next(source for source in CATALOG[0].sources if isinstance(source, WheelSource))
        by_file = replace(model, source="GGUF file a.gguf", gguf_sha256=wheel.sha256)
        assert [find_head("auto", found) for found in (*by_name, by_file)] == [shipped] * 3
        assert find_head("auto", replace(model, name=CATALOG[0].name)) is None, (
            "a folder of that name may hold anything"
        )
        assert find_head("none", by_file) is None

    def test_a_named_file_must_be_there(self, model: ModelFolder, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="there is no draft head"):
            find_head(str(tmp_path / "gone"), model)
        (tmp_path / "own").write_bytes(b"head")
        assert find_head(str(tmp_path / "own"), model) == tmp_path / "own"

    def test_what_is_found_is_checked(self, model: ModelFolder) -> None:
        (model.path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
        assert load_head("auto", model, SPEC) is None
        fitting = METADATA.model_copy(update={"tokenizer_sha256": tokenizer_sha256(model.path)})
        write_head(model.path / FILE_NAME, tensors(), fitting)
        found = load_head("auto", model, SPEC)
        assert found is not None
        assert found.path == model.path / FILE_NAME
        with pytest.raises(ModelError, match="not for this model"):
            load_head("auto", model, replace(SPEC, vocab_size=21))
