"""top-k, top-p and min-p over one order of the tokens: score descending, id ascending on ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from mtplx.sampling_params import SamplingParams

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating]

# The largest of a long row are looked for by the maxima of so many groups, four for each that is wanted.
_NUM_GROUPS = 2048
_GROUPS_EACH = 4

# Top-p's prefix is looked for among so many largest scores; a flatter row is sorted whole.
_NUM_CANDIDATES = 512


def drop_filtered(scores_V: Floats, params: SamplingParams) -> None:
    """Sets the scores of all but the surviving ids to -inf, in place."""
    if not has_filters(params):
        return
    ids_S = surviving_ids(scores_V, params)
    scores_S = scores_V[ids_S]
    scores_V.fill(-np.inf)
    scores_V[ids_S] = scores_S


def has_filters(params: SamplingParams) -> bool:
    """Whether anything is dropped."""
    return next(_filters(params), None) is not None


def surviving_ids(scores_V: Floats, params: SamplingParams) -> Ids:
    """Returns the ids that may be drawn, ascending, at least one.

    `scores_V` is (logit - max) / temperature, so that the largest is 0 and exp(score) is a weight relative to it.
    Exactly `top_k` ids outlive top-k. Among them top-p keeps the shortest prefix of the order whose weights, added up
    one by one, reach top_p of the total, which is added up one by one in id order. min-p keeps weights >= min_p.

        scores 0.0 -0.7 -0.7 -3.0, top_p 0.6:  weights 1.00 0.50 0.50 0.05, total 2.05, target 1.23
        cumulative 1.00 1.50                   ids 0 and 1 survive; id 2 ties with 1, and comes later
    """
    ids: Ids | None = None
    for keep in _filters(params):
        ids = keep(scores_V) if ids is None else ids[keep(scores_V[ids])]
    return np.arange(len(scores_V)) if ids is None else ids


def first_in_order(values_V: Values, count: int) -> Ids:
    """Returns the first `count` indices of the order, ascending; all when there are fewer. `values_V` holds no NaN."""
    indices = _at_least_first(values_V, count)
    if count >= len(indices):
        return indices
    values_S = values_V[indices]
    rank = len(values_S) - count
    return indices[_down_to(np.partition(values_S, rank)[rank], values_S, count)]


def in_order(values_V: Values, count: int) -> Ids:
    """Returns the first `count` indices in their order: value descending, index ascending on ties."""
    indices = first_in_order(values_V, count)
    return indices[np.argsort(-values_V[indices], kind="stable")]


def _filters(params: SamplingParams) -> Iterator[Callable[[Floats], Ids]]:
    """What is asked for, in order: each returns the indices that it keeps, ascending."""
    if params.top_k > 0:
        yield partial(first_in_order, count=params.top_k)
    if params.top_p < 1.0:
        yield partial(_nucleus, top_p=params.top_p)
    if params.min_p > 0.0:
        yield lambda scores_S: np.flatnonzero(np.exp(scores_S) >= params.min_p)


def _at_least_first(values_V: Values, count: int) -> Ids:
    """The first `count` indices of the order and perhaps some of the next, ascending.

    Where `count` groups have a maximum that is no less than x, so many values are no less than x.
    """
    if count > _NUM_GROUPS // _GROUPS_EACH or len(values_V) < 2 * _NUM_GROUPS:
        return np.arange(len(values_V))
    in_groups = values_V[: len(values_V) // _NUM_GROUPS * _NUM_GROUPS].reshape(-1, _NUM_GROUPS)
    rank = _NUM_GROUPS - count
    return np.flatnonzero(values_V >= np.partition(in_groups.max(axis=0), rank)[rank])


def _down_to(lowest: np.floating, values_S: Values, count: int) -> Ids:
    """The first `count` indices of the order, ascending, where the last of them has the value `lowest`."""
    indices = np.flatnonzero(values_S >= lowest)
    ties = np.flatnonzero(values_S[indices] == lowest)
    return np.delete(indices, ties[len(ties) - (len(indices) - count) :])


def _nucleus(scores_S: Floats, top_p: float) -> Ids:
    """Indices of the order's shortest prefix that reaches `top_p` of the weight, ascending; all where none does.

    Sums run one by one (cumsum, never sum), an order of additions that any other implementation can follow to the bit.
    Ties need no order here: equal scores have equal weights.
    """
    weights_S = np.exp(scores_S)
    for count in (_NUM_CANDIDATES, len(scores_S)):
        indices = _at_least_first(scores_S, count)
        candidates = scores_S[indices]
        in_order = np.sort(candidates)
        prefix_len = _prefix_len(np.cumsum(np.exp(in_order)[::-1]), weights_S, top_p)
        if prefix_len <= len(candidates):
            return indices[_down_to(in_order[-prefix_len], candidates, prefix_len)]
    return np.arange(len(scores_S))


def _prefix_len(cumulative: Floats, weights_S: Floats, top_p: float) -> int:
    """How many of the largest weights reach `top_p` of all; more than there are where those don't.

    The total one by one is slow. A sum in any order is within len * 2^-53 of the true one, relatively, so mostly a
    quick one settles it.
    """
    quick, slack = top_p * float(weights_S.sum()), len(weights_S) * 2.0**-51
    first, last = np.searchsorted(cumulative, (quick * (1.0 - slack), quick * (1.0 + slack)), side="left")
    if first != last:
        first = np.searchsorted(cumulative, top_p * float(np.cumsum(weights_S)[-1]), side="left")
    return int(first) + 1
