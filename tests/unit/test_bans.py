"""Runs of tokens that never come and lists of those that may, per token, whatever drafts there are."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from mtplx.batching.state import SchedulerMode, StopRules
from mtplx.decode.bans import bans
from mtplx.decode.history import History
from mtplx.errors import RequestError
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Submit
from mtplx.text.bad_words import spellings
from mtplx.text.tokenizer import Tokenizer
from tests.engine.test_drafts import DEPTHS, MODES, core_of, play
from tests.fakes import FakeDraftingRunner, load_byte_tokenizer

PROMPT = tuple(b"One two")
STOP = 6


def submit(params: SamplingParams, seq_id: int = 0) -> Submit:
    return Submit(seq_id, PROMPT, params, seed=4, choice=0, stops=StopRules(20))


def banned(params: SamplingParams, emitted: tuple[int, ...]) -> list[int]:
    history = History.of_prompt((1, 2), params, vocab_size=8)
    for token_id in emitted:
        history.append(token_id)
        history.check()
    is_banned_V = bans(params, history, np.array([STOP]), 8)
    return [] if is_banned_V is None else np.flatnonzero(is_banned_V).tolist()


@pytest.mark.parametrize(
    ("emitted", "expected"),
    [
        ((), [7]),
        ((1,), [2, 7]),
        ((2, 1), [2, 7]),
        ((1, 2), [3, 7]),
        ((5, 1, 2), [3, 7]),
        ((1, 5, 2), [7]),
        ((1, 2, 1), [2, 7]),
    ],
)
def test_the_end_of_a_run_is_banned_where_its_beginning_has_come(emitted: tuple[int, ...], expected: list[int]) -> None:
    """The prompt doesn't count: it ends with what begins the first run."""
    params = SamplingParams(banned_runs=((1, 2), (1, 2, 3), (7,), (4, 99)))
    assert banned(params, emitted) == expected


def test_all_but_the_allowed_are_banned_and_runs_of_the_allowed_too() -> None:
    params = SamplingParams(allowed_token_ids=(1, 2), banned_runs=((1, 2),))
    assert banned(params, ()) == [0, 3, 4, 5, 6, 7]
    assert banned(params, (1,)) == [0, 2, 3, 4, 5, 6, 7]


def test_the_end_is_banned_before_its_time_beside_what_a_list_bans() -> None:
    assert banned(SamplingParams(min_tokens=1), ()) == [STOP]
    assert banned(SamplingParams(min_tokens=1), (3,)) == []
    params = SamplingParams(min_tokens=1, banned_runs=((7,),), allowed_token_ids=(STOP, 5, 7))
    assert banned(params, ()) == [0, 1, 2, 3, 4, STOP, 7]
    assert banned(params, (3,)) == [0, 1, 2, 3, 4, 7]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_hold_at_every_position_of_an_accepted_block(
    mode: SchedulerMode, depth: int | None, temperature: float
) -> None:
    """What is banned is what the answer would have had; the oracle is serial without drafts."""
    plain = core_of(FakeDraftingRunner(), SchedulerMode.SERIAL, 0)
    free = play(plain, [submit(SamplingParams(temperature=temperature))], concurrency=1)
    first, second, third = free[0][0][3:6]
    params = SamplingParams(
        temperature=temperature, banned_runs=((first, second), (third,)), allowed_token_ids=tuple(range(40, 120))
    )
    runs = [
        play(core_of(FakeDraftingRunner(p_right), m, d), [submit(params), submit(params, 1)], concurrency=2)
        for p_right, m, d in ((1.0, SchedulerMode.SERIAL, 0), (0.6, mode, depth), (1.0, mode, depth))
    ]
    assert runs[0] == runs[1] == runs[2]
    ids = runs[0][0][0]
    assert len(ids) == 20
    assert third not in ids
    assert all(40 <= token_id < 120 for token_id in ids)
    assert (first, second) not in list(itertools.pairwise(ids))


class TestSpellings:
    def test_a_byte_vocabulary_spells_one_way(self, tmp_path: Path) -> None:
        assert spellings(load_byte_tokenizer(tmp_path), [" ab", "c", "ab"]) == ((97, 98), (99,))

    def test_a_word_behind_a_space_is_another_token(self) -> None:
        vocab = {"a": 0, "b": 1, "Ġ": 2, "Ġa": 3}
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "a")]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        tokenizer = Tokenizer(backend, {})
        assert spellings(tokenizer, ["ab"]) == ((0, 1), (3, 1))
        assert spellings(tokenizer, ["ba"]) == ((1, 0),), (
            "a space is a token of its own there: the run is found behind it"
        )

    def test_words_that_are_none_are_refused(self) -> None:
        for words in (("",), (" ",)):
            with pytest.raises(RequestError, match="bad_words"):
                SamplingParams(bad_words=words)
        with pytest.raises(RequestError, match="allowed_token_ids"):
            SamplingParams(allowed_token_ids=())
