"""The native runner's promise: the same bits whatever shares the step, however it is cut, wherever its blocks lie."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx.batching.state import Row, StepPlan
from mtplx.model.native.runner import NativeRunner
from tests.engine.plan_driver import generate_together
from tests.native_models import all_logits, load_native, random_ids, write_native_gguf, write_native_model
from tests.tiny_models import VOCAB_SIZE

PROMPTS = [random_ids(length, VOCAB_SIZE, seed=length) for length in (1, 5, 16, 37, 70)]
NUM_NEW = 24


MODELS = [*product(("llama", "mistral sliding"), ("none", "int8", "int4")), ("Q4_K_M", "auto")]


@pytest.fixture(scope="module", params=MODELS, ids=" ".join)
def runners(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, NativeRunner]:
    """The same model on one thread and on two."""
    root = tmp_path_factory.mktemp("native")
    name, quantization = request.param
    if name == "Q4_K_M":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MTPLX_CACHE_DIR", str(root))
            model, _ = write_native_gguf(root / "model.gguf", "llama", name)
    else:
        model = write_native_model(root / "model", name)
    return {threads: load_native(model, root, quantization=quantization, threads=threads) for threads in (1, 2)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chunk", [3, 16, 10_000])
def test_neighbours_chunks_and_blocks_change_no_bit(runners: dict[int, NativeRunner], threads: int, chunk: int) -> None:
    """Five prompts together, in random order and blocks, against each of them alone, whole, on one thread."""
    alone = [generate_together(runners[1], [prompt], NUM_NEW)[0] for prompt in PROMPTS]
    together = generate_together(runners[threads], PROMPTS, NUM_NEW, chunk=chunk, seed=chunk)
    assert together == alone
    assert len({one.token_ids for one in alone}) == len(PROMPTS)


@given(
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    neighbours=st.lists(st.integers(1, 20), max_size=5),
    threads=st.sampled_from([1, 2]),
)
def test_any_cut_beside_any_neighbours(
    runners: dict[int, NativeRunner], cuts: list[int], neighbours: list[int], threads: int
) -> None:
    """The logits of 40 tokens, computed in pieces of any length among rows of other sequences."""
    runner, tokens = runners[threads], random_ids(40, VOCAB_SIZE)
    strangers = tuple(
        Row(1 + i, 0, tuple(random_ids(length, VOCAB_SIZE, seed=i)), (8 + 2 * i, 9 + 2 * i), num_logits=i % 2)
        for i, length in enumerate(neighbours)
    )
    found, start = [], 0
    for cut in [*cuts, 40]:
        piece = tuple(tokens[start : start + cut])
        if not piece:
            break
        rows = (*strangers[:2], Row(0, start, piece, (6, 2, 4), num_logits=len(piece)), *strangers[2:])
        first = sum(row.num_logits for row in strangers[:2])
        found.append(runner.run(StepPlan(rows))[first : first + len(piece)])
        start += len(piece)
    assert np.concatenate(found).tobytes() == all_logits(runners[1], tokens, first_block=30).tobytes()


def test_draft_rows_have_the_bits_of_single_steps(runners: dict[int, NativeRunner]) -> None:
    """A verify block of five tokens, three of them wrong guesses that are then overwritten."""
    runner, tokens = runners[2], random_ids(40, VOCAB_SIZE)
    whole = all_logits(runner, tokens)
    runner.run(StepPlan((Row(0, 0, tuple(tokens[:20]), (0, 1, 2), num_logits=0),)))
    guesses = (tokens[20], tokens[21], 3, 4, 5)
    verified = runner.run(StepPlan((Row(0, 20, guesses, (0, 1, 2), num_logits=5, num_drafts=4),)))
    assert verified[:2].tobytes() == whole[20:22].tobytes()
    after = runner.run(StepPlan((Row(0, 22, (tokens[22],), (0, 1, 2), num_logits=1),)))
    assert after.tobytes() == whole[22:23].tobytes()
