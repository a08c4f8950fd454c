"""One API key's load is bounded, counted by choices, and doesn't hold up another's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from mtplx.config import Settings, read_api_keys
from mtplx.errors import ConfigError
from tests.e2e.test_behaviours_load import Gate, eventually
from tests.fakes import FakeRunner
from tests.faults import PATIENCE_S
from tests.live import MODEL, LiveServer, live_server

KEYS = (SecretStr("first"), SecretStr("second"))


def post(server: LiveServer, key: str, **fields: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 2, **fields}
    return server.client.post("/v1/completions", json=body, headers=headers)


def test_a_key_has_its_share_and_another_has_its_own(tmp_path: Path) -> None:
    gate = Gate()
    limits = {"api_key": KEYS, "max_requests_per_key": 4, "decode_batch_max": 2, "max_queue": 100}
    with live_server(tmp_path, FakeRunner(fault=gate), **limits) as server, ThreadPoolExecutor(8) as pool:
        held = [pool.submit(post, server, "first", n=3), pool.submit(post, server, "first")]
        assert gate.reached.wait(PATIENCE_S)
        assert eventually(lambda: server.service.streams.num_live == 4)
        for fields in ({}, {"n": 2}, {"stream": True}):
            refused = post(server, "first", **fields)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("too_many_requests", None)
            assert "first" not in error["message"]
        never = post(server, "first", n=5)
        assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
        other = [pool.submit(post, server, "second", n=2), pool.submit(post, server, "second", n=2)]
        assert eventually(lambda: server.service.streams.num_live == 8)
        assert post(server, "second").status_code == 429
        gate.open()
        assert [answer.result(PATIENCE_S).status_code for answer in (*held, *other)] == [200] * 4
        assert post(server, "first", n=4).status_code == 200, "what has ended counts no more"
        page = server.client.get("/metrics", headers={"authorization": "Bearer first"}).text
    assert 'mtplx_errors_total{code="too_many_requests"} 4.0' in page


def test_prompts_of_a_list_count_each(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(), api_key=KEYS, max_requests_per_key=4) as server:
        assert post(server, "first", prompt=["a", "b"], n=2).status_code == 200
        never = post(server, "first", prompt=["a"] * 5)
        assert (never.status_code, never.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("mode", ["serial", "cooperative", "ar_batch"])
def test_a_key_with_one_request_is_served_before_the_other_keys_many(tmp_path: Path, mode: str) -> None:
    """Width 1: twelve of one key wait when the other's comes; it starts after the one that runs, or one more."""
    gate = Gate()
    settings = {"api_key": KEYS, "decode_batch_max": 1}
    with live_server(tmp_path, FakeRunner(fault=gate), mode, **settings) as server, ThreadPoolExecutor(14) as pool:
        asked = [pool.submit(post, server, "first", prompt=f"{letter} is of the first") for letter in "abcdefghijkl"]
        assert eventually(lambda: server.service.streams.num_live == 12)
        asked.append(pool.submit(post, server, "second", prompt="z is of the second"))
        assert eventually(lambda: server.service.streams.num_live == 13)
        gate.open()
        assert [answer.result(PATIENCE_S).status_code for answer in asked] == [200] * 13
        order = "".join(chr(row.token_ids[0]) for plan in server.runner.plans for row in plan.rows if row.start == 0)
    assert sorted(order) == sorted("abcdefghijklz")
    assert order.index("z") <= 2


def test_a_limit_for_each_key_needs_keys() -> None:
    with pytest.raises(ConfigError, match="--max-requests-per-key needs keys"):
        read_api_keys(Settings(max_requests_per_key=3))
    assert read_api_keys(Settings(max_requests_per_key=3, api_key=KEYS)) == KEYS
