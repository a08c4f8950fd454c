"""top-k, top-p and min-p over one order of the tokens: score descending, id ascending on ties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mtplx.sampling_params import SamplingParams

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Top-p's prefix is looked for among so many largest scores; a flatter row is sorted whole.
_NUM_CANDIDATES = 512


def surviving_ids(scores_V: Floats, params: SamplingParams) -> Ids:
    """Returns the ids that may be drawn, ascending, at least one.

    `scores_V` is (logit - max) / temperature, so that the largest is 0 and exp(score) is a weight relative to it.
    Exactly `top_k` ids outlive top-k. Among them top-p keeps the shortest prefix of the order whose weights, added up
    one by one, reach top_p of the total, which is added up one by one in id order. min-p keeps weights >= min_p.

        scores 0.0 -0.7 -0.7 -3.0, top_p 0.6:  weights 1.00 0.50 0.50 0.05, total 2.05, target 1.23
        cumulative 1.00 1.50                   ids 0 and 1 survive; id 2 ties with 1, and comes later
    """
    ids = np.arange(len(scores_V))
    if 0 < params.top_k < len(ids):
        ids = first_in_order(scores_V, params.top_k)
    if params.top_p < 1.0:
        scores_S = scores_V[ids]
        ids = ids[first_in_order(scores_S, _nucleus_size(scores_S, params.top_p))]
    if params.min_p > 0.0:
        ids = ids[np.exp(scores_V[ids]) >= params.min_p]
    return ids


def first_in_order(values_V: npt.NDArray[np.floating], count: int) -> Ids:
    """Returns the first `count` indices of the order, ascending; all when there are fewer. `values_V` holds no NaN."""
    if count >= len(values_V):
        return np.arange(len(values_V))
    rank = len(values_V) - count
    threshold = np.partition(values_V, rank)[rank]
    is_first = values_V > threshold
    ties = np.flatnonzero(values_V == threshold)
    is_first[ties[: count - np.count_nonzero(is_first)]] = True
    return np.flatnonzero(is_first)


def in_order(values_V: npt.NDArray[np.floating], count: int) -> Ids:
    """Returns the first `count` indices in their order: value descending, index ascending on ties."""
    indices = first_in_order(values_V, count)
    return indices[np.argsort(-values_V[indices], kind="stable")]


def _nucleus_size(scores_S: Floats, top_p: float) -> int:
    """Length of the order's shortest prefix that reaches `top_p` of the weight; all where rounding lets none reach it.

    Sums run one by one (cumsum, never sum), an order of additions that any other implementation can follow to the bit.
    Ties need no order here: equal scores have equal weights.
    """
    target = top_p * float(np.cumsum(np.exp(scores_S))[-1])
    size = len(scores_S)
    for num_candidates in (min(_NUM_CANDIDATES, size), size):
        largest = np.sort(np.partition(scores_S, size - num_candidates)[size - num_candidates :])
        weights_in_order = np.exp(largest)[::-1]
        prefix_len = int(np.searchsorted(np.cumsum(weights_in_order), target, side="left")) + 1
        if prefix_len <= num_candidates:
            return prefix_len
    return size
