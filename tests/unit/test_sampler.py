"""The sampler applies the function position by position: drafts, batches and neighbours change speed, never tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.batching.state import Row, RowOutcome, StepPlan
from mtplx.decode.logprobs import LOWEST_LOGPROB, TokenLogprobs, token_logprobs
from mtplx.decode.sampler import SampledRow, Sampler
from mtplx.errors import RequestError
from mtplx.sampling_params import SamplingParams
from tests.reference import reference_logprob, reference_next_token

VOCAB_SIZE = 24
PROMPT = (3, 5, 3)
GREEDY = SamplingParams(temperature=0.0)
Model = Callable[[Sequence[int]], npt.NDArray[np.float32]]
Drafter = Callable[[int], int]

KINDS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=0.8),
    "filtered": SamplingParams(top_k=8, top_p=0.9),
    "repetition": SamplingParams(temperature=0.0, repetition_penalty=1.3),
    "frequency": SamplingParams(temperature=0.0, frequency_penalty=2.0, presence_penalty=0.5),
    "sampled penalties": SamplingParams(frequency_penalty=2.0, repetition_penalty=1.3, temperature=0.7),
    "min_tokens": SamplingParams(temperature=0.0, min_tokens=6),
    "bias": SamplingParams(temperature=0.0, logit_bias={4: 3.0}),
    "logprobs": SamplingParams(temperature=0.9, logprobs=3),
}


def model(token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Logits that depend on the last two tokens, with tokens 1 and 2 always likely so that answers repeat."""
    rng = np.random.default_rng([*token_ids[-2:], 1])
    logits_V = rng.normal(0.0, 1.5, VOCAB_SIZE).astype(np.float32)
    logits_V[1:3] += 2.0
    return logits_V


def oracle(params: SamplingParams, seed: int, count: int, stop_ids: frozenset[int] = frozenset({1})) -> list[int]:
    """The plain reference, one token after another."""
    emitted: list[int] = []
    for _ in range(count):
        token_id = reference_next_token(
            model([*PROMPT, *emitted]).tolist(),
            params,
            seed=seed,
            choice=0,
            prompt_ids=PROMPT,
            emitted_ids=emitted,
            stop_ids=stop_ids,
        )
        assert isinstance(token_id, int)
        emitted.append(token_id)
    return emitted


class Client:
    """One sequence driven through a sampler as a scheduler would: a pending token, then drafts."""

    def __init__(self, sampler: Sampler, seq_id: int, params: SamplingParams, seed: int, choice: int = 0) -> None:
        self.seq_id = seq_id
        self.emitted: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        stop_ids = frozenset({1})
        sampler.add(seq_id, params, seed=seed, choice=choice, prompt_ids=PROMPT, stop_ids=stop_ids)

    @property
    def token_ids(self) -> list[int]:
        return [*PROMPT, *self.emitted]

    def row(self, drafts: Sequence[int] = (), *, recompute: bool = False) -> Row:
        """The next row; the whole prefix where its cache was lost, as after a preemption."""
        start = 0 if recompute or not self.emitted else len(self.token_ids) - 1
        token_ids = (*self.token_ids[start:], *drafts)
        return Row(self.seq_id, start, token_ids, (), num_logits=1 + len(drafts), num_drafts=len(drafts))

    def lines(self, drafts: Sequence[int] = ()) -> list[npt.NDArray[np.float32]]:
        return [model([*self.token_ids, *drafts[:count]]) for count in range(1 + len(drafts))]

    def take(self, sampled: SampledRow) -> None:
        assert sampled.outcome.error is None
        self.emitted.extend(sampled.outcome.token_ids)
        self.logprobs.extend(sampled.logprobs)


def step(
    sampler: Sampler, clients: Sequence[Client], drafts: Sequence[Sequence[int]] | None = None
) -> list[SampledRow]:
    guesses = drafts or [()] * len(clients)
    rows = tuple(client.row(guess) for client, guess in zip(clients, guesses, strict=True))
    lines = [line for client, guess in zip(clients, guesses, strict=True) for line in client.lines(guess)]
    sampled = sampler.decode(StepPlan(rows), np.stack(lines))
    for client, result in zip(clients, sampled, strict=True):
        client.take(result)
    sampler.check()
    return sampled


@pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)
def test_one_row_alone_equals_the_oracle(params: SamplingParams) -> None:
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, params, seed=7)
    for _ in range(12):
        step(sampler, [client])
    assert client.emitted == oracle(params, 7, 12)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)
def test_drafts_always_right_give_the_oracles_tokens_in_fewer_steps(params: SamplingParams, depth: int) -> None:
    expected = oracle(params, 7, 15)
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, params, seed=7)
    for num_steps in range(1, 4):
        step(sampler, [client], [expected[len(client.emitted) :][:depth]])
        assert client.emitted == expected[: num_steps * (depth + 1)]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)
