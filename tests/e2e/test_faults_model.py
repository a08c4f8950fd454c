"""A model that breaks, seen over HTTP: the request that it breaks on is told so, in words and with a code."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_behaviours_load import is_idle
from tests.fakes import FakeDraftingRunner, History
from tests.faults import BAD_LOGITS, SickRunner
from tests.live import ALL_MODES, MODEL, LiveServer, live_server

NEIGHBOURS = [{"prompt": f"well {k}", "max_tokens": 30, "temperature": k % 2, "seed": k} for k in range(4)]
SAMPLED = {"prompt": "four", "max_tokens": 8, "temperature": 1, "seed": 5, "n": 3, "return_token_ids": True}


def is_sick(history: History) -> bool:
    """The third token after a prompt that has an exclamation mark."""
    return ord("!") in history and len(history) == history.index(ord("!")) + 3


@pytest.mark.parametrize("bad", BAD_LOGITS)
@pytest.mark.parametrize("mode", ALL_MODES)
def test_bad_logits_are_a_clear_error_streamed_and_not_and_neighbours_go_on(
    tmp_path: Path, mode: str, bad: str
) -> None:
    with live_server(tmp_path, SickRunner(is_sick, BAD_LOGITS[bad]), mode) as server, ThreadPoolExecutor(6) as pool:
        expected = [server.post("/v1/completions", **body)["choices"] for body in NEIGHBOURS]
        good = [pool.submit(server.post, "/v1/completions", **body) for body in NEIGHBOURS]
        whole = server.client.post("/v1/completions", json={"model": MODEL, "prompt": "sick!", "max_tokens": 9})
        streamed = stream(server, prompt="sick!", max_tokens=9, return_token_ids=True)
        assert [answer.result()["choices"] for answer in good] == expected
        assert is_idle(server)
        assert server.status()["num_finished"]["error"] == 2
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "generation_failed")
    assert "logits" in whole.json()["error"]["message"]
    *pieces, last = streamed
    assert last["error"] == whole.json()["error"]
    assert sum(len(piece["choices"][0]["token_ids"]) for piece in pieces) == 2, "what came before stands"


@pytest.mark.parametrize("mode", ["ar_batch", "mtp_batch"])
def test_one_choice_that_breaks_fails_its_request_and_lets_the_other_choices_go(tmp_path: Path, mode: str) -> None:
    with live_server(tmp_path / "well", FakeDraftingRunner(0.6), mode) as server:
        choices = server.post("/v1/completions", **SAMPLED)["choices"]
    breaking = (*b"four", *choices[1]["token_ids"][:5])
    with live_server(tmp_path / "sick", SickRunner(lambda history: history == breaking), mode) as server:
        whole = server.client.post("/v1/completions", json={"model": MODEL, **SAMPLED})
        *_, last = stream(server, **SAMPLED)
        alone = server.post("/v1/completions", **{**SAMPLED, "n": 1})["choices"]
        assert is_idle(server)
        finished = server.status()["num_finished"]
    assert whole.json() == last
    assert last["error"]["code"] == "generation_failed"
    assert alone == choices[:1]
    assert finished["error"] == 2
    assert sum(finished.values()) == 7, "every choice is counted once"


def stream(server: LiveServer, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream that ends without [DONE]."""
    text = server.client.post("/v1/completions", json={"model": MODEL, "stream": True, **body}).text
    assert "[DONE]" not in text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
