"""`--draft-head` from the setting to the running engine: which head, which mode, what is said and what is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtplx import Engine, SamplingParams
from mtplx.batching.state import SchedulerMode
from mtplx.config import load_settings
from mtplx.errors import ConfigError, ModelError
from mtplx.model.head_file import FILE_NAME, HeadFile
from mtplx.model.spec import HeadInfo
from mtplx.model.weights import ModelFolder
from mtplx.server.assemble import Assembly, assemble, start_up_lines
from tests.fakes import FakeDraftingRunner
from tests.live import live_server
from tests.native_heads import write_random_head, write_trunk_head
from tests.native_models import write_native_gguf

PROMPTS = [[5, 9, 14], [70, 3, 8, 8, 21] * 8, [33] * 17]
WISHES = (
    SamplingParams(temperature=0.0, max_tokens=20, seed=1),
    SamplingParams(temperature=0.9, max_tokens=20, seed=2, top_p=0.95, presence_penalty=0.5),
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFolder:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return write_native_gguf(tmp_path / "a.gguf", "llama", "Q8_0")[0]


@pytest.fixture
def head(model: ModelFolder, tmp_path: Path) -> HeadFile:
    return write_random_head(model, tmp_path / "own.safetensors", acceptance={"greedy": [0.5, 0.25]})


def given(model: ModelFolder, **settings: Any) -> dict[str, Any]:
    common = {"device": "cpu", "threads": 1, "kv_cache_tokens": 512, "prefill_chunk_tokens": 16}
    return {"model": str(model.gguf_path), **common, **settings}


def assembled(model: ModelFolder, **settings: Any) -> Assembly:
    assembly = assemble(load_settings(given(model, **settings)))
    assembly.core.runner.close()
    return assembly


def test_a_head_is_used_and_makes_mtp_batch_the_default(model: ModelFolder, head: HeadFile) -> None:
    assembly = assembled(model, draft_head=str(head.path))
    assert assembly.core.scheduler.mode is SchedulerMode.MTP_BATCH
    assert assembly.core.runner.info.head == head.info
    lines = start_up_lines(assembly)
    assert any(line.startswith("mode    mtp_batch (default for a model with a draft head)") for line in lines)
    assert any(line.startswith("drafts  own.safetensors, 1 block, guesses ") for line in lines)
    assert any(line.endswith("greedy acceptance when trained 0.50, 0.25") for line in lines)


def test_without_one_nothing_drafts(model: ModelFolder) -> None:
    assembly = assembled(model)
    assert (assembly.core.scheduler.mode, assembly.core.runner.info.head) == (SchedulerMode.AR_BATCH, None)
    assert not any(line.startswith("drafts") for line in start_up_lines(assembly))


def test_auto_finds_what_lies_beside_the_model_and_none_leaves_it(model: ModelFolder, head: HeadFile) -> None:
    head.path.rename(model.path / FILE_NAME)
    found = assembled(model).core.runner.info.head
    assert found is not None
    assert found.name == FILE_NAME
    assert assembled(model, draft_head="none").core.runner.info.head is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"scheduler_mode": "hyper"}, "needs a draft head, and there is none: name a file with --draft-head"),
        ({"scheduler_mode": "mtp_batch", "draft_head": "none"}, "make one with mtplx train-head"),
        ({"draft_depth": 2}, "there is no draft head"),
    ],
)
def test_what_needs_a_head_is_refused_before_weights_are_read(
    model: ModelFolder, settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        assembled(model, **settings)
    assert says in str(caught.value)
    assert not (tmp_path / "cache" / "native").exists(), "weights were packed for nothing"


def test_a_head_for_another_model_is_refused(model: ModelFolder, tmp_path: Path) -> None:
    other = write_random_head(model, tmp_path / "other.safetensors", tokenizer_sha256="0")
    with pytest.raises(ModelError, match="its tokenizer is another"):
        assembled(model, draft_head=str(other.path))


def test_a_head_of_other_weights_is_used_with_one_warning(
    model: ModelFolder, head: HeadFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = write_random_head(model, tmp_path / "other.safetensors", base_weights_sha256="0")
    with caplog.at_level(logging.WARNING):
        assembled(model, draft_head=str(head.path))
        assert caplog.records == []
        assert assembled(model, draft_head=str(other.path)).core.runner.info.head is not None
    assert ["trained with other weights" in record.message for record in caplog.records] == [True]


def test_the_status_names_the_head(tmp_path: Path) -> None:
    runner = FakeDraftingRunner()
    with live_server(tmp_path, runner, mode="mtp_batch", draft_depth=2) as server:
        assert server.status()["draft_head"] is None
    head = HeadInfo("own.safetensors", num_blocks=1, draft_vocab_size=100, greedy_acceptance=(0.5, 0.25))
    runner.info = replace(runner.info, head=head)
    with live_server(tmp_path, runner, mode="mtp_batch", draft_depth=2) as server:
        assert server.status()["draft_head"] == {
            "name": "own.safetensors",
            "num_blocks": 1,
            "draft_vocab_size": 100,
            "greedy_acceptance": [0.5, 0.25],
        }


@pytest.mark.parametrize("runner", ["native", "torch"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scheduler_mode": "serial", "draft_depth": 3},
        {"scheduler_mode": "hyper", "draft_depth": 2},
        {"draft_depth": 8},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_answers_are_those_of_serial_without_a_head(
    runner: str, settings: dict[str, Any], model: ModelFolder, tmp_path: Path
) -> None:
    head = write_trunk_head(model, tmp_path / "trunk.safetensors", draft_ids=range(0, 250, 2))
    with Engine(**given(model, runner=runner, draft_head="none", scheduler_mode="serial")) as oracle:
        expected = [oracle.generate(PROMPTS, wish) for wish in WISHES]
    with Engine(**given(model, runner=runner, draft_head=str(head.path), **settings)) as engine:
        found = [engine.generate(PROMPTS, wish) for wish in WISHES]
        status = engine._core.status()
    assert found == expected
    if "draft_depth" in settings:  # else costs decide, which were measured while others may have used the machine
        assert status.drafts.num_draft_tokens > 0
