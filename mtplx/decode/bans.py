"""What the lists of a request keep from being drawn next: ends of runs that must not come, all that isn't allowed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mtplx.decode.history import History
from mtplx.sampling_params import SamplingParams


def listed_bans(params: SamplingParams, history: History, vocab_size: int) -> npt.NDArray[np.int64]:
    """Token ids, perhaps some of them twice; runs may hold ids that this vocabulary lacks.

    run a b c: c is banned where the answer ends with a b;   run a: a is banned everywhere
    """
    is_banned_V = np.zeros(vocab_size, dtype=np.bool_)
    if params.allowed_token_ids is not None:
        is_banned_V[:] = True
        is_banned_V[list(params.allowed_token_ids)] = False
    for *before, last in params.banned_runs:
        if last < vocab_size and history.tail[len(history.tail) - len(before) :] == tuple(before):
            is_banned_V[last] = True
    return np.flatnonzero(is_banned_V)
