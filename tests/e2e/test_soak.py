"""The soak over HTTP: what `python -m benchmarks.soak` does at length on a real model, here on a fake one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.soak import GRAMMARS, Choice, Wish, ask, ask_all, ask_whole, differences, in_use, make_wishes
from tests.e2e.test_behaviours_load import eventually
from tests.fakes import FakeDraftingRunner, FakeRunner
from tests.faults import PATIENCE_S
from tests.live import COHORT, MODEL, live_server

NUM_CLIENTS = 12


@pytest.fixture(scope="module")
def wishes() -> list[Wish]:
    wishes = make_wishes(100)
    asked = {field for wish in wishes for field in wish.body}
    assert {"n", "stop", "logprobs", "top_logprobs", "logit_bias", "min_p", "structured_outputs", "tools"} <= asked
    assert all(any(wish.body.get("structured_outputs") == grammar for wish in wishes) for grammar in GRAMMARS)
    assert any(wish.leaves_after is not None for wish in wishes)
    return wishes


@pytest.fixture(scope="module")
def oracle(wishes: list[Wish], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[Choice]]]:
    folder = tmp_path_factory.mktemp("oracle")
    runner = FakeRunner(max_position=1024)
    with live_server(folder, runner, "serial", prefill_chunk_tokens=1024, prefix_cache="off") as server:
        yield [ask_whole(server.client, MODEL, wish) for wish in wishes]


@pytest.mark.parametrize("mode", ["cooperative", "mtp_batch", COHORT])
def test_soak_over_http(tmp_path: Path, mode: str, wishes: list[Wish], oracle: list[list[Choice]]) -> None:
    """Clients that leave do so by dropping their connection, and twelve are there at any time."""
    runner = FakeDraftingRunner(0.6, num_blocks=190, max_position=1024)
    with (
        live_server(tmp_path, runner, mode, draft_depth=4, decode_batch_max=6) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client,
    ):
        for seed in (1, 2):
            found = ask_all(wishes, lambda wish: ask(client, MODEL, wish), num_clients=NUM_CLIENTS, seed=seed)
            assert differences(wishes, oracle, found) == []
            assert eventually(lambda: not any(in_use(server.status()).values()))
        status = server.status()
    assert status["num_failed_steps"] == 0
    assert status["num_finished"]["cancelled"] > 0


def test_the_soak_sees_a_difference() -> None:
    expected = [{"text": "abc", "token_ids": [1, 2, 3], "logprobs": [], "calls": [], "finish_reason": "length"}]
    other = [{"text": "abd", "token_ids": [1, 2, 4], "logprobs": [], "calls": [], "finish_reason": "length"}]
    half = [{"text": "ab", "token_ids": [1, 2], "logprobs": [], "calls": [], "finish_reason": None}]
    stays, leaves = Wish("", {}, None), Wish("", {}, 1)
    wishes = [stays, stays, stays, leaves, leaves]
    assert differences(wishes, [expected] * 5, [expected, other, half, half, other]) == [1, 2, 4]
