"""Drawn tokens follow softmax(logits / T) after the filters: chi-square, on fixed seeds so that chance fails nobody."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mtplx.decode.filters import surviving_ids
from mtplx.decode.history import History
from mtplx.decode.next_token import next_token
from mtplx.decode.noise import NoiseKey
from mtplx.decode.philox import philox4x32
from mtplx.sampling_params import SamplingParams

TINY_LOGITS = np.array([2.0, 1.0, 1.0, 0.0, -0.5, -2.0, -4.0, -1.0])
NUM_DRAWS = 200_000
FIRST_POSITION = 10


def draw(logits_V: npt.NDArray[np.float64], params: SamplingParams, seed: int, position: int) -> int:
    history = History.of_prompt(range(position), params, len(logits_V))
    return next_token(logits_V, params, history, NoiseKey(seed, position), None)


def scores_of(logits_V: npt.NDArray[np.float64], params: SamplingParams) -> npt.NDArray[np.float64]:
    """(logit - max) / T, -inf where a filter drops the token."""
    scores_V = (logits_V - logits_V.max()) / params.temperature
    filtered_V = np.full(len(scores_V), -np.inf)
    kept = surviving_ids(scores_V, params)
    filtered_V[kept] = scores_V[kept]
    return filtered_V


def draw_many(logits_V: npt.NDArray[np.float64], params: SamplingParams, seed: int) -> npt.NDArray[np.intp]:
    """What `draw` returns at NUM_DRAWS positions in turn, with the noise of all positions in one call.

    Two hundred thousand calls of the function itself would take a minute; the caller compares the first few hundred.
    """
    num_pairs = len(logits_V) // 2
    counters = np.zeros((4, NUM_DRAWS, num_pairs), dtype=np.uint64)
    counters[0] = np.arange(num_pairs)
    counters[1] = np.arange(FIRST_POSITION, FIRST_POSITION + NUM_DRAWS)[:, None]
    words = philox4x32(counters.reshape(4, -1), seed)
    bits = (words[0::2] << np.uint64(20)) | (words[1::2] >> np.uint64(12))
    uniforms = (bits.T.reshape(NUM_DRAWS, -1).astype(np.float64) + 0.5) * 2.0**-52
    values: npt.NDArray[np.float64] = scores_of(logits_V, params) - np.log(-np.log(uniforms))
    return np.asarray(values.argmax(axis=1))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=2.0),
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.9),
        SamplingParams(min_p=0.1),
    ],
    ids=["plain", "T 0.7", "T 2", "top_k", "top_p", "min_p"],
)
def test_a_tiny_vocabulary_is_drawn_by_its_probabilities(params: SamplingParams) -> None:
    tokens = draw_many(TINY_LOGITS, params, seed=2024)
    assert tokens[:300].tolist() == [draw(TINY_LOGITS, params, 2024, FIRST_POSITION + index) for index in range(300)]
    weights_V = np.exp(scores_of(TINY_LOGITS, params))
    counts = np.bincount(tokens, minlength=len(TINY_LOGITS))
    possible = weights_V > 0
    assert counts[~possible].sum() == 0
    expected = weights_V[possible] / weights_V.sum() * NUM_DRAWS
    assert stats.chisquare(counts[possible], expected).pvalue > 0.001


def test_seeds_draw_as_well_as_positions_do() -> None:
    """The first token of many requests, each with its own seed."""
    num_draws = 10_000
    tokens = [draw(TINY_LOGITS, SamplingParams(), seed, FIRST_POSITION) for seed in range(num_draws)]
    weights_V = np.exp(TINY_LOGITS)
    counts = np.bincount(tokens, minlength=len(TINY_LOGITS))
    assert stats.chisquare(counts, weights_V / weights_V.sum() * num_draws).pvalue > 0.001


def test_a_row_of_49152_tokens_is_drawn_by_its_probabilities() -> None:
    """In 24 bins of about equal mass, the first of a few likely tokens, the last of thousands of rare ones."""
    num_draws, num_bins, vocab_size = 1_200, 24, 49_152
    logits_V = np.random.default_rng(8).normal(0.0, 1.5, vocab_size)
    order = np.argsort(-logits_V)
    probabilities = np.exp(logits_V[order]) / np.exp(logits_V).sum()
    bins_in_order = np.minimum((np.cumsum(probabilities) * num_bins).astype(np.int64), num_bins - 1)
    bin_of_V = np.empty(vocab_size, dtype=np.int64)
    bin_of_V[order] = bins_in_order
    tokens = [draw(logits_V, SamplingParams(), 99, position) for position in range(num_draws)]
    counts = np.bincount(bin_of_V[tokens], minlength=num_bins)
    expected = np.bincount(bins_in_order, weights=probabilities, minlength=num_bins) * num_draws
    assert stats.chisquare(counts, expected).pvalue > 0.001
    expected_by_parity = np.bincount(order % 2, weights=probabilities) * num_draws
    assert stats.chisquare(np.bincount(np.array(tokens) % 2, minlength=2), expected_by_parity).pvalue > 0.001
