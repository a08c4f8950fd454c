"""The next-token function once more, from the design's text alone: plain Python, full sorts, one number at a time.

Shares no code with `mtplx.decode`. Only exp and log come from numpy: their last bit is a library's matter, not the
design's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from mtplx.sampling_params import SamplingParams

NO_TOKEN = "no token"


def reference_next_token(
    logits: Sequence[float],
    params: SamplingParams,
    *,
    seed: int,
    choice: int,
    prompt_ids: Sequence[int],
    emitted_ids: Sequence[int],
    stop_ids: Collection[int] = (),
) -> int | str:
    """Returns the token after `prompt_ids` and `emitted_ids`, or `NO_TOKEN` where the row is an error."""
    if any(math.isnan(logit) or logit == math.inf for logit in logits):
        return NO_TOKEN
    adjusted = adjusted_logits(logits, params, prompt_ids, emitted_ids, stop_ids)
    largest = max(adjusted)
    if math.isinf(largest):
        return NO_TOKEN
    if params.temperature == 0.0:
        return adjusted.index(largest)
    scores = [(logit - largest) / params.temperature for logit in adjusted]
    position = len(prompt_ids) + len(emitted_ids)
    best_id, best_value = -1, -math.inf
    for token_id in survivors(scores, params):
        value = scores[token_id] + reference_noise(token_id, seed, position, choice)
        if value > best_value:
            best_id, best_value = token_id, value
    return best_id


def adjusted_logits(
    logits: Sequence[float],
    params: SamplingParams,
    prompt_ids: Sequence[int],
    emitted_ids: Sequence[int],
    stop_ids: Collection[int],
) -> list[float]:
    """Penalties, then logit_bias, then bans."""
    adjusted = []
    for token_id, logit in enumerate(logits):
        if token_id in prompt_ids or token_id in emitted_ids:
            penalty = params.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        count = list(emitted_ids).count(token_id)
        if count > 0:
            logit = logit - params.presence_penalty - params.frequency_penalty * count
        if token_id in params.logit_bias:
            logit = logit + params.logit_bias[token_id]
        if len(emitted_ids) < params.min_tokens and token_id in stop_ids:
            logit = -math.inf
        adjusted.append(logit)
    return adjusted


def survivors(scores: Sequence[float], params: SamplingParams) -> list[int]:
    """The ids that outlive top-k, top-p and min-p, ascending."""
    order = sorted(range(len(scores)), key=lambda token_id: (-scores[token_id], token_id))
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1.0:
        total = 0.0
        for token_id in sorted(order):
            total += exp(scores[token_id])
        cumulative, prefix = 0.0, []
        for token_id in order:
            prefix.append(token_id)
            cumulative += exp(scores[token_id])
            if cumulative >= params.top_p * total:
                break
        order = prefix
    if params.min_p > 0.0:
        order = [token_id for token_id in order if exp(scores[token_id]) >= params.min_p]
    return sorted(order)


def reference_noise(token_id: int, seed: int, position: int, choice: int) -> float:
    """g = -log(-log u), u = (k + 0.5) * 2^-52."""
    words = reference_philox((token_id // 2, position, choice, 0), seed % 2**64)
    high, low = words[2 * (token_id % 2)], words[2 * (token_id % 2) + 1]
    bits = (high * 2**32 + low) // 2**12
    return -log(-log((bits + 0.5) / 2**52))


def reference_philox(counter: tuple[int, int, int, int], key: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 in Python's integers."""
    a, b, c, d = counter
    low_key, high_key = key % 2**32, key // 2**32
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = right // 2**32 ^ b ^ low_key, right % 2**32, left // 2**32 ^ d ^ high_key, left % 2**32
        low_key, high_key = (low_key + 0x9E3779B9) % 2**32, (high_key + 0xBB67AE85) % 2**32
    return a, b, c, d


def reference_logprob(logits: Sequence[float], token_id: int) -> float:
    """log_softmax of the raw logits, summed without error."""
    largest = max(logits)
    return (logits[token_id] - largest) - math.log(math.fsum(math.exp(logit - largest) for logit in logits))


def exp(value: float) -> float:
    return float(np.exp(np.array([value]))[0])


def log(value: float) -> float:
    return float(np.log(np.array([value]))[0])
