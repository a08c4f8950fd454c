"""The one function that says which token comes next; it knows one row of logits and nothing of batches or drafts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mtplx.decode.filters import drop_filtered
from mtplx.decode.history import History, uses_penalties
from mtplx.decode.noise import NoiseKey
from mtplx.decode.noisy_argmax import NoisyArgmax, plain_noisy_argmax
from mtplx.decode.penalties import adjust_logits
from mtplx.errors import GenerationError, NoTokenLeftError
from mtplx.sampling_params import SamplingParams

Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def next_token(
    logits_V: Logits,
    params: SamplingParams,
    history: History,
    noise_key: NoiseKey,
    is_banned_V: npt.NDArray[np.bool_] | None,
    noisy_argmax: NoisyArgmax = plain_noisy_argmax,
    ids_V: npt.NDArray[np.integer] | None = None,
) -> int:
    """Returns the token at `noise_key.position`, whatever mode, batch or draft asks for it; changes nothing.

    In float64: penalties, logit_bias, bans; (l - max) / T; top-k, top-p, min-p; argmax of l + Gumbel noise over what
    is left, the lowest id on ties. At temperature 0 it is the argmax after the bans. `history` ends just before the
    position; what `is_banned_V` marks can't be drawn, whatever its logit. Every `noisy_argmax` gives the same token.
    With `ids_V`, ascending, the logits are those of some ids and all others can't be drawn; only from `plain_from` on.

    Raises:
        GenerationError: a NaN or +inf among the logits.
        NoTokenLeftError: what the params ask for left no token with a finite one.
    """
    if params.temperature > 0.0 and is_banned_V is None and history.num_emitted >= plain_from(params):
        found = noisy_argmax.of_logits(logits_V, params, noise_key, ids_V)
        if found is not None:
            return id_at(found, ids_V)
    if not is_sound(logits_V):
        raise GenerationError("the model returned logits without a finite largest value")
    scores_V = logits_V.astype(np.float64)
    with np.errstate(over="ignore"):  # a huge penalty or a tiny temperature may reach infinity; judged below
        adjust_logits(scores_V, params, history, is_banned_V)
        largest = float(scores_V.max())
        if not np.isfinite(largest):
            raise NoTokenLeftError(f"{' and '.join(_choosers(params))} left no token that could come next")
        if params.temperature == 0.0:
            return id_at(int(np.argmax(scores_V)), ids_V)
        scores_V -= largest
        scores_V /= params.temperature
    drop_filtered(scores_V, params)
    return id_at(noisy_argmax(scores_V, noise_key, ids_V), ids_V)


def id_at(place: int, ids_V: npt.NDArray[np.integer] | None) -> int:
    """The token id whose logit is at a place of a row; None means that the row is the vocabulary."""
    return place if ids_V is None else ids_V.item(place)


def plain_from(params: SamplingParams) -> float:
    """After how many emitted tokens `next_token` asks for no id by its name any more; infinite if it always does.

    At temperature 0 it is the argmax of the raw logits from there on.
    """
    asks_for_ids = (
        uses_penalties(params)
        or params.logit_bias
        or params.grammar is not None
        or params.banned_runs
        or params.allowed_token_ids is not None
    )
    return math.inf if asks_for_ids else params.min_tokens


def greedy_tokens(logits_NV: Logits) -> list[int]:
    """Returns the argmax of each row, lowest id on ties; -1 where `next_token` would refuse the row."""
    token_ids_N = np.argmax(logits_NV, axis=1)  # NaN counts as the largest
    largest_N = logits_NV[np.arange(len(logits_NV)), token_ids_N]
    found: list[int] = np.where(np.isfinite(largest_N), token_ids_N, -1).tolist()
    return found


def greedy_tokens_of(lines: Sequence[int], logits_NV: Logits, argmax_N: Sequence[int] | None = None) -> Sequence[int]:
    """The `greedy_tokens` of some lines, at least one; `argmax_N` are those of all if they are known."""
    if argmax_N is not None:
        return [argmax_N[line] for line in lines]
    return greedy_tokens(logits_NV if len(lines) == len(logits_NV) else logits_NV[list(lines)])  # all: no copy


def is_sound(logits: Logits) -> bool:
    """Whether there is no NaN or +inf among the logits of one row or of several, and each row has a finite one."""
    return bool(np.isfinite(logits.max(axis=-1)).all())  # a maximum passes NaN on


def _choosers(params: SamplingParams) -> list[str]:
    """The fields that say which tokens may come, as far as the request has them."""
    fields = (
        ("allowed_token_ids", params.allowed_token_ids is not None),
        ("bad_words", bool(params.banned_runs)),
        ("logit_bias", bool(params.logit_bias)),
        ("min_tokens", params.min_tokens > 0),
        ("penalties", uses_penalties(params)),
    )
    return [*([params.grammar.param] if params.grammar else []), *(name for name, is_set in fields if is_set)]
