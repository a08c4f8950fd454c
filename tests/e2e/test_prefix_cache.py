"""What clients see of the prefix cache: counts that are true, and walls between API keys and between salts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import FakeDraftingRunner, FakeRunner
from tests.live import DRAFTING_MODES, MODEL, MODES, LiveServer, live_server

PROMPT = "a beginning that many requests have in common, "
BLOCK = 4  # tokens in a block of the fake; its tokens are characters
WHOLE = (len(PROMPT) - 1) // BLOCK * BLOCK


def ask(server: LiveServer, prompt: str = PROMPT, *, key: str | None = None, **fields: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 3, "temperature": 0, **fields}
    response = server.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


@pytest.mark.parametrize("mode", sorted({*MODES, *DRAFTING_MODES}))
def test_cached_tokens_are_what_the_server_did_not_compute(tmp_path: Path, mode: str) -> None:
    with live_server(tmp_path, FakeDraftingRunner(0.6), mode) as server:
        found = []
        for prompt in (PROMPT, PROMPT, PROMPT + "but not this", PROMPT[:10]):
            before = server.status()
            answer = ask(server, prompt, max_tokens=1)
            after = server.status()
            num_computed = after["num_prefill_tokens"] - before["num_prefill_tokens"]
            assert cached(answer) == answer["usage"]["prompt_tokens"] - num_computed
            saved = [status["prefix_cache"]["num_saved_tokens"] for status in (before, after)]
            assert cached(answer) == saved[1] - saved[0]
            found.append(cached(answer))
    assert found == [0, WHOLE, WHOLE, 8]


def test_chat_and_streams_report_it_too(tmp_path: Path) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    with live_server(tmp_path, FakeRunner()) as server:
        first = server.post("/v1/chat/completions", **chat)
        again = server.post("/v1/chat/completions", **chat, n=3)
        body = {"model": MODEL, **chat, "stream": True, "stream_options": {"include_usage": True}}
        stream = server.client.post("/v1/chat/completions", json=body).text
    num_whole = (first["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK
    assert (cached(first), cached(again)) == (0, num_whole)
    assert f'"prompt_tokens_details":{{"cached_tokens":{num_whole}}}' in stream.replace(" ", "")


def test_choices_of_one_prompt_compute_it_once_and_it_was_not_cached(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner()) as server:
        answer = ask(server, n=4, max_tokens=1)
        assert cached(answer) == 0
        assert server.status()["num_prefill_tokens"] < 1.5 * len(PROMPT)


def test_the_next_turn_finds_the_answer_of_the_last_one(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner()) as server:
        first = ask(server, max_tokens=20)
        prompt = PROMPT + first["choices"][0]["text"]
        assert cached(ask(server, prompt + ", and then?")) >= len(prompt) - BLOCK


def test_two_api_keys_share_nothing(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), api_key=("one", "other")) as server:
        authorised = {"authorization": "Bearer one"}

        def counters() -> dict[str, Any]:
            status: dict[str, Any] = server.client.get("/v1/status", headers=authorised).json()["prefix_cache"]
            return status

        assert [cached(ask(server, key="one")) for _ in range(2)] == [0, WHOLE]
        before = counters()
        assert cached(ask(server, key="other")) == 0
        after = counters()
        assert (after["num_hits"], after["num_saved_tokens"]) == (before["num_hits"], before["num_saved_tokens"])
        assert after["num_blocks"] == 2 * before["num_blocks"]
        assert cached(ask(server, key="other")) == WHOLE


def test_salts_separate_the_users_of_one_key(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner()) as server:
        salts = [None, "alice", "bob", None, "alice", "bob"]
        found = [cached(ask(server, **({"cache_salt": salt} if salt else {}))) for salt in salts]
    assert found == [0, 0, 0, WHOLE, WHOLE, WHOLE]


def test_off_is_off(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), prefix_cache="off") as server:
        assert [cached(ask(server)) for _ in range(2)] == [0, 0]
        status = server.status()["prefix_cache"]
    assert status == {
        "is_on": False,
        "num_blocks": 0,
        "num_hits": 0,
        "num_queried_tokens": 0,
        "num_saved_tokens": 0,
        "num_evictions": 0,
    }


def test_cached_blocks_are_free_and_make_room(tmp_path: Path) -> None:
    """A cache of 24 blocks takes prompts of 20 blocks one after the other."""
    with live_server(tmp_path, FakeRunner(num_blocks=24)) as server:
        for number in range(3):
            ask(server, str(number) * 80)
            status = server.status()
            assert status["cache_blocks_used"] == 0
            assert status["prefix_cache"]["num_blocks"] >= 20
        assert status["prefix_cache"]["num_evictions"] >= 32


def test_metrics_have_our_names_and_vllms(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner()) as server:
        for _ in range(2):
            ask(server)
        text = server.client.get("/metrics").text
        status = server.status()["prefix_cache"]
    found = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert {
        "mtplx_prefix_cache_blocks": status["num_blocks"],
        "mtplx_prefix_cache_hits_total": 1,
        "mtplx_prefix_cache_saved_tokens_total": WHOLE,
        "mtplx_prefix_cache_evictions_total": 0,
        "vllm:prefix_cache_queries_total": 2 * len(PROMPT),
        "vllm:prefix_cache_hits_total": WHOLE,
    }.items() <= found.items()
