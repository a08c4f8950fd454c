"""Philox4x32-10: 128 bits of counter under a 64-bit key become 128 random bits, with no state to keep.

Integer arithmetic only, so every machine and every array length gives the same words.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the constants and the
known answers that the tests check are those of its library, Random123.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # 32-bit values held in 64 bits, so that a product keeps its high half

NUM_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_WORD_BITS = np.uint64(32)


def philox4x32_of_one(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]:
    """The words of one counter, the same as `philox4x32` returns; for a handful quicker than arrays."""
    a, b, c, d = counter
    key, other_key = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(NUM_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> 32) ^ b ^ key, second & _MASK, (first >> 32) ^ d ^ other_key, first & _MASK
        key, other_key = (key + _KEY_STEPS[0]) & _MASK, (other_key + _KEY_STEPS[1]) & _MASK
    return a, b, c, d


def philox4x32(counter_4N: Words, seed: int) -> Words:
    """Returns words_4N of N counters; `seed` is taken modulo 2^64, its low word is the first key word.

    One round, from words a b c d and key words k l:
        high(c * m1) ^ b ^ k    low(c * m1)    high(a * m0) ^ d ^ l    low(a * m0)
    """
    words_4N = counter_4N.copy()
    evens_2N, odds_2N = words_4N[0::2], words_4N[1::2]
    products_2N = np.empty(evens_2N.shape, dtype=np.uint64)
    crossed_2N = products_2N[::-1]
    multipliers = np.array(_MULTIPLIERS, dtype=np.uint64)[:, None]
    keys = (seed & _MASK, (seed >> 32) & _MASK)
    # In place: where the allocator gives memory back at once, a fresh array for every step is a page fault every 4 KiB.
    for _ in range(NUM_ROUNDS):
        np.multiply(evens_2N, multipliers, out=products_2N)
        np.right_shift(crossed_2N, _WORD_BITS, out=evens_2N)
        evens_2N ^= odds_2N
        evens_2N ^= np.array(keys, dtype=np.uint64)[:, None]
        np.bitwise_and(crossed_2N, np.uint64(_MASK), out=odds_2N)
        keys = ((keys[0] + _KEY_STEPS[0]) & _MASK, (keys[1] + _KEY_STEPS[1]) & _MASK)
    return words_4N