def test_drafts_always_wrong_give_one_of_the_oracles_tokens_a_step(params: SamplingParams, depth: int) -> None:
    expected = oracle(params, 7, 8)
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, params, seed=7)
    for index in range(8):
        step(sampler, [client], [[(expected[index] + 1) % VOCAB_SIZE] * depth])
    assert client.emitted == expected


def test_the_first_unequal_draft_still_yields_a_correct_token() -> None:
    expected = oracle(GREEDY, 0, 3)
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, GREEDY, seed=0)
    wrong = (expected[1] + 1) % VOCAB_SIZE
    sampled = step(sampler, [client], [[expected[0], wrong, expected[2]]])
    assert sampled == [SampledRow(RowOutcome(tuple(expected[:2])))]


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6),
    guesses=st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=8),
)
def test_a_row_doesnt_depend_on_its_neighbours_or_drafts(kinds: list[str], guesses: list[list[int]]) -> None:
    """Neighbours with other seeds, params and numbers of drafts; a guess g means: right for g positions, then wrong."""
    sampler = Sampler(VOCAB_SIZE)
    expected = [oracle(KINDS[kind], seed, 16) for seed, kind in enumerate(kinds)]
    clients = [Client(sampler, seed, KINDS[kind], seed) for seed, kind in enumerate(kinds)]
    for guess in guesses:
        drafts = []
        for index, (client, tokens) in enumerate(zip(clients, expected, strict=True)):
            num_right = guess[index] if index < len(guess) else 0
            right = tokens[len(client.emitted) :][:num_right]
            drafts.append([*right, 23] if index % 2 else right)
        step(sampler, clients, drafts)
    for client, tokens in zip(clients, expected, strict=True):
        count = min(len(tokens), len(client.emitted))
        assert client.emitted[:count] == tokens[:count]


def test_equal_requests_with_other_seeds_differ_and_choice_0_of_n_is_n_1() -> None:
    sampler = Sampler(VOCAB_SIZE)
    params = SamplingParams(temperature=1.5)
    seven, eight = Client(sampler, 0, params, seed=7), Client(sampler, 1, params, seed=8)
    choices = [Client(sampler, 2 + choice, params, seed=7, choice=choice) for choice in range(4)]
    for _ in range(12):
        step(sampler, [seven, eight, *choices])
    assert seven.emitted == oracle(params, 7, 12)
    assert eight.emitted == oracle(params, 8, 12)
    assert choices[0].emitted == seven.emitted
    assert len({tuple(choice.emitted) for choice in choices}) == 4


def test_a_preempted_sequence_goes_on_where_it_was() -> None:
    params = KINDS["sampled penalties"]
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, params, seed=7)
    for _ in range(4):
        step(sampler, [client])
    inside = Row(0, 0, tuple(client.token_ids[:2]), (), num_logits=0)
    assert sampler.decode(StepPlan((inside,)), np.empty((0, VOCAB_SIZE), dtype=np.float32)) == [
        SampledRow(RowOutcome())
    ]
    client.take(sampler.decode(StepPlan((client.row(recompute=True),)), np.stack(client.lines()))[0])
    for _ in range(3):
        step(sampler, [client])
    assert client.emitted == oracle(params, 7, 8)


def test_rows_without_wanted_logits_take_no_lines_from_their_neighbours() -> None:
    sampler = Sampler(VOCAB_SIZE)
    first, last = Client(sampler, 0, GREEDY, seed=0), Client(sampler, 2, KINDS["sampled"], seed=1)
    Client(sampler, 1, GREEDY, seed=0)
    inside = Row(1, 0, PROMPT[:2], (), num_logits=0)
    plan = StepPlan((first.row(), inside, last.row()))
    sampled = sampler.decode(plan, np.stack([*first.lines(), *last.lines()]))
    assert [result.outcome.token_ids for result in sampled] == [
        tuple(oracle(GREEDY, 0, 1)),
        (),
        tuple(oracle(KINDS["sampled"], 1, 1)),
    ]


def test_min_tokens_counts_tokens_and_not_steps() -> None:
    """B7 at this level: three steps of five tokens each, the ban lifts within the second."""
    params = SamplingParams(temperature=0.0, min_tokens=7, logit_bias={1: 50.0})
    expected = oracle(params, 0, 15)
    assert 1 not in expected[:7]
    assert expected[7:] == [1] * 8
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, params, seed=0)
    for index in range(3):
        step(sampler, [client], [expected[5 * index : 5 * index + 4]])
    assert client.emitted == expected


