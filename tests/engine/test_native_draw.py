"""The library's draw is numpy's, token for token, in every build that runs on this machine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtplx.decode import noisy_argmax
from mtplx.decode.filters import drop_filtered, surviving_ids
from mtplx.decode.noise import NoiseKey, gumbel, uniform_bits
from mtplx.decode.noisy_argmax import NativeNoisyArgmax, fastest_noisy_argmax, plain_noisy_argmax
from mtplx.model.native.binding import NativeLibrary, NativeUnavailableError
from mtplx.model.native.builds import find_compiler
from mtplx.sampling_params import SamplingParams
from tests.engine.native_kernels import libraries_here

needs_kernels = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler, so no kernels")

Scores = npt.NDArray[np.float64]

keys = st.builds(
    NoiseKey,
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    choice=st.integers(0, 2**32 - 1),
)


@pytest.fixture(params=list(libraries_here()), ids=lambda library: library.build, scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    found: NativeLibrary = request.param
    return found


@st.composite
def score_rows(draw: st.DrawFn) -> Scores:
    """Rows of any length, spread and temperature, in rising, falling and random order, with ties and holes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits_V = rng.normal(0.0, draw(st.sampled_from([0.0, 0.3, 3.0, 12.0])), draw(st.integers(1, 700)))
    if draw(st.booleans()):
        logits_V = np.round(logits_V, 1)
    order = draw(st.sampled_from(["as drawn", "rising", "falling"]))
    if order != "as drawn":
        logits_V = np.sort(logits_V)[:: 1 if order == "rising" else -1]
    logits_V[rng.random(len(logits_V)) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = -math.inf
    if not np.isfinite(logits_V.max()):
        logits_V[rng.integers(len(logits_V))] = 0.0
    with np.errstate(over="ignore"):
        scores_V: Scores = np.ascontiguousarray(
            (logits_V - logits_V.max()) / draw(st.sampled_from([1.0, 0.7, 5.0, 1e-3, 1e-300, 1e300]))
        )
    return scores_V


@needs_kernels
@settings(max_examples=300, deadline=None)
@given(scores_V=score_rows(), noise_key=keys)
def test_the_librarys_token_is_the_definitions(library: NativeLibrary, scores_V: Scores, noise_key: NoiseKey) -> None:
    before = scores_V.copy()
    assert NativeNoisyArgmax(library)(scores_V, noise_key) == plain_noisy_argmax(scores_V, noise_key)
    assert np.array_equal(scores_V, before)


@needs_kernels
@settings(max_examples=300, deadline=None)
@given(
    scores_V=score_rows(),
    noise_key=keys,
    temperature=st.sampled_from([1e-3, 0.3, 1.0, 1.7, 2.0]),
    bad=st.sampled_from([None, None, None, math.nan, math.inf]),
    some=st.booleans(),
)
def test_logits_draw_as_their_scores(
    library: NativeLibrary, scores_V: Scores, noise_key: NoiseKey, temperature: float, bad: float | None, some: bool
) -> None:
    logits_V = np.clip(scores_V, -1e30, 0.0).astype(np.float32) + np.float32(3.7)
    logits_V[scores_V == -math.inf] = -math.inf
    if bad is not None:
        logits_V[len(logits_V) // 2] = bad
    ids_V = np.arange(len(logits_V)) * 3 + 1 if some else None
    found = NativeNoisyArgmax(library).of_logits(logits_V, SamplingParams(temperature=temperature), noise_key, ids_V)
    if bad is not None:
        assert found is None, "next_token says what is wrong"
    else:
        exact_V = logits_V.astype(np.float64)
        exact_V -= exact_V.max()
        exact_V /= temperature
        assert found == plain_noisy_argmax(exact_V, noise_key, ids_V)
        assert found == NativeNoisyArgmax(library)(exact_V, noise_key, ids_V)


filtered = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-3, 0.3, 1.0, 1.7, 2.0]),
    top_k=st.sampled_from([0, 0, 0, 40]),
    top_p=st.sampled_from([1.0, 0.5, 0.9, 0.9999]),
    min_p=st.sampled_from([0.0, 0.01, 0.1]),
)


@needs_kernels
@settings(max_examples=1000, deadline=None)
@given(scores_V=score_rows(), noise_key=keys, params=filtered, some=st.booleans())
def test_what_outlives_the_filters_draws_as_their_scores(
    library: NativeLibrary, scores_V: Scores, noise_key: NoiseKey, params: SamplingParams, some: bool
) -> None:
    logits_V = np.clip(scores_V, -1e30, 0.0).astype(np.float32) + np.float32(3.7)
    logits_V[scores_V == -math.inf] = -math.inf
    ids_V = np.arange(len(logits_V)) * 3 + 1 if some else None
    exact_V = logits_V.astype(np.float64)
    exact_V -= exact_V.max()
    exact_V /= params.temperature
    drop_filtered(exact_V, params)
    found = NativeNoisyArgmax(library).of_logits(logits_V, params, noise_key, ids_V)
    assert found in (None, plain_noisy_argmax(exact_V, noise_key, ids_V))


