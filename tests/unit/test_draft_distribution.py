"""Emitted tokens have the model's distribution whatever the head guesses: chi-square over 200,000 samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.decode.drafter import DraftChooser
from mtplx.decode.sampler import Sampler
from mtplx.sampling_params import SamplingParams

VOCAB_SIZE = 6
DEPTHS = {"good": 3, "poor": 2, "adversarial": 1}
NUM_SAMPLES = {"good": 100_000, "poor": 50_000, "adversarial": 50_000}
NUM_SEQUENCES = 64  # side by side, of different seeds
LEVEL = 1e-4

MODEL = np.random.default_rng(1).normal(size=(VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32) * 1.2  # by the last token
HEADS: dict[str, npt.NDArray[np.float32]] = {
    "good": MODEL + np.random.default_rng(2).normal(size=MODEL.shape).astype(np.float32) * 0.2,
    "poor": np.random.default_rng(3).normal(size=MODEL.shape).astype(np.float32) * 3,
    "adversarial": -3 * MODEL,  # sure of what is least likely
}


@pytest.mark.parametrize("head", HEADS)
def test_the_distribution_is_the_models(head: str) -> None:
    counts, acceptance = sample(head, NUM_SAMPLES[head])
    expected = np.exp(MODEL.astype(np.float64))
    expected *= counts.sum(axis=1, keepdims=True) / expected.sum(axis=1, keepdims=True)
    assert counts.sum() >= NUM_SAMPLES[head]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert stats.chi2.sf(statistic, df=VOCAB_SIZE * (VOCAB_SIZE - 1)) > LEVEL
    low, high = {"good": (0.8, 1.0), "poor": (0.05, 0.5), "adversarial": (0.0, 0.2)}[head]
    assert low <= acceptance <= high, "the heads are what they are called"


def test_the_good_head_is_as_good_as_the_theory_says() -> None:
    """At least (1 - TV) / (1 + TV) of first drafts, by Daliri et al., with TV averaged over the contexts seen."""
    counts, acceptance = sample("good", 8000)
    model, guess = (np.exp(m.astype(np.float64)) for m in (MODEL, HEADS["good"]))
    distance = 0.5 * np.abs(model / model.sum(axis=1)[:, None] - guess / guess.sum(axis=1)[:, None]).sum(axis=1)
    bound = float(((1 - distance) / (1 + distance) * counts.sum(axis=1)).sum() / counts.sum())
    assert acceptance >= bound - 0.02


def sample(head: str, num_samples: int) -> tuple[npt.NDArray[np.float64], float]:
    """counts_VV of emitted tokens by the token before, and the share of first drafts that were accepted."""
    sampler = Sampler(VOCAB_SIZE)
    for seq_id in range(NUM_SEQUENCES):
        params = SamplingParams(temperature=1.0)
        sampler.add(seq_id, params, seed=seq_id, choice=0, prompt_ids=(0,), stop_ids=frozenset())
    depth = DEPTHS[head]
    tokens = [[0] for _ in range(NUM_SEQUENCES)]
    counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    num_drafted = num_accepted = 0
    while counts.sum() < num_samples:
        drafts = draft(sampler, tokens, HEADS[head], depth)
        rows = tuple(
            Row(seq_id, len(t) - 1, (t[-1], *d), (), num_logits=1 + depth, num_drafts=depth)
            for seq_id, (t, d) in enumerate(zip(tokens, drafts, strict=True))
        )
        logits = np.concatenate([MODEL[list(row.token_ids)] for row in rows])
        for row, result in zip(rows, sampler.decode(StepPlan(rows), logits), strict=True):
            num_drafted += 1
            num_accepted += len(result.outcome.token_ids) > 1
            for token_id in result.outcome.token_ids:
                counts[tokens[row.seq_id][-1], token_id] += 1
                tokens[row.seq_id].append(token_id)
    return counts, num_accepted / num_drafted


def draft(
    sampler: Sampler, tokens: list[list[int]], head_VV: npt.NDArray[np.float32], depth: int
) -> list[tuple[int, ...]]:
    requests = [DraftRequest(seq_id, 1, (t[-1],), (), depth) for seq_id, t in enumerate(tokens)]
    choose = DraftChooser(sampler, requests, VOCAB_SIZE)
    drafts: list[list[int]] = [[] for _ in tokens]
    for _ in range(depth):
        lines = head_VV[[(d or t)[-1] for t, d in zip(tokens, drafts, strict=True)]]
        for row, token_id in zip(drafts, choose(range(len(tokens)), lines), strict=True):
            assert token_id is not None
            row.append(token_id)
    return [tuple(row) for row in drafts]
