"""Head files beside dense models in the torch runner: any family's own layer, any vocabulary, several blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtplx.batching.state import SchedulerMode
from mtplx.errors import ModelError
from mtplx.model.head_file import HeadFile
from mtplx.server.modes import make_speculator
from tests.drivers import run_closed_loop
from tests.engine.draft_driver import draft_together
from tests.engine.test_identity import submits
from tests.tiny_heads import (
    Tensors,
    head_as_mtp_model,
    load_tiny_runner,
    reference_guesses,
    swap_halves,
    swap_norms,
    write_tiny_head,
    write_whispering_model,
)
from tests.tiny_models import VOCAB_SIZE, read_tiny_model

PROMPTS = tuple(tuple((7 * k + 5 * i * i) % VOCAB_SIZE for i in range(length)) for k, length in enumerate((1, 17, 40)))
FAMILIES = ("llama", "qwen2_sliding_top", "qwen3", "mistral_sliding", "gemma3")
EVEN_IDS = range(0, VOCAB_SIZE, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_whispering_model(tmp_path / "model", "llama")


@pytest.mark.parametrize("name", FAMILIES)
def test_guesses_are_those_of_transformers_layers(name: str, tmp_path: Path) -> None:
    """Sliding windows, head norms, biases, norms by 1 + weight and scaled embeddings are the model's own."""
    folder = write_whispering_model(tmp_path / "model", name)
    head = write_tiny_head(tmp_path / "head.safetensors", folder, name)
    model = read_tiny_model(folder, name)
    mtp_model = head_as_mtp_model(model, head)
    for prompt, one in zip(
        PROMPTS, draft_together(load_tiny_runner(folder, head=head), PROMPTS, 24, [4] * 3, chunk=7), strict=True
    ):
        known = [*prompt, *one.token_ids]
        assert one.num_accepted >= 5, "what is never right tests no partial accept"
        for num_known, guesses in one.drafts[:4]:
            assert guesses == reference_guesses(model, mtp_model, known[:num_known], len(guesses))


def test_a_part_of_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    head = write_tiny_head(tmp_path / "head.safetensors", folder, "llama", draft_vocab=EVEN_IDS)
    runner = load_tiny_runner(folder, head=head)
    model = read_tiny_model(folder, "llama")
    mtp_model = head_as_mtp_model(model, head)
    (found,) = draft_together(runner, PROMPTS[1:2], 24, [3])
    known = [*PROMPTS[1], *found.token_ids]
    assert {token_id % 2 for _, guesses in found.drafts for token_id in guesses} == {0}
    for num_known, guesses in found.drafts:
        assert guesses == reference_guesses(model, mtp_model, known[:num_known], len(guesses), EVEN_IDS)
    assert runner.info.head is not None
    assert runner.info.head.draft_vocab_size == len(EVEN_IDS)


def test_blocks_are_stacked_and_as_wide_as_the_file_says(folder: Path, tmp_path: Path) -> None:
    """A second block that adds nothing changes nothing; one that turns everything round spoils it."""

    def shouting(tensors: Tensors) -> Tensors:
        return {**tensors, "blocks.1.mlp.down_proj.weight": torch.ones_like(tensors["blocks.1.mlp.down_proj.weight"])}

    found = []
    for num_blocks, change in ((1, dict), (2, dict), (2, shouting)):
        path = tmp_path / f"head{len(found)}.safetensors"
        head = write_tiny_head(path, folder, "llama", num_blocks=num_blocks, intermediate_size=20, change=change)
        found.append(draft_together(load_tiny_runner(folder, head=head), PROMPTS, 24, [3] * 3))
    single, silent, loud = found
    assert silent == single
    assert [one.token_ids for one in loud] == [one.token_ids for one in single]
    assert max(one.acceptance for one in loud) < min(one.acceptance for one in single)


def test_acceptance_falls_when_norms_or_halves_are_swapped(folder: Path, tmp_path: Path) -> None:
    acceptance = {}
    for what, change in (("right", dict), ("norms", swap_norms), ("halves", swap_halves)):
        head = write_tiny_head(tmp_path / f"{what}.safetensors", folder, "llama", change=change)
        found = draft_together(load_tiny_runner(folder, head=head), PROMPTS[1:], 32, [1, 1])
        acceptance[what] = [one.acceptance for one in found]
    assert max(*acceptance["norms"], *acceptance["halves"]) < 0.5 * min(acceptance["right"])


@pytest.mark.parametrize(
    ("mode", "depth", "concurrency", "chunk"),
    [
        (SchedulerMode.SERIAL, 3, 1, 16),
        (SchedulerMode.HYPER, 8, 1, 512),
        (SchedulerMode.COOPERATIVE, 2, 4, 7),
        (SchedulerMode.MTP_BATCH, 4, 5, 64),
    ],
)
def test_answers_are_those_without_a_head(
    folder: Path, tmp_path: Path, mode: SchedulerMode, depth: int, concurrency: int, chunk: int
) -> None:
    """In float32 and exact mode, with a head that knows half of the vocabulary."""
    head = write_tiny_head(tmp_path / "head.safetensors", folder, "llama", draft_vocab=EVEN_IDS)
    todo = submits([[(7 * k + 5 * i * i) % VOCAB_SIZE for i in range(1 + 11 * k)] for k in range(4)], max_tokens=12)
    plain, drafting = (load_tiny_runner(folder, dtype="float32", head=found) for found in (None, head))
    assert drafting.info.exact, drafting.info.exact_note
    speculator = make_speculator(depth, None, prefill_chunk_tokens=chunk)
    answers = run_closed_loop(drafting, todo, mode=mode, concurrency=concurrency, chunk=chunk, speculator=speculator)
    assert answers == run_closed_loop(plain, todo, mode=SchedulerMode.SERIAL, concurrency=1, chunk=512)


def refusal(folder: Path, head: HeadFile) -> str:
    with pytest.raises(ModelError) as caught:
        load_tiny_runner(folder, head=head)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_head_of_other_layers_is_refused(tmp_path: Path) -> None:
    """Right in every size, but without the head norms that this family's attention has."""
    folder = write_whispering_model(tmp_path / "model", "qwen3")

    def without_norms(tensors: Tensors) -> Tensors:
        return {key: tensor for key, tensor in tensors.items() if "q_norm" not in key}

    head = write_tiny_head(tmp_path / "head.safetensors", folder, "qwen3", change=without_norms)
    assert "blocks.0.self_attn.q_norm.weight doesn't fit" in refusal(folder, head)


def test_a_head_file_is_for_dense_models(folder: Path, tmp_path: Path) -> None:
    head = write_tiny_head(tmp_path / "head.safetensors", folder, "llama")
    mixture = write_whispering_model(tmp_path / "mixture", "glm4_moe")
    assert "for dense models, Glm4MoeForCausalLM has experts" in refusal(mixture, head)
