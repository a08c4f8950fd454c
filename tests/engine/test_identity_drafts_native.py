"""On the native runner, with a real head: the same ids and logprobs at every mode, depth, concurrency and join.

On a small model the whole matrix of benchmarks/identity.py, on the real one a covering subset of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.engines import AUTO, WrappedRunner, open_model, submit_of
from benchmarks.identity import (
    AR_BATCH,
    COHORT,
    COOPERATIVE,
    HYPER,
    MTP_BATCH,
    SERIAL,
    TOP_LOGPROBS,
    WISHES,
    Cell,
    cells,
    run_cell,
    submits,
)
from mtplx.batching.state import StepPlan
from mtplx.model.folder import read_spec
from mtplx.model.head_file import HeadFile, HeadMetadata, find_head, tokenizer_sha256, write_head
from mtplx.model.native.pack import open_source
from mtplx.model.native.runner import NativeRunner
from mtplx.model.native.shape import read_shape
from mtplx.model.runner import Logits
from mtplx.model.weights import ModelFolder, resolve_model
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Submit
from tests.fakes import flat_costs
from tests.native_models import load_native
from tests.tiny_heads import write_whispering_model
from tests.tiny_models import VOCAB_SIZE

CHUNK = 16
SMALL_VOCABULARY = np.arange(0, VOCAB_SIZE, 2, dtype=np.int32)
BLOCK_NAMES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{part: f"self_attn.{part}_proj" for part in "qkvo"},
    **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
# Every mode and depth, each concurrency with several of them.
REAL_CELLS = (
    Cell(SERIAL, 3, 1, 64),
    Cell(HYPER, AUTO, 1, 16),
    Cell(COOPERATIVE, AUTO, 8, 64),
    Cell(AR_BATCH, 0, 16, 16),
    Cell(MTP_BATCH, 1, 2, 64),
    Cell(MTP_BATCH, 2, 16, 64),
    Cell(MTP_BATCH, 4, 8, 16),
    Cell(MTP_BATCH, 8, 2, 512),
    Cell(MTP_BATCH, AUTO, 16, 64),
    Cell(COHORT, 4, 8, 16),
    Cell(COHORT, AUTO, 16, 64),
)


def write_trunk_head(
    path: Path,
    model: ModelFolder,
    *,
    echo: float,
    draft_vocab: np.ndarray[Any, Any] | None = None,
    tokenizer: str = "none",
) -> HeadFile:
    """A head without training: the trunk's last layer over the embedding and `echo` of the hidden state."""
    shape, spec = read_shape(model.path), read_spec(model.path)
    source = open_source(model, shape)
    ones, square = np.ones(spec.hidden_size, np.float32), np.eye(spec.hidden_size, dtype=np.float32)
    tensors = {
        "enorm.weight": ones,
        "hnorm.weight": ones,
        "eh_proj.weight": np.concatenate(((1 - echo) * square, echo * square), axis=1),
        "norm.weight": source["final_norm"].floats(),
    }
    for part, name in BLOCK_NAMES.items():
        tensors[f"blocks.0.{name}.weight"] = source[f"{spec.num_layers - 1}.{part}"].floats()
    if draft_vocab is not None:
        tensors["draft_vocab"] = draft_vocab
    metadata = HeadMetadata(
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        base_model=model.name,
        base_weights_sha256="not trained",
        tokenizer_sha256=tokenizer,
        created=date(2026, 11, 29),
    )
    return write_head(path, tensors, metadata)


@pytest.fixture(scope="module", params=[None, SMALL_VOCABULARY], ids=["all ids", "half of the ids"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeRunner]:
    """A model that mostly follows from its last token, so that a head which echoes it is often right."""
    folder = tmp_path_factory.mktemp("small")
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    write_whispering_model(folder / "model", "llama", dtype=torch.float32, **sizes)
    model = ModelFolder(folder / "model", "whispering", "made in a test")
    head = write_trunk_head(folder / "head.safetensors", model, echo=0.3, draft_vocab=request.param)
    runner = load_native(model, folder, kv_cache_tokens=2048, head=head)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def todo() -> list[Submit]:
    """Prompts of 2 to 69 tokens under every wish; no two answers need be of the same length."""
    rng = np.random.default_rng(5)
    return [
        submit_of(
            tuple(rng.integers(3, VOCAB_SIZE, length).tolist()),
            SamplingParams(logprobs=TOP_LOGPROBS, **wish),
            max_tokens=6 + length % 9,
            seed=length,
            eos_ids=frozenset({2}),
        )
        for wish in WISHES
        for length in (2, 5, 16, 17, 33, 40, 69)
    ]


def test_the_whole_matrix_on_a_small_model(small: NativeRunner, todo: list[Submit]) -> None:
    report: dict[str, Any] = {}
    for cell in cells([CHUNK], has_head=True):
        found = run_cell(small, todo, report, cell, flat_costs() if cell.depth is AUTO else None)
        assert found["identical"], (str(cell), found)
        num_drafts = found["accepted_drafts"] + found["refused_drafts"]  # type: ignore[operator]
        assert (num_drafts > 0) == (cell.depth != 0), str(cell)
        if cell.depth:  # where it is auto, the clock decides when to stop
            assert 0 < found["accepted_drafts"] < num_drafts, (str(cell), found)  # type: ignore[operator]
    assert len({(answer["ids"], answer["logprobs_sha256"]) for answer in report["oracle"]}) > len(todo) // 2


class TiltedRunner(WrappedRunner):
    """A runner whose logits depend a little on how many rows are in the step: what must not be."""

    def run(self, plan: StepPlan) -> Logits:
        logits_WV = self.inner.run(plan)
        logits_WV[:, 7] += 1e-4 * (plan.num_tokens - 1)
        return logits_WV


def test_a_runner_that_depends_on_its_batch_is_found_out(small: NativeRunner, todo: list[Submit]) -> None:
    report: dict[str, Any] = {}
    runner = TiltedRunner(small)
    assert run_cell(runner, todo, report, Cell(SERIAL, 0, 1, CHUNK))["identical"]
    found = run_cell(runner, todo, report, Cell(MTP_BATCH, 4, 8, CHUNK))
    assert not found["identical"]
    assert found["differing_answers"] > len(todo) // 2  # type: ignore[operator]


@pytest.mark.real_model
@pytest.mark.usefixtures("default_model_folder")
def test_a_covering_subset_on_the_real_model(tmp_path: Path) -> None:
    """With the head that comes with it, or else one that was never trained."""
    model = resolve_model("smollm2-135m-instruct")
    head = find_head("auto", model)
    if head is None:
        digest = tokenizer_sha256(model.path)
        head = write_trunk_head(tmp_path / "head.safetensors", model, echo=0.5, tokenizer=digest).path
    assembly = open_model(model.name, str(head), width=16, max_tokens=8, runner="native")
    runner, report = assembly.core.runner, dict[str, Any]()
    some = submits(assembly, num_prompts=3, max_tokens=6)
    for cell in (Cell(SERIAL, 0, 1, 512), *REAL_CELLS):
        found = run_cell(runner, some, report, cell, flat_costs() if cell.depth is AUTO else None)
        assert found["identical"], (str(cell), found)
        if cell.depth is not AUTO:  # there the clock decides
            assert (found["refused_drafts"] > 0) == (cell.depth != 0), str(cell)  # type: ignore[operator]
    runner.close()
