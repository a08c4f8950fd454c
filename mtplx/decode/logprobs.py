"""Log-probabilities of the raw logits, as reported to clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtplx.decode.filters import in_order

# Stands for every lower value, -inf above all, which JSON has no number for; OpenAI's API reports the same one.
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token and the `k` likeliest (logit descending, id ascending), all from one float64 log_softmax.

    `rank` is the chosen one's place in that order; 1 is the likeliest.
    """

    chosen: TokenLogprob
    rank: int
    top: tuple[TokenLogprob, ...] = ()


def token_logprobs(
    logits_V: npt.NDArray[np.float32] | npt.NDArray[np.float64], chosen_id: int, num_top: int
) -> TokenLogprobs:
    """Returns log_softmax of the raw logits, each value rounded once, to float32, and never under `LOWEST_LOGPROB`.

    The largest of `logits_V` must be finite, as it is wherever the next-token function returned.
    """
    largest = float(logits_V.max())
    log_total = np.log(np.sum(np.exp(logits_V.astype(np.float64) - largest)))

    def logprob(token_id: int) -> TokenLogprob:
        value = (float(logits_V[token_id]) - largest) - log_total
        return TokenLogprob(token_id, max(float(np.float32(value)), LOWEST_LOGPROB))

    top = tuple(logprob(token_id) for token_id in in_order(logits_V, num_top).tolist()) if num_top > 0 else ()
    return TokenLogprobs(logprob(chosen_id), _rank(logits_V, chosen_id), top)


def _rank(logits_V: npt.NDArray[np.float32] | npt.NDArray[np.float64], token_id: int) -> int:
    logit = logits_V[token_id]
    return 1 + int(np.count_nonzero(logits_V > logit)) + int(np.count_nonzero(logits_V[:token_id] == logit))
