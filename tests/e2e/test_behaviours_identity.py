"""An answer depends on the request and its seed alone: not on the mode, the load, the neighbours or the chunking."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeRunner
from tests.live import ALL_MODES, MODES, LiveServer, fake_for, live_server

PROMPTS = ["a", "of three", "a prompt of some words", "x" * 37, "12345", "the quick brown fox", "y" * 64, "zz " * 30]
CHUNKS, CONCURRENCIES = (3, 16, 512), (1, 4, 8)
SEEDED = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 12, "return_token_ids": True}
Answer = dict[str, Any]


def ask(server: LiveServer, prompt: str, **body: Any) -> Answer:
    return server.post("/v1/completions", prompt=prompt, **body)


def ids(answer: Answer) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["choices"]]


@contextmanager
def load(server: LiveServer) -> Iterator[None]:
    """Other requests of other lengths, temperatures and seeds while the block runs."""
    bodies = [
        {"prompt": "n" * (7 * k + 1), "temperature": 0.3 * k, "max_tokens": 5 + 9 * k, **({"seed": k} if k % 2 else {})}
        for k in range(6)
    ]
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(lambda b=body: server.post("/v1/completions", **b)) for body in bodies]
        yield
        for future in running:
            future.result()


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Answer, Answer]]:
    """Each prompt alone, serial, whole: greedy and seeded."""
    with live_server(tmp_path_factory.mktemp("oracle"), FakeRunner(), "serial", prefill_chunk_tokens=512) as server:
        return {
            prompt: (
                ask(server, prompt, temperature=0, max_tokens=12, return_token_ids=True),
                ask(server, prompt, seed=7, **SEEDED),
            )
            for prompt in PROMPTS
        }


@pytest.mark.parametrize(
    ("mode", "chunk", "concurrency"),
    # Of mode, chunk and concurrency each pair of values meets.
    [(mode, CHUNKS[j], CONCURRENCIES[(i + j) % 3]) for i, mode in enumerate(MODES) for j in range(3)],
)
def test_b16_same_ids_at_every_mode_chunk_and_concurrency(
    tmp_path: Path, mode: str, chunk: int, concurrency: int, oracle: dict[str, tuple[Answer, Answer]]
) -> None:
    with (
        live_server(tmp_path, fake_for(mode), mode, prefill_chunk_tokens=chunk) as server,
        ThreadPoolExecutor(concurrency) as pool,
    ):
        greedy = list(pool.map(lambda p: ask(server, p, temperature=0, max_tokens=12, return_token_ids=True), PROMPTS))
        seeded = list(pool.map(lambda p: ask(server, p, seed=7, **SEEDED), PROMPTS))
    for prompt, one, other in zip(PROMPTS, greedy, seeded, strict=True):
        assert ids(one) == ids(oracle[prompt][0])
        assert ids(other) == ids(oracle[prompt][1])


@pytest.mark.parametrize("mode", MODES)
def test_b26_the_seed_alone_decides(tmp_path: Path, mode: str) -> None:
    body = {"temperature": 1, "max_tokens": 16, "return_token_ids": True}
    with live_server(tmp_path, fake_for(mode), mode) as server:
        alone = ask(server, "tell me", seed=7, **body)
        with load(server):
            loaded = ask(server, "tell me", seed=7, **body)
            other = ask(server, "tell me", seed=8, **body)
            unseeded = [ask(server, "tell me", **body) for _ in range(3)]
        replayed = ask(server, "tell me", seed=unseeded[0]["seed"], **body)
    assert ids(loaded) == ids(alone)
    assert loaded["seed"] == 7
    assert ids(other) != ids(alone)
    assert len({str(ids(answer)) for answer in unseeded}) == 3
    assert ids(replayed) == ids(unseeded[0]), "the reported seed gives the answer again"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_b28_n_choices_are_distinct_repeatable_and_begin_with_the_single_one(tmp_path: Path, mode: str) -> None:
    body = {"temperature": 1, "seed": 5, "max_tokens": 12, "return_token_ids": True}
    with live_server(tmp_path, fake_for(mode), mode) as server:
        single = ask(server, "four", **body)
        first = ask(server, "four", n=4, **body)
        with load(server):
            again = ask(server, "four", n=4, **body)
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
    assert len({str(choice) for choice in ids(first)}) == 4
    assert ids(again) == ids(first)
    assert ids(first)[0] == ids(single)[0]
    assert first["usage"]["completion_tokens"] == 48


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("penalty", [{"frequency_penalty": 2}, {"presence_penalty": 1.5}, {"repetition_penalty": 1.3}])
def test_b29_penalties_hold_and_do_not_depend_on_the_load(tmp_path: Path, mode: str, penalty: dict[str, float]) -> None:
    """The script repeats one byte for ever with a margin that only penalties can overcome."""
    body = {"prompt": "ababab", "max_tokens": 40, "temperature": 0, "return_token_ids": True}
    with live_server(tmp_path, _Repeating(), mode) as server:
        free = server.post("/v1/completions", **body)
        held = server.post("/v1/completions", **body, **penalty)
        with load(server):
            loaded = server.post("/v1/completions", **body, **penalty)
    assert len(set(ids(free)[0])) == 1
    assert len(set(ids(held)[0])) > 1
    assert ids(loaded) == ids(held)


class _Repeating(FakeRunner):
    """Every byte's logit is fixed, descending from 'a' on, a little apart: greedy repeats 'a' unless penalised."""

    def _logits(self, history: tuple[int, ...]) -> Any:
        logits = super()._logits(history) * 0
        for rank, byte in enumerate(b"abcdefgh"):
            logits[byte] = 4.0 - 0.25 * rank
        return logits
