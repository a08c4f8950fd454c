"""Log-probabilities of the raw logits, as reported to clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token and the `k` likeliest (logit descending, id ascending), all from one float64 log_softmax."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()
