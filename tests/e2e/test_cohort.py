"""What clients see of mtp_cohort_experimental: the `cohort` field, walls between API keys, sources and counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeDraftingRunner, FakeRunner
from tests.live import COHORT, DRAFTING_MODES, MODEL, MODES, LiveServer, live_server

PROMPT = "a beginning that many requests have in common, "


def ask(server: LiveServer, prompt: str = PROMPT, *, key: str | None = None, **fields: Any) -> str:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "temperature": 0, **fields}
    response = server.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def cohorts(server: LiveServer, key: str | None = None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    found: dict[str, Any] = server.client.get("/v1/status", headers=headers).json()["cohorts"]
    return found


@pytest.mark.parametrize("mode", sorted({*MODES, *DRAFTING_MODES} - {COHORT}))
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_field_is_refused_by_name_where_it_would_do_nothing(tmp_path: Path, mode: str, path: str) -> None:
    content: dict[str, Any] = (
        {"prompt": "hi"} if "chat" not in path else {"messages": [{"role": "user", "content": "hi"}]}
    )
    with live_server(tmp_path, FakeDraftingRunner(0.6), mode) as server:
        response = server.client.post(path, json={"model": MODEL, **content, "cohort": "team"})
        assert server.status()["cohorts"] is None
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("cohort", "unsupported_parameter")
    assert COHORT in error["message"]


def test_a_named_cohort_shares_drafts_whatever_its_prompts_begin_with(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), COHORT, draft_depth=8) as server:
        text = ask(server, cohort="team")
        for prompt, cohort in (("x" + PROMPT + text, "other"), ("x" + PROMPT + text, "team")):
            before = cohorts(server)
            ask(server, prompt, cohort=cohort, max_tokens=2)
            assert cohorts(server)["num_indexes"] == 1 + (cohort == "other") or cohort == "team"
            assert cohorts(server)["index_bytes"] >= before["index_bytes"]
        assert server.status()["cohorts"]["num_indexes"] == 2


def test_the_same_again_is_drafted_from_what_was_said(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), COHORT, draft_depth=8) as server:
        first = ask(server)
        before = server.status()
        assert ask(server) == first
        after = server.status()
    assert after["num_decode_tokens"] - before["num_decode_tokens"] <= 10
    assert after["cohorts"]["index"]["num_accepted_tokens"] >= 30
    assert after["cohorts"]["head"] == {"num_draft_tokens": 0, "num_accepted_tokens": 0}
    assert after["cohorts"]["num_saved_tokens"] == after["prefix_cache"]["num_saved_tokens"] > 0


def test_two_api_keys_with_equal_prompts_share_nothing(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), COHORT, draft_depth=8, api_key=("one", "other")) as server:
        texts = [ask(server, key="one", cohort="team"), ask(server, key="other", cohort="team")]
        apart = cohorts(server, "one")
        texts.append(ask(server, key="one", cohort="team"))
        together = cohorts(server, "one")
    assert len(set(texts)) == 1
    assert (apart["index"]["num_draft_tokens"], apart["num_saved_tokens"], apart["num_indexes"]) == (0, 0, 2)
    assert together["index"]["num_accepted_tokens"] > 0 < together["num_saved_tokens"]


def test_salts_separate_the_users_of_one_key(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), COHORT, draft_depth=8) as server:
        for salt in ("alice", "bob"):
            ask(server, cache_salt=salt)
        assert cohorts(server)["index"]["num_draft_tokens"] == 0
        ask(server, cache_salt="alice")
        assert cohorts(server)["index"]["num_accepted_tokens"] > 0


def test_many_at_once_get_the_answers_that_each_gets_alone(tmp_path: Path) -> None:
    prompts = [PROMPT + tail for tail in ("one", "two", "three", "one", "two")] * 3
    wishes = [{"temperature": 0.8, "seed": number % 4} for number in range(len(prompts))]
    with live_server(tmp_path, FakeRunner(), "serial") as server:
        alone = [ask(server, prompt, **wish) for prompt, wish in zip(prompts, wishes, strict=True)]
    with live_server(tmp_path, FakeDraftingRunner(0.5), COHORT) as server, ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(ask, server, prompt, **wish) for prompt, wish in zip(prompts, wishes, strict=True)]
        assert [future.result() for future in futures] == alone
        assert (cohorts(server)["num_cohorts"], cohorts(server)["num_members"]) == (0, 0)


def test_an_idle_server_has_no_members(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), COHORT, draft_depth=8) as server:
        for _ in range(2):
            ask(server, cohort="team")
            found, page = cohorts(server), server.client.get("/metrics").text
            assert (found["num_cohorts"], found["num_members"]) == (0, 0)
            assert "\nmtplx_cohorts 0.0\n" in page
            assert "\nmtplx_cohort_members 0.0\n" in page
        assert found["index"]["num_accepted_tokens"] > 0, "they were a cohort"