@needs_kernels
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 70), params=filtered)
def test_the_library_knows_who_outlives_the_filters_but_for_close_calls(
    library: NativeLibrary, seed: int, length: int, params: SamplingParams
) -> None:
    logits_V = np.random.default_rng(seed).normal(0.0, 2.0 * params.temperature, length).astype(np.float32)

    def survivors(top_p: float, min_p: float) -> set[int]:
        scores_V = (logits_V - logits_V.max()).astype(np.float64) / params.temperature
        changed = replace(params, top_k=0, top_p=top_p, min_p=min_p)
        return set(surviving_ids(scores_V, changed).tolist())

    def is_told(place: int) -> bool:
        row = (logits_V.ctypes.data, length, params.temperature)
        return bool(library.functions.mtplx_survives(*row, place, params.top_p, params.min_p))

    told = {place for place in range(length) if is_told(place)}
    assert told <= survivors(params.top_p, params.min_p)
    clear = survivors(params.top_p * 0.995 if params.top_p < 1.0 else 1.0, min(1.0, params.min_p * 1.005))
    assert told >= clear - _with_a_near_neighbour(logits_V / params.temperature)


def _with_a_near_neighbour(scores_V: npt.NDArray[np.float32]) -> set[int]:
    """Places whose order is for others to tell."""
    order_V = np.argsort(scores_V)
    gaps = np.diff(scores_V[order_V], prepend=-math.inf, append=math.inf)
    return set(order_V[(gaps[:-1] < 1e-3) | (gaps[1:] < 1e-3)].tolist())


@needs_kernels
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.0, top_p=0.95, min_p=0.001),
        SamplingParams(temperature=0.7, min_p=0.01),
    ],
    ids=["top-p", "both", "min-p"],
)
def test_most_draws_with_filters_are_quick(library: NativeLibrary, params: SamplingParams) -> None:
    """What the speed rests on: as many as these filters leave of the probability, but for close calls."""
    logits_V = np.random.default_rng(3).normal(0.0, 3.0, 49_152).astype(np.float32)
    scores_V = (logits_V - logits_V.max()).astype(np.float64) / params.temperature
    kept = np.exp(scores_V[surviving_ids(scores_V, params)]).sum() / np.exp(scores_V).sum()
    native = NativeNoisyArgmax(library)
    found = [native.of_logits(logits_V, params, NoiseKey(9, position)) for position in range(400)]
    num_quick = sum(place is not None for place in found)
    assert abs(num_quick / 400 - kept) < 0.08


@needs_kernels
def test_what_the_library_does_not_take_is_left_to_others(library: NativeLibrary) -> None:
    native, key = NativeNoisyArgmax(library), NoiseKey(1, 2)
    logits_V = np.zeros(40, dtype=np.float32)
    params = SamplingParams(temperature=1.0)
    assert native.of_logits(logits_V, params, key) is not None
    assert native.of_logits(logits_V, SamplingParams(temperature=1e-300), key) is None
    assert native.of_logits(logits_V, SamplingParams(temperature=1.0, top_k=2), key) is None
    assert native.of_logits(logits_V.astype(np.float64), params, key) is None
    assert native.of_logits(logits_V[::2], params, key) is None
    assert plain_noisy_argmax.of_logits(logits_V, params, key) is None


@needs_kernels
@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0, 30.0])
@pytest.mark.parametrize("vocab_size", [49_152, 151_937])
def test_long_rows_too(library: NativeLibrary, spread: float, vocab_size: int) -> None:
    logits_V = np.random.default_rng(1).normal(0.0, spread, vocab_size).astype(np.float32).astype(np.float64)
    scores_V = logits_V - logits_V.max()
    for position in range(8):
        noise_key = NoiseKey(7, position, 1)
        assert NativeNoisyArgmax(library)(scores_V, noise_key) == plain_noisy_argmax(scores_V, noise_key)


@needs_kernels
@settings(max_examples=50, deadline=None)
@given(noise_key=keys, vocab_size=st.integers(1, 300))
@example(noise_key=NoiseKey(-1, 2**32 - 1, 2**32 - 1), vocab_size=64)
def test_candidates_carry_the_noise_of_their_ids(library: NativeLibrary, noise_key: NoiseKey, vocab_size: int) -> None:
    """Among equal scores the largest noise wins, and the first id is a candidate as nobody was before it."""
    scores_V = np.zeros(vocab_size)
    ids, bits = NativeNoisyArgmax(library).candidates(scores_V, noise_key)
    assert ids[0] == 0
    assert int(np.argmax(gumbel(np.arange(vocab_size), noise_key))) in ids
    assert bits.tolist() == uniform_bits(ids.astype(np.int64), noise_key).tolist()


@needs_kernels
def test_the_rarest_noise_is_not_cut_off(library: NativeLibrary) -> None:
    """Each id in turn so far ahead, or behind, that it must win, or can't: on vector lanes and in the tail alike."""
    for vocab_size in (1, 16, 17, 131):
        for token_id in range(vocab_size):
            scores_V = np.full(vocab_size, -41.0)
            scores_V[token_id] = 0.0
            assert NativeNoisyArgmax(library)(scores_V, NoiseKey(token_id, 3)) == token_id


@needs_kernels
def test_only_a_handful_is_left_for_logarithms(library: NativeLibrary) -> None:
    """What the speed rests on."""
    logits_V = np.random.default_rng(2).normal(0.0, 3.0, 49_152)
    counts = [
        len(NativeNoisyArgmax(library).candidates(row, NoiseKey(5, position))[0])
        for position in range(20)
        for row in (np.zeros(49_152), logits_V - logits_V.max())
    ]
    assert max(counts) < 50


def test_without_a_library_numpy_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NativeLibrary:
        raise NativeUnavailableError("none here")

    monkeypatch.setattr(noisy_argmax, "load_library", refuse)
    assert fastest_noisy_argmax() is plain_noisy_argmax
