"""The next-token function equals the plain reference, row by row, and its edges are where the design puts them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.decode.bans import bans
from mtplx.decode.filters import in_order, surviving_ids
from mtplx.decode.history import History
from mtplx.decode.next_token import Logits, greedy_tokens, next_token, plain_from
from mtplx.decode.noise import NoiseKey
from mtplx.decode.penalties import adjust_logits
from mtplx.errors import GenerationError
from mtplx.sampling_params import SamplingParams
from tests.reference import NO_TOKEN, adjusted_logits, reference_next_token, survivors

GREEDY = SamplingParams(temperature=0.0)


def draw(
    logits: Logits,
    params: SamplingParams,
    *,
    seed: int = 0,
    choice: int = 0,
    prompt_ids: Sequence[int] = (0,),
    emitted_ids: Sequence[int] = (),
    stop_ids: Sequence[int] = (),
) -> int | str:
    """What the function returns, asked the way the reference is asked."""
    history = History.of_prompt(prompt_ids, params, len(logits))
    for token_id in emitted_ids:
        history.append(token_id)
    history.check()
    is_banned_V = bans(params, history, np.array(sorted(stop_ids), dtype=np.int64), len(logits))
    try:
        return next_token(logits, params, history, NoiseKey(seed, history.next_position, choice), is_banned_V)
    except GenerationError:
        return NO_TOKEN


# Few values, so that ties are common; the large ones reach infinity under penalties.
VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.0, 2.5, 2.5, -3.0, 7.0, -math.inf, -math.inf, 1e30, -1e30]),
    st.floats(-30, 30, width=32),
)
BAD_VALUES = st.sampled_from([math.nan, math.inf])
IDS = st.integers(0, 19)


@st.composite
def sampling_params(draw_from: st.DrawFn) -> SamplingParams:
    def maybe(default: float, values: st.SearchStrategy[float]) -> float:
        return draw_from(st.one_of(st.just(default), values))

    return SamplingParams(
        temperature=draw_from(st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0, 1e-300])),
        top_k=draw_from(st.sampled_from([0, 0, 1, 2, 3, 7, 20, 100])),
        top_p=maybe(1.0, st.one_of(st.sampled_from([0.5, 0.9, 1e-9, 1 - 2**-53]), st.floats(0.01, 0.99))),
        min_p=maybe(0.0, st.sampled_from([0.05, 0.3, 1.0, 1e-30])),
        presence_penalty=maybe(0.0, st.floats(-2, 2)),
        frequency_penalty=maybe(0.0, st.floats(-2, 2)),
        repetition_penalty=maybe(1.0, st.sampled_from([1.3, 0.7, 5.0, 0.01, 100.0])),
        logit_bias=draw_from(st.dictionaries(IDS, st.sampled_from([-100.0, 100.0, 0.5, -2.0]), max_size=4)),
        min_tokens=draw_from(st.integers(0, 6)),
    )


@st.composite
def logit_rows(draw_from: st.DrawFn) -> Logits:
    values = draw_from(st.lists(VALUES, min_size=20, max_size=20))
    if draw_from(st.integers(0, 9)) == 0:
        values[draw_from(IDS)] = draw_from(BAD_VALUES)
    return np.array(values, dtype=draw_from(st.sampled_from([np.float32, np.float64])))


@settings(max_examples=200)
@given(
    logits=logit_rows(),
    params=sampling_params(),
    seed=st.integers(-(2**63), 2**64 - 1),
    choice=st.integers(0, 5),
    prompt_ids=st.lists(IDS, min_size=1, max_size=6),
    emitted_ids=st.lists(IDS, max_size=8),
    stop_ids=st.frozensets(IDS, max_size=4),
)
def test_the_function_equals_the_reference(
    logits: Logits,
    params: SamplingParams,
    seed: int,
    choice: int,
    prompt_ids: list[int],
    emitted_ids: list[int],
    stop_ids: frozenset[int],
) -> None:
    before = logits.copy()
    token_id = draw(
        logits,
        params,
        seed=seed,
        choice=choice,
        prompt_ids=prompt_ids,
        emitted_ids=emitted_ids,
        stop_ids=sorted(stop_ids),
    )
    assert token_id == reference_next_token(
        [float(logit) for logit in logits],
        params,
        seed=seed,
        choice=choice,
        prompt_ids=prompt_ids,
        emitted_ids=emitted_ids,
        stop_ids=stop_ids,
    )
    assert np.array_equal(logits, before, equal_nan=True), "the function changes nothing"


@given(
    logits=logit_rows(),
    params=sampling_params(),
    prompt_ids=st.lists(IDS, min_size=1, max_size=6),
    emitted_ids=st.lists(IDS, max_size=8),
    stop_ids=st.frozensets(IDS, max_size=4),
)
def test_adjusted_logits_equal_the_reference_to_the_bit(
    logits: Logits, params: SamplingParams, prompt_ids: list[int], emitted_ids: list[int], stop_ids: frozenset[int]
) -> None:
    """Stronger than equal tokens, which a small error in one logit seldom changes."""
    history = History.of_prompt(prompt_ids, params, len(logits))
    for token_id in emitted_ids:
        history.append(token_id)
    is_banned_V = bans(params, history, np.array(sorted(stop_ids), dtype=np.int64), len(logits))
    adjusted = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        adjust_logits(adjusted, params, history, is_banned_V)
    expected = adjusted_logits([float(logit) for logit in logits], params, prompt_ids, emitted_ids, stop_ids)
    assert np.array_equal(adjusted, np.array(expected), equal_nan=True)


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 6.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_p=0.9),
        SamplingParams(top_p=0.9999),
        SamplingParams(top_k=700, top_p=0.9),
        SamplingParams(top_k=50),
        SamplingParams(temperature=0.6, min_p=0.02, top_p=0.95),
        SamplingParams(),
    ],
    ids=str,
)
def test_long_rows_equal_the_reference(spread: float, params: SamplingParams) -> None:
    """Long enough that the largest are sought by groups; coarse values make ties at every threshold."""
    logits = np.round(np.random.default_rng(1).normal(0.0, spread, 5000), 1).astype(np.float32)
    scores = (logits.astype(np.float64) - float(logits.max())) / params.temperature
    assert surviving_ids(scores, params).tolist() == survivors(scores.tolist(), params)
    for seed in range(3):
        expected = reference_next_token(logits.tolist(), params, seed=seed, choice=0, prompt_ids=[0, 1], emitted_ids=[])
        assert draw(logits, params, seed=seed, prompt_ids=[0, 1]) == expected


@given(
    rows=st.lists(st.lists(st.one_of(VALUES, BAD_VALUES), min_size=9, max_size=9), min_size=1, max_size=8),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_greedy_rows_at_once_equal_the_function(rows: list[list[float]], dtype: npt.DTypeLike) -> None:
    logits_NV: Logits = np.array(rows, dtype=dtype)
    for logits_V, token_id in zip(logits_NV, greedy_tokens(logits_NV), strict=True):
        assert (token_id if token_id >= 0 else NO_TOKEN) == draw(logits_V, GREEDY)


def test_exactly_k_are_kept_and_ties_go_to_the_lowest_ids() -> None:
    scores = np.array([-1.0, 0.0, -1.0, 0.0, -1.0, -2.0])
    assert surviving_ids(scores, SamplingParams(top_k=3)).tolist() == [0, 1, 3]
    assert surviving_ids(scores, SamplingParams(top_k=4)).tolist() == [0, 1, 2, 3]
    assert in_order(scores, 4).tolist() == [1, 3, 0, 2]


def test_top_p_keeps_the_shortest_prefix_and_the_earlier_of_two_ties() -> None:
    scores = np.array([0.0, -0.7, -0.7, -3.0])
    assert surviving_ids(scores, SamplingParams(top_p=0.6)).tolist() == [0, 1]
    assert surviving_ids(scores, SamplingParams(top_p=1e-12)).tolist() == [0]
    assert surviving_ids(scores, SamplingParams(top_p=1 - 2**-53)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 50, 512, 513, 9000])
@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_the_first_of_a_long_row_are_those_of_a_full_sort(count: int, decimals: int) -> None:
    values = np.round(np.random.default_rng(5).normal(0.0, 2.0, 9000), decimals)
    values[::3] = -math.inf
    expected = np.argsort(-values, kind="stable")[:count]
    assert in_order(values, count).tolist() == expected.tolist()


@pytest.mark.parametrize("size", [10, 1000, 5000])
def test_a_prefix_that_reaches_top_p_exactly_is_long_enough(size: int) -> None:
    """Where sums in different orders may disagree, the one that is defined decides."""
    assert surviving_ids(np.zeros(size), SamplingParams(top_p=0.5)).tolist() == list(range(size // 2))
    scores = -np.random.default_rng(6).integers(0, 3, size) * np.log(3.0)
    weights = np.exp(scores)
    cumulative = np.cumsum(np.sort(weights)[::-1])
    for prefix_len in (1, size // 3, size // 2, size - 1):
        top_p = float(cumulative[prefix_len - 1] / np.cumsum(weights)[-1])
        params = SamplingParams(top_p=top_p)
        assert surviving_ids(scores, params).tolist() == survivors(scores.tolist(), params)


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    scores = np.log(np.array([0.4, 0.3, 0.2, 0.1]) / 0.4)
    assert surviving_ids(scores, SamplingParams(top_p=0.6)).tolist() == [0, 1]
    assert surviving_ids(scores, SamplingParams(top_k=2, top_p=0.55)).tolist() == [0]


def test_min_p_keeps_a_weight_equal_to_it() -> None:
    assert surviving_ids(np.array([0.0, -1.0, -math.inf]), SamplingParams(min_p=1.0)).tolist() == [0]
    assert surviving_ids(np.array([0.0, 0.0, -1.0]), SamplingParams(min_p=1.0)).tolist() == [0, 1]


def test_repetition_counts_the_prompt_but_presence_and_frequency_dont() -> None:
    logits = np.array([3.0, 2.0, -1.0], dtype=np.float32)
    assert draw(logits, SamplingParams(temperature=0.0, repetition_penalty=2.0), prompt_ids=[0]) == 1
    penalised = SamplingParams(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    assert draw(logits, penalised, prompt_ids=[0]) == 0
    assert draw(logits, penalised, prompt_ids=[0], emitted_ids=[0]) == 1


def test_repetition_penalty_pushes_negative_logits_down_too() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert draw(np.array([-1.0, -1.5, -9.0]), params, prompt_ids=[0]) == 1
    assert draw(np.array([0.5, 0.4, -9.0]), params, prompt_ids=[0]) == 1


def test_stop_ids_are_banned_until_min_tokens_are_emitted() -> None:
    logits = np.array([5.0, 9.0, 1.0], dtype=np.float32)
    params = SamplingParams(temperature=0.0, min_tokens=2)
    drawn = [draw(logits, params, emitted_ids=[0] * count, stop_ids=[1]) for count in range(4)]
    assert drawn == [0, 0, 1, 1]


def test_a_ban_outweighs_a_bias() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=1, logit_bias={1: 100.0})
    assert draw(np.array([0.0, 9.0]), params, stop_ids=[1]) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "bad", [[math.nan, 1.0, 2.0], [1.0, math.inf, 2.0], [-math.inf] * 3], ids=["nan", "inf", "none"]
)
def test_a_row_without_a_finite_largest_logit_has_no_token(temperature: float, bad: list[float]) -> None:
    assert draw(np.array(bad, dtype=np.float32), SamplingParams(temperature=temperature)) == NO_TOKEN


def test_a_nan_at_a_banned_id_is_still_an_error() -> None:
    assert draw(np.array([0.0, math.nan]), SamplingParams(min_tokens=1), stop_ids=[1]) == NO_TOKEN


@pytest.mark.parametrize("length", [1, 3, 16, 33, 1000])
def test_argmax_sees_a_nan_at_any_place(length: int) -> None:
    """NaN, not the largest number, must win numpy's argmax and max, whatever vector lane it falls into."""
    for place in range(0, length, max(1, length // 17)):
        logits = np.linspace(0.0, 1.0, length).astype(np.float32)
        logits[place] = math.nan
        assert greedy_tokens(logits[None]) == [-1]
        assert draw(logits, SamplingParams()) == NO_TOKEN


def test_bans_that_leave_nothing_are_an_error() -> None:
    assert draw(np.array([0.0, -math.inf]), SamplingParams(min_tokens=1), stop_ids=[0]) == NO_TOKEN


def test_a_temperature_near_zero_is_the_argmax() -> None:
    logits = np.random.default_rng(4).normal(0, 3, 50)
    assert {draw(logits, SamplingParams(temperature=1e-300), seed=seed) for seed in range(20)} == {int(logits.argmax())}


def test_seed_choice_and_position_each_change_the_draw() -> None:
    logits = np.zeros(4096, dtype=np.float32)
    base = draw(logits, SamplingParams(), seed=1)
    assert base == draw(logits, SamplingParams(), seed=1)
    others = [
        draw(logits, SamplingParams(), seed=2),
        draw(logits, SamplingParams(), seed=1, choice=1),
        draw(logits, SamplingParams(), seed=1, emitted_ids=[0]),
    ]
    assert base not in others
    assert len(set(others)) == 3


def test_plain_is_what_asks_for_no_id_by_its_name() -> None:
    assert plain_from(SamplingParams(temperature=0.7, top_p=0.9, top_k=3, min_p=0.1)) == 0
    assert plain_from(SamplingParams(min_tokens=3)) == 3
    asking = [
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(frequency_penalty=0.1),
        SamplingParams(logit_bias={1: 1.0}),
        SamplingParams(banned_runs=((4,),)),
        SamplingParams(allowed_token_ids=(1,)),
    ]
    assert {plain_from(params) for params in asking} == {math.inf}
