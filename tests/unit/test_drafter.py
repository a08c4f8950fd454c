"""Drafts are drawn as the function draws: equal logits give equal tokens, and the sampler never notices."""

from __future__ import annotations

import numpy as np
import pytest

from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.decode.drafter import DraftChooser
from mtplx.decode.sampler import Sampler
from mtplx.sampling_params import SamplingParams

VOCAB_SIZE = 23
STOP = 4
WISHES = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=1.0),
    "filtered": SamplingParams(temperature=0.7, top_p=0.9, top_k=9, min_p=0.01),
    "penalised": SamplingParams(temperature=0.8, repetition_penalty=1.4, frequency_penalty=1.5, presence_penalty=0.5),
    "penalised greedy": SamplingParams(temperature=0.0, frequency_penalty=2.0),
    "biased": SamplingParams(temperature=0.0, logit_bias={3: 5.0}),
    "at least six": SamplingParams(temperature=1.0, min_tokens=6),
}


def sampler_of(params: SamplingParams, seed: int = 11) -> Sampler:
    sampler = Sampler(VOCAB_SIZE)
    sampler.add(0, params, seed=seed, choice=0, prompt_ids=(1, 2, 3), stop_ids=frozenset({STOP}))
    return sampler


def lines(count: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, VOCAB_SIZE)).astype(np.float32) * 2


def request(depth: int = 8) -> DraftRequest:
    return DraftRequest(0, 1, (2, 3), (0,), depth)


def decode(sampler: Sampler, logits: np.ndarray, drafts: tuple[int, ...]) -> tuple[int, ...]:
    row = Row(0, 2, (3, *drafts), (), num_logits=1 + len(drafts), num_drafts=len(drafts))
    return sampler.decode(StepPlan((row,)), logits)[0].outcome.token_ids


@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize("seed", range(12))
def test_a_head_with_the_models_logits_is_always_right(name: str, seed: int) -> None:
    sampler, logits = sampler_of(WISHES[name], seed), lines(6, seed)
    choose = DraftChooser(sampler, [request()], VOCAB_SIZE)
    drafts = []
    for line in logits[:-1]:
        (token_id,) = choose([0], line[None])
        if token_id is None:  # the token that ends the answer
            break
        drafts.append(token_id)
    emitted = decode(sampler, logits[: 1 + len(drafts)], tuple(drafts))
    assert emitted[:-1] == tuple(drafts)
    assert len(drafts) == 5 or emitted[-1] == STOP


@pytest.mark.parametrize("name", WISHES)
def test_drawing_drafts_changes_no_token(name: str) -> None:
    logits = lines(1)
    clean, used = sampler_of(WISHES[name]), sampler_of(WISHES[name])
    for _ in range(3):
        choose = DraftChooser(used, [request()], VOCAB_SIZE)
        for line in lines(4, seed=9):
            choose([0], line[None])
    used.check()
    assert decode(used, logits, ()) == decode(clean, logits, ())


@pytest.mark.parametrize("name", ["greedy", "sampled", "penalised"])
def test_a_part_of_the_vocabulary_is_the_whole_with_the_rest_impossible(name: str) -> None:
    ids_W = np.array([0, 2, 3, 7, 11, 20, 22])
    whole = np.full((1, VOCAB_SIZE), -np.inf, dtype=np.float32)
    whole[:, ids_W] = lines(1)[:, ids_W]
    part = DraftChooser(sampler_of(WISHES[name]), [request()], VOCAB_SIZE)([0], whole[:, ids_W], ids_W)
    assert part == DraftChooser(sampler_of(WISHES[name]), [request()], VOCAB_SIZE)([0], whole)
    assert part[0] in ids_W


def test_greedy_and_sampled_rows_and_rows_without_logits_share_a_call() -> None:
    sampler = Sampler(VOCAB_SIZE)
    for seq_id, params in enumerate(
        (WISHES["greedy"], WISHES["sampled"], WISHES["greedy"], WISHES["sampled"], WISHES["greedy"])
    ):
        sampler.add(seq_id, params, seed=seq_id, choice=0, prompt_ids=(1,), stop_ids=frozenset({STOP}))
    requests = [DraftRequest(seq_id, 1, (2,), (0,), 3) for seq_id in range(5)]
    logits = lines(5)
    logits[2] = np.nan
    logits[3] = -np.inf
    logits[4, STOP] = 99.0
    together = DraftChooser(sampler, requests, VOCAB_SIZE)([0, 1, 2, 3, 4], logits)
    alone = [DraftChooser(sampler, requests, VOCAB_SIZE)([index], logits[index : index + 1])[0] for index in range(5)]
    assert together == alone
    assert together[0] == int(np.argmax(logits[0]))
    assert together[2:] == [None, None, None], "no number, nothing possible, and a token that ends the answer"


def test_a_request_of_depth_0_is_never_drawn_for() -> None:
    choose = DraftChooser(sampler_of(WISHES["greedy"]), [request(0)], VOCAB_SIZE)
    with pytest.raises(AssertionError, match="asks for no drafts"):
        choose([0], lines(1))
