"""The noise of a draw: one Gumbel number for each token id, a pure function of (seed, position, choice, id).

There is no generator object, hence nothing that a neighbour, a mode or a draft could disturb.

    counter  = (id // 2, position, choice, 0), key = seed    ->   words w0 w1 w2 w3
    even ids : k = w0 * 2^20 + (w1 >> 12)                    52 bits: all of the first word, the top 20 of the second
    odd ids  : k = w2 * 2^20 + (w3 >> 12)
    u = (k + 0.5) * 2^-52,  g = -log(-log(u))                u is exact in float64 and never 0 or 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtplx.decode.philox import Words, philox4x32, philox4x32_of_one

_HIGH_SHIFT = np.uint64(20)
_LOW_SHIFT = np.uint64(12)
_ULP = 2.0**-52
_CHUNK = 8192  # pairs at a time, so that their words stay in the processor's caches


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Which draw the noise is for. `position` is the absolute position of the token being drawn, prompt included."""

    seed: int  # any integer, taken modulo 2^64
    position: int
    choice: int = 0


def gumbel(token_ids_S: npt.NDArray[np.integer], key: NoiseKey) -> npt.NDArray[np.float64]:
    """Returns g_S for ascending ids; an id's bits are the same whatever other ids are asked for.

    argmax(l + g) is distributed as softmax(l): the Gumbel-max trick.
    """
    return gumbel_of_bits(uniform_bits(token_ids_S, key))


def gumbel_of_one(token_id: int, key: NoiseKey) -> float:
    """Returns g of one id, which `gumbel` may differ from in the last place: for guesses, not for draws."""
    words = philox4x32_of_one((token_id // 2, key.position, key.choice, 0), key.seed)
    high, low = words[token_id % 2 * 2], words[token_id % 2 * 2 + 1]
    return -math.log(-math.log(((high << 20 | low >> 12) + 0.5) * _ULP))


def gumbel_of_bits(bits_S: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Returns -log(-log(u)) of 52-bit k; finite for every k, from -3.6 to 36.7."""
    noise_S = bits_S.astype(np.float64)
    noise_S += 0.5
    noise_S *= _ULP
    for _ in range(2):
        np.log(noise_S, out=noise_S)
        np.negative(noise_S, out=noise_S)
    return noise_S


def uniform_bits(token_ids_S: npt.NDArray[np.integer], key: NoiseKey) -> npt.NDArray[np.uint64]:
    """Returns k_S, 52 random bits for each of the ascending ids."""
    if len(token_ids_S) == 0:
        return np.empty(0, dtype=np.uint64)
    first, last = int(token_ids_S[0]), int(token_ids_S[-1])
    if (last - first) // 2 >= len(token_ids_S):
        bits_2S = _bits_of_pairs((token_ids_S // 2).astype(np.uint64), key)
        found: npt.NDArray[np.uint64] = bits_2S[token_ids_S % 2, np.arange(len(token_ids_S))]
        return found
    # Dense ids: one counter serves both ids of a pair.
    bits = _bits_between(first, last, key)
    return bits if len(bits) == len(token_ids_S) else bits[token_ids_S - first]


def _bits_between(first: int, last: int, key: NoiseKey) -> npt.NDArray[np.uint64]:
    """k of every id from `first` to `last`, both included."""
    first_pair, num_pairs = first // 2, last // 2 - first // 2 + 1
    bits_P2 = np.empty((num_pairs, 2), dtype=np.uint64)
    for start in range(0, num_pairs, _CHUNK):
        chunk_C2 = bits_P2[start : start + _CHUNK]
        pairs_C = np.arange(first_pair + start, first_pair + start + len(chunk_C2), dtype=np.uint64)
        chunk_C2[:] = _bits_of_pairs(pairs_C, key).T
    return bits_P2.reshape(-1)[first % 2 : first % 2 + last - first + 1]


def _bits_of_pairs(pairs_C: Words, key: NoiseKey) -> Words:
    """k_2C: in row 0 the bits of ids 2p, in row 1 those of ids 2p + 1."""
    counter_4C = np.zeros((4, len(pairs_C)), dtype=np.uint64)
    counter_4C[0] = pairs_C
    counter_4C[1] = key.position
    counter_4C[2] = key.choice
    words_4C = philox4x32(counter_4C, key.seed)
    highs_2C, lows_2C = words_4C[0::2], words_4C[1::2]
    highs_2C <<= _HIGH_SHIFT
    lows_2C >>= _LOW_SHIFT
    highs_2C |= lows_2C
    return highs_2C