def test_penalties_see_accepted_drafts() -> None:
    """B29 at this level: with equal logits everywhere a frequency penalty walks through the ids, inside a block too."""
    sampler = Sampler(4)
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0)
    sampler.add(0, params, seed=0, choice=0, prompt_ids=(0,), stop_ids=frozenset())
    row = Row(0, 0, (0, 0, 1, 2, 2), (), num_logits=5, num_drafts=4)
    [sampled] = sampler.decode(StepPlan((row,)), np.zeros((5, 4), dtype=np.float32))
    assert sampled.outcome.token_ids == (0, 1, 2, 3)


@pytest.mark.parametrize("depth", [0, 4])
def test_logprobs_have_one_entry_a_token_from_its_own_row(depth: int) -> None:
    """B31 at this level."""
    params = KINDS["logprobs"]
    expected = oracle(params, 7, 10)
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, params, seed=7)
    while len(client.emitted) < 10:
        step(sampler, [client], [expected[len(client.emitted) :][:depth]])
    assert client.emitted == expected
    assert [entry.chosen.token_id for entry in client.logprobs] == expected
    for index, entry in enumerate(client.logprobs):
        logits = model([*PROMPT, *expected[:index]]).tolist()
        assert entry.chosen.logprob == pytest.approx(reference_logprob(logits, entry.chosen.token_id), rel=1e-6)
        likeliest = sorted(range(VOCAB_SIZE), key=lambda token_id: (-logits[token_id], token_id))[:3]
        assert [top.token_id for top in entry.top] == likeliest


def test_logprobs_0_reports_the_chosen_token_alone() -> None:
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, SamplingParams(temperature=0.0, logprobs=0), seed=0)
    [sampled] = step(sampler, [client])
    assert [len(entry.top) for entry in sampled.logprobs] == [0]


def test_logprobs_are_of_the_raw_logits_rounded_once_and_never_infinite() -> None:
    logits_V = np.array([1.0, 3.0, -math.inf, 3.0, -2e4, 0.5])
    entry = token_logprobs(logits_V, 0, 5)
    assert [top.token_id for top in entry.top] == [1, 3, 0, 5, 4]
    assert entry.chosen.logprob == np.float32(reference_logprob(logits_V.tolist(), 0))
    assert entry.top[2] == entry.chosen
    assert entry.top[4].logprob == LOWEST_LOGPROB
    assert token_logprobs(logits_V, 2, 0).chosen.logprob == LOWEST_LOGPROB
    assert len(token_logprobs(logits_V, 0, 20).top) == 6


def test_a_certain_token_has_logprob_0() -> None:
    assert token_logprobs(np.array([-math.inf, 4.0], dtype=np.float32), 1, 0).chosen.logprob == 0.0


@pytest.mark.parametrize("params", [KINDS["greedy"], KINDS["sampled"], KINDS["repetition"]], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_bad_logits_fails_alone(params: SamplingParams, bad: float) -> None:
    sampler = Sampler(VOCAB_SIZE)
    sick, well = Client(sampler, 0, params, seed=0), Client(sampler, 1, params, seed=7)
    logits_WV = np.stack([*sick.lines(), *well.lines()])
    logits_WV[0, 9 if bad == math.inf or math.isnan(bad) else slice(None)] = bad
    failed, sampled = sampler.decode(StepPlan((sick.row(), well.row())), logits_WV)
    assert failed.outcome.token_ids == ()
    assert failed.outcome.error is not None
    assert sampled.outcome == RowOutcome(tuple(oracle(params, 7, 1)))


@pytest.mark.parametrize("params", [KINDS["greedy"], KINDS["sampled"]], ids=str)
def test_tokens_before_a_bad_position_stand_as_they_would_without_drafts(params: SamplingParams) -> None:
    expected = oracle(params, 7, 3)
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, params, seed=7)
    logits_WV = np.stack(client.lines(expected))
    logits_WV[2] = math.nan
    [sampled] = sampler.decode(StepPlan((client.row(expected),)), logits_WV)
    assert sampled.outcome == RowOutcome(tuple(expected[:2]))
    client.take(sampled)
    [failed] = sampler.decode(StepPlan((client.row(),)), logits_WV[2:3])
    assert failed.outcome.error is not None


def test_a_bad_line_after_the_first_unequal_draft_is_never_looked_at() -> None:
    expected = oracle(GREEDY, 0, 1)
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, GREEDY, seed=0)
    wrong = [(expected[0] + 1) % VOCAB_SIZE]
    logits_WV = np.stack(client.lines(wrong))
    logits_WV[1] = math.nan
    [sampled] = sampler.decode(StepPlan((client.row(wrong),)), logits_WV)
    assert sampled.outcome == RowOutcome(tuple(expected))


