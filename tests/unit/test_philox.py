"""The generator against its published answers, and the noise made of it: same bits everywhere, no visible pattern."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtplx.decode.noise import NoiseKey, gumbel, gumbel_of_bits, gumbel_of_one, uniform_bits
from mtplx.decode.philox import philox4x32, philox4x32_of_one
from tests.reference import reference_noise, reference_philox

NUM_IDS = 49_152
ALL_IDS = np.arange(NUM_IDS)
SEEDS = st.integers(-(2**63), 2**64 - 1)
WORDS = st.integers(0, 2**32 - 1)


def random_words(counter: Sequence[int], seed: int) -> list[int]:
    found = [int(word) for word in philox4x32(np.array(counter, dtype=np.uint64)[:, None], seed)[:, 0]]
    assert philox4x32_of_one(tuple(counter), seed) == tuple(found)
    return found


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_random123s_known_answers(counter: str, key: str, expected: str) -> None:
    low_key, high_key = (int(word, 16) for word in key.split())
    words = random_words([int(word, 16) for word in counter.split()], (high_key << 32) | low_key)
    assert words == [int(word, 16) for word in expected.split()]


@given(counter=st.tuples(WORDS, WORDS, WORDS, WORDS), seed=SEEDS)
def test_words_equal_the_integer_reference(counter: tuple[int, int, int, int], seed: int) -> None:
    assert random_words(counter, seed) == list(reference_philox(counter, seed % 2**64))


def test_many_counters_at_once_are_each_its_own_and_stay_unchanged() -> None:
    counters = np.random.default_rng(2).integers(0, 2**32, (4, 50), dtype=np.uint64)
    before = counters.copy()
    words = philox4x32(counters, 9)
    assert np.array_equal(counters, before)
    for counter, column in zip(counters.T.tolist(), words.T.tolist(), strict=True):
        assert column == random_words(counter, 9)


def test_a_negative_seed_counts_modulo_2_to_the_64() -> None:
    assert np.array_equal(gumbel(ALL_IDS[:9], NoiseKey(-3, 1)), gumbel(ALL_IDS[:9], NoiseKey(2**64 - 3, 1)))


@given(
    ids=st.sets(st.integers(0, NUM_IDS - 1), min_size=1, max_size=40),
    seed=SEEDS,
    position=WORDS,
    choice=st.integers(0, 127),
)
def test_the_noise_of_an_id_equals_the_reference(ids: set[int], seed: int, position: int, choice: int) -> None:
    ordered = sorted(ids)
    noise = gumbel(np.array(ordered), NoiseKey(seed, position, choice))
    assert noise.tolist() == [reference_noise(token_id, seed, position, choice) for token_id in ordered]
    one_by_one = [gumbel_of_one(token_id, NoiseKey(seed, position, choice)) for token_id in ordered]
    assert noise.tolist() == pytest.approx(one_by_one, rel=1e-12)


def test_the_noise_of_an_id_has_the_same_bits_in_every_array() -> None:
    """Every length, alignment and stride of ids, so every vector tail of log that the machine has."""
    key = NoiseKey(seed=11, position=77)
    whole = gumbel(ALL_IDS, key)
    for length in range(1, 70):
        for start in (0, 1, 2, 3, 4097, 16_371):
            ids = ALL_IDS[start : start + length]
            assert np.array_equal(gumbel(ids, key), whole[ids])
    for ids in (np.delete(ALL_IDS, [0, 7, 20_000]), ALL_IDS[1:-1], ALL_IDS[:1]):
        assert np.array_equal(gumbel(ids, key), whole[ids])
    for stride in (2, 3, 7, 64, 1001):
        ids = ALL_IDS[5::stride]
        assert np.array_equal(gumbel(ids, key), whole[ids])
    alone = [float(gumbel(np.array([token_id]), key)[0]) for token_id in range(200)]
    assert alone == whole[:200].tolist()


def test_exp_has_the_same_bits_in_every_array() -> None:
    """The filters rely on it: weights of survivors alone are those of the whole row."""
    scores = -np.random.default_rng(3).exponential(8.0, 5000)
    whole = np.exp(scores)
    for length in range(1, 70):
        for start in (0, 1, 2, 3):
            assert np.array_equal(np.exp(scores[start : start + length].copy()), whole[start : start + length])


def test_no_ids_have_no_noise() -> None:
    assert gumbel(np.empty(0, dtype=np.int64), NoiseKey(1, 2)).shape == (0,)


def test_the_rarest_uniforms_give_finite_noise() -> None:
    """k = 0 and k = 2^52 - 1, where float32 would round u to 1 and the noise to infinity."""
    low, high = gumbel_of_bits(np.array([0, 2**52 - 1], dtype=np.uint64))
    assert low == pytest.approx(-np.log(53 * np.log(2)))
    assert high == pytest.approx(53 * np.log(2))


def uniforms(seed: int, position: int, choice: int = 0) -> npt.NDArray[np.float64]:
    return (uniform_bits(ALL_IDS, NoiseKey(seed, position, choice)).astype(np.float64) + 0.5) * 2.0**-52


def test_uniforms_are_uniform() -> None:
    counts, _ = np.histogram(np.concatenate([uniforms(5, position) for position in range(8)]), bins=256, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 0.001


def test_every_bit_is_fair() -> None:
    bits = np.concatenate([uniform_bits(ALL_IDS, NoiseKey(6, position)) for position in range(4)])
    ones = np.array([int(((bits >> np.uint64(place)) & np.uint64(1)).sum()) for place in range(52)])
    deviations = (ones - len(bits) / 2) / np.sqrt(len(bits) / 4)
    assert np.abs(deviations).max() < 4.5


@pytest.mark.parametrize("lag", [1, 2, 3, 17, 2**31])
def test_neighbouring_seeds_positions_and_choices_are_uncorrelated(lag: int) -> None:
    bound = 4.5 / np.sqrt(NUM_IDS)
    base = uniforms(100, 200, 3)
    assert abs(np.corrcoef(base, uniforms(100 + lag, 200, 3))[0, 1]) < bound
    assert abs(np.corrcoef(base, uniforms(100 + (lag << 32), 200, 3))[0, 1]) < bound
    assert abs(np.corrcoef(base, uniforms(100, 200 + lag, 3))[0, 1]) < bound
    assert abs(np.corrcoef(base, uniforms(100, 200, 3 + lag))[0, 1]) < bound


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 64, 1024, 24_576])
def test_neighbouring_ids_are_uncorrelated(lag: int) -> None:
    base = uniforms(100, 200)
    assert abs(np.corrcoef(base[lag:], base[:-lag])[0, 1]) < 4.5 / np.sqrt(NUM_IDS - lag)
