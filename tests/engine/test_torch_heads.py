"""Multi-token-prediction layers of checkpoints, beside transformers' own `generate(use_mtp=True)` on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

from mtplx.model.families import FAMILIES
from mtplx.model.torch.runner import TorchRunner
from tests.engine.draft_driver import draft_together
from tests.tiny_heads import (
    MTP_FAMILIES,
    load_tiny_runner,
    read_mtp_model,
    reference_guesses,
    swap_halves,
    swap_norms,
    write_tiny_mtp_model,
)
from tests.tiny_models import TINY_FAMILIES, VOCAB_SIZE

NUM_NEW = 24
LENGTHS = (1, 3, 40)  # below and over a block, a tile, and the sliding window
PROMPTS = tuple(tuple((7 * k + 5 * i * i) % VOCAB_SIZE for i in range(length)) for k, length in enumerate(LENGTHS))
HEADS = (("deepseek_v3", 1), ("deepseek_v3", 2), ("glm4_moe", 1), ("glm4_moe", 3), ("mellum", 1))
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Oracle:
    """Transformers' answer to one prompt, and its candidates by the number of tokens known."""

    token_ids: tuple[int, ...]
    candidates: dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Head:
    """A tiny checkpoint with its modules."""

    name: str
    num_modules: int
    folder: Path
    runner: TorchRunner

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """Transformers needs at least as many tokens as modules."""
        return tuple(prompt for prompt in PROMPTS if len(prompt) >= self.num_modules)


@pytest.fixture(scope="module", params=HEADS, ids=lambda head: f"{head[0]}-{head[1]}")
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Head:
    name, num_modules = request.param
    folder = write_tiny_mtp_model(tmp_path_factory.mktemp(name), name, num_modules)
    return Head(name, num_modules, folder, load_tiny_runner(folder))


@pytest.fixture(scope="module")
def oracles(head: Head) -> list[Oracle]:
    return [oracle(read_mtp_model(head.folder, head.name), prompt) for prompt in head.prompts]


def oracle(model: Any, prompt: tuple[int, ...]) -> Oracle:
    """Generates with and without drafts, and writes down every candidate on the way."""
    candidates: dict[int, tuple[int, ...]] = {}
    get_candidates = MTPCandidateGenerator.get_candidates

    def recorded(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = get_candidates(self, input_ids, *args, **kwargs)
        num_known = input_ids.shape[1]
        candidates[num_known] = tuple(found[0][0, num_known:].tolist())
        return found

    ids = torch.tensor([prompt])
    wishes = {"do_sample": False, "min_new_tokens": NUM_NEW, "max_new_tokens": NUM_NEW, "eos_token_id": None}
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), **wishes)[0, len(prompt) :].tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MTPCandidateGenerator, "get_candidates", recorded)
        drafted = model.generate(ids, attention_mask=torch.ones_like(ids), use_mtp=True, **wishes)[0, len(prompt) :]
    assert drafted.tolist() == plain
    return Oracle(tuple(plain), {num_known: found for num_known, found in candidates.items() if found})


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_ids_and_drafts_are_transformers_own(head: Head, oracles: list[Oracle], chunk: int) -> None:
    """As many drafts as modules: at the same places, the same tokens, whatever the chunks of the prompt (B20)."""
    depths = [head.num_modules] * len(head.prompts)
    found = draft_together(head.runner, head.prompts, NUM_NEW, depths, chunk=chunk, seed=chunk)
    for prompt, drafting, expected in zip(head.prompts, found, oracles, strict=True):
        assert drafting.token_ids == expected.token_ids
        end = len(prompt) + NUM_NEW - head.num_modules  # from there on transformers guesses beyond the answer
        drafts = {num_known: guesses for num_known, guesses in drafting.drafts if num_known < end}
        assert drafts == {num_known: found for num_known, found in expected.candidates.items() if num_known < end}
        assert len(drafts) >= 6
        assert drafting.num_accepted > 0, "what is never right tests no partial accept"


def test_beyond_its_modules_the_last_goes_on_from_its_own_output(head: Head) -> None:
    """Depth 8, beside transformers' layers computed afresh over all slots, without any cache."""
    model = read_mtp_model(head.folder, head.name)
    mtp_model = MtpModel.from_pretrained(model, device_map={"": "cpu"})
    found = draft_together(head.runner, PROMPTS, NUM_NEW, [MAX_DEPTH] * len(PROMPTS), chunk=5)
    for prompt, drafting in zip(PROMPTS, found, strict=True):
        known = [*prompt, *drafting.token_ids]
        for num_known, guesses in drafting.drafts[:4]:
            assert guesses == reference_guesses(model, mtp_model, known[:num_known], len(guesses))
    assert max(len(guesses) for drafting in found for _, guesses in drafting.drafts) == MAX_DEPTH


def test_rows_of_different_depths_guess_as_alone(head: Head) -> None:
    prompts, depths = (PROMPTS[2], *PROMPTS), (0, 3, 1, MAX_DEPTH)
    together = draft_together(head.runner, prompts, 16, depths, chunk=9, seed=3)
    for prompt, depth, drafting in zip(prompts, depths, together, strict=True):
        assert draft_together(head.runner, [prompt], 16, [depth]) == [drafting]


@pytest.mark.parametrize("name", MTP_FAMILIES)
def test_acceptance_falls_when_norms_or_halves_are_swapped(name: str, tmp_path: Path) -> None:
    """A wrong order is silent: the answers stay what they are."""
    found = {}
    for what, change in (("right", dict), ("norms", swap_norms), ("halves", swap_halves)):
        folder = write_tiny_mtp_model(tmp_path / what, name, 1, change=change)
        (found[what],) = draft_together(load_tiny_runner(folder), PROMPTS[2:], 60, [1])
    assert found["norms"].token_ids == found["halves"].token_ids == found["right"].token_ids
    assert found["right"].acceptance > 0.3
    assert found["norms"].acceptance < 0.5 * found["right"].acceptance
    assert found["halves"].acceptance < 0.5 * found["right"].acceptance


def test_every_family_with_modules_is_tested_here() -> None:
    with_modules = {name for name, family in FAMILIES.items() if family.mtp_prefix is not None}
    tested = {TINY_FAMILIES[name].model_class.__name__ for name, _ in HEADS}  # type: ignore[attr-defined]
    assert tested == with_modules