def test_the_callers_logits_and_earlier_results_stay_as_they_were() -> None:
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, KINDS["repetition"], seed=0)
    logits_WV = np.stack(client.lines())
    before = logits_WV.copy()
    [sampled] = sampler.decode(StepPlan((client.row(),)), logits_WV)
    logits_WV[:] = math.nan
    assert sampled.outcome.token_ids == tuple(oracle(KINDS["repetition"], 0, 1))
    client.take(sampled)
    after = np.stack(client.lines())
    sampler.decode(StepPlan((client.row(),)), after)
    assert np.array_equal(before[0], model(PROMPT))
    assert np.array_equal(after[0], model(client.token_ids))


def test_a_plan_that_repeats_or_skips_a_position_is_a_programming_error() -> None:
    sampler = Sampler(VOCAB_SIZE)
    client = Client(sampler, 0, GREEDY, seed=0)
    row, lines = client.row(), np.stack(client.lines())
    sampler.decode(StepPlan((row,)), lines)
    with pytest.raises(AssertionError):
        sampler.decode(StepPlan((row,)), lines)


def test_a_sequence_is_added_once_and_removed_once() -> None:
    sampler = Sampler(VOCAB_SIZE)
    Client(sampler, 0, GREEDY, seed=0)
    with pytest.raises(AssertionError):
        Client(sampler, 0, GREEDY, seed=0)
    sampler.remove(0)
    with pytest.raises(KeyError):
        sampler.remove(0)
    Client(sampler, 0, GREEDY, seed=0)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_a_bias_outside_the_vocabulary_is_refused_by_name(token_id: int) -> None:
    with pytest.raises(RequestError) as caught:
        Client(Sampler(VOCAB_SIZE), 0, SamplingParams(logit_bias={token_id: 1.0}), seed=0)
    assert caught.value.param == "logit_bias"


def test_stop_ids_outside_the_vocabulary_ban_nothing() -> None:
    sampler = Sampler(VOCAB_SIZE)
    params = SamplingParams(temperature=0.0, min_tokens=2)
    sampler.add(0, params, seed=0, choice=0, prompt_ids=PROMPT, stop_ids=frozenset({-1, 999}))
    row = Row(0, 0, PROMPT, (), num_logits=1)
    [sampled] = sampler.decode(StepPlan((row,)), model(PROMPT)[None])
    assert sampled.outcome.token_ids == tuple(oracle(GREEDY, 0, 1))


class TestWhatWasLikely:
    def test_it_is_told_of_tokens_drawn_by_chance_where_somebody_wants_to_know(self) -> None:
        for temperature, count, is_told in (
            (0.8, 4, True),
            (0.0, 4, False),
            (0.8, 0, False),
            (0.8, VOCAB_SIZE + 1, False),
        ):
            sampler = Sampler(VOCAB_SIZE, num_likely=count)
            sampler.add(
                0, SamplingParams(temperature=temperature), seed=3, choice=0, prompt_ids=PROMPT, stop_ids=frozenset()
            )
            logits_V = model(PROMPT)
            row = Row(0, 0, PROMPT, (0,), num_logits=1)
            [sampled] = sampler.decode(StepPlan((row,)), logits_V[None])
            if not is_told:
                assert sampled.outcome.likely == ()
                continue
            [(ids, scores)] = sampled.outcome.likely
            order = np.argsort(-logits_V, kind="stable")[:count]
            assert ids == tuple(order.tolist())
            assert scores == tuple((logits_V[order] - logits_V.max()).tolist())

    @pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
    def test_who_draws_among_all_that_count_draws_what_the_function_draws(self, temperature: float) -> None:
        """Where the few that were likely hold all that can come, the guess is the token."""
        logits_V = np.full(VOCAB_SIZE, -80.0, dtype=np.float32)
        logits_V[[3, 7, 9, 20]] = (0.5, 1.5, 1.2, 0.9)
        ids = (7, 9, 20, 3)
        likely = (ids, tuple(float(logits_V[i] - logits_V[7]) for i in ids))
        drawn = set()
        for seed in range(40):
            sampler = Sampler(VOCAB_SIZE, num_likely=4)
            params = SamplingParams(temperature=temperature)
            sampler.add(0, params, seed=seed, choice=2, prompt_ids=PROMPT, stop_ids=frozenset())
            guess = sampler.lucky(0, len(PROMPT), likely)
            [sampled] = sampler.decode(StepPlan((Row(0, 0, PROMPT, (0,), num_logits=1),)), logits_V[None])
            assert sampled.outcome.token_ids == (guess,)
            drawn.add(guess)
        assert len(drawn) == (1 if temperature == 0.0 else 4)
