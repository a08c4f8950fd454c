"""What can't be drawn at the next position: what a grammar or a list forbids, ends of runs, an end before its time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mtplx.decode.history import History
from mtplx.decode.matcher import Matcher
from mtplx.sampling_params import SamplingParams

Mask = npt.NDArray[np.bool_]


def bans(
    params: SamplingParams,
    history: History,
    stop_ids: npt.NDArray[np.int64],
    vocab_size: int,
    matcher: Matcher | None = None,
) -> Mask | None:
    """Returns is_banned_V, None where nothing is banned. `stop_ids` end the answer; `matcher` is where its grammar is.

    Runs may hold ids that this vocabulary lacks.

        run a b c: c is banned where the answer ends with a b;   run a: a is banned everywhere

    Raises:
        GenerationError: the grammar has become too complex, or leaves nothing.
    """
    may_end = history.num_emitted >= params.min_tokens
    if matcher is not None:
        is_banned_V = matcher.bans(vocab_size, stop_ids, may_end=may_end)
    elif may_end and not params.banned_runs and params.allowed_token_ids is None:
        return None
    else:
        is_banned_V = np.zeros(vocab_size, dtype=np.bool_)
        is_banned_V[stop_ids] = not may_end
    if params.allowed_token_ids is not None:
        is_banned_V |= _all_but(params.allowed_token_ids, vocab_size)
    for *before, last in params.banned_runs:
        if last < vocab_size and history.tail[len(history.tail) - len(before) :] == tuple(before):
            is_banned_V[last] = True
    return is_banned_V


def _all_but(token_ids: tuple[int, ...], vocab_size: int) -> Mask:
    is_other_V = np.ones(vocab_size, dtype=np.bool_)
    is_other_V[list(token_ids)] = False
    return is_other_V
