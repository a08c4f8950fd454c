"""Everything that changes logits before the draw, in its fixed order: penalties, logit_bias, bans."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mtplx.decode.history import History, uses_penalties
from mtplx.sampling_params import SamplingParams


def adjust_logits(
    logits_V: npt.NDArray[np.float64],
    params: SamplingParams,
    history: History,
    is_banned_V: npt.NDArray[np.bool_] | None,
) -> None:
    """Changes `logits_V` in place; `history` is that of the very position being drawn. -inf stays -inf."""
    if uses_penalties(params):
        _penalise_repetition(logits_V, params.repetition_penalty, history)
        _penalise_counts(logits_V, params.presence_penalty, params.frequency_penalty, history)
    if params.logit_bias:
        ids = np.fromiter(params.logit_bias.keys(), dtype=np.int64, count=len(params.logit_bias))
        logits_V[ids] += np.fromiter(params.logit_bias.values(), dtype=np.float64, count=len(params.logit_bias))
    if is_banned_V is not None:
        np.putmask(logits_V, is_banned_V, -np.inf)


def _penalise_repetition(logits_V: npt.NDArray[np.float64], penalty: float, history: History) -> None:
    """Divides positive and multiplies other logits of every id in the prompt or the answer so far.

    Source: Keskar et al., "CTRL", arXiv 1909.05858, section 4.1, with the usual product for negative logits.
    """
    ids = np.flatnonzero(history.is_seen)
    logits = logits_V[ids]
    logits_V[ids] = np.where(logits > 0.0, logits / penalty, logits * penalty)


def _penalise_counts(logits_V: npt.NDArray[np.float64], presence: float, frequency: float, history: History) -> None:
    """Subtracts `presence` once and then `frequency` times the count, for ids of the answer so far only."""
    ids = np.flatnonzero(history.emitted_counts)
    logits_V[ids] -= presence
    logits_V[ids] -= frequency * history.emitted_counts[ids]
