"""Many clients, small caches, clients that leave and steps that fail: nobody waits for ever and nothing is lost."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mtplx.batching.state import StepPlan
from tests.fakes import FakeRunner, saying
from tests.faults import PATIENCE_S
from tests.live import ALL_MODES, MODEL, MODES, LiveServer, fake_for, live_server

WIDTH_2 = dict.fromkeys(ALL_MODES, 2) | {"serial": 1, "hyper": 1}


class Gate:
    """A fault for `FakeRunner` that holds every step until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE_S)

    def open(self) -> None:
        self._open.set()


def eventually(claim: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    end = time.monotonic() + within_s
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_idle(server: LiveServer) -> bool:
    status = server.status()
    return (status["num_running"], status["num_waiting"], status["cache_blocks_used"]) == (0, 0, 0)


def post(server: LiveServer, **body: Any) -> httpx.Response:
    return server.client.post("/v1/completions", json={"model": MODEL, "prompt": "hello", **body})


def test_b41_ar_batch_alone_really_batches(tmp_path: Path) -> None:
    gate = Gate()
    with live_server(tmp_path, FakeRunner(fault=gate), "ar_batch") as server, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, server, max_tokens=20) for _ in range(4)]
        assert eventually(lambda: server.service.streams.num_live == 4)
        gate.open()
        assert all(answer.result().status_code == 200 for answer in answers)
        widths = server.status()["width_histogram"]
    assert int(widths["4"]) >= 15


@pytest.mark.parametrize("mode", ["cooperative", "ar_batch", "mtp_batch", "mtp_cohort_experimental"])
def test_b44_a_long_prompt_leaves_gaps_of_one_chunk(tmp_path: Path, mode: str) -> None:
    """Between two tokens of the running stream there is never more than one chunk of the other's prompt."""
    both_are_here = threading.Event()

    def fault(plan: StepPlan) -> None:
        if len(runner.plans) == 6:
            assert both_are_here.wait(PATIENCE_S)

    runner = fake_for(mode, num_blocks=2048, max_position=6000, fault=fault)
    with live_server(tmp_path, runner, mode, prefill_chunk_tokens=64) as server, ThreadPoolExecutor(2) as pool:
        running = pool.submit(post, server, max_tokens=200, ignore_eos=True)
        assert eventually(lambda: len(runner.plans) == 6)
        long = pool.submit(post, server, prompt="L" * 4000, max_tokens=4)
        assert eventually(lambda: server.service.streams.num_live == 2)
        both_are_here.set()
        assert running.result().status_code == long.result().status_code == 200
    first = runner.plans[0].rows[0].seq_id
    gap = 0
    gaps: list[int] = []
    for plan in runner.plans:
        others = sum(len(row.token_ids) for row in plan.rows if row.seq_id != first)
        gap += others
        if any(row.seq_id == first for row in plan.rows):
            gaps.append(gap)
            gap = 0
    assert 32 <= max(gaps) <= 64, "chunks ran between its tokens, one at a time"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_b45_huge_and_small_requests_all_end_in_a_small_cache(tmp_path: Path, mode: str) -> None:
    runner = fake_for(mode, num_blocks=40, block_size=4, max_position=512)  # 160 tokens
    with live_server(tmp_path, runner, mode) as server, ThreadPoolExecutor(9) as pool:
        huge = pool.submit(post, server, prompt="H" * 120, max_tokens=40)
        small = [pool.submit(post, server, prompt=f"s{k}", max_tokens=10, temperature=0) for k in range(8)]
        impossible = post(server, prompt="I" * 150, max_tokens=30)
        assert impossible.status_code == 400
        assert "cache" in impossible.json()["error"]["message"]
        for answer in (huge, *small):
            assert answer.result(PATIENCE_S).status_code == 200
        assert is_idle(server)


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("streaming", [True, False])
def test_b51_a_client_that_leaves_costs_nothing_more(tmp_path: Path, mode: str, streaming: bool) -> None:
    runner = fake_for(mode, num_blocks=2048, max_position=8000, fault=lambda plan: time.sleep(0.001))
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 7000, "stream": streaming}
    with live_server(tmp_path, runner, mode) as server:
        _post_and_leave(server, json.dumps(body).encode(), leave_when=lambda: len(runner.plans) > 3)
        assert eventually(lambda: is_idle(server))
        assert runner.plans[-1].rows[-1].start < 6000, "it stopped long before the answer's end"


def _post_and_leave(server: LiveServer, body: bytes, leave_when: Callable[[], bool]) -> None:
    """Sends a request over a bare socket and drops the connection once `leave_when` holds."""
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert eventually(leave_when)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_b55_one_bad_request_fails_alone(tmp_path: Path, mode: str) -> None:
    """The request whose prompt holds a '!' makes every step it is in raise; the others in that step go on."""
    poisoned: set[int] = set()

    def fault(plan: StepPlan) -> None:
        poisoned.update(row.seq_id for row in plan.rows if row.start == 0 and ord("!") in row.token_ids)
        if any(row.seq_id in poisoned and row.num_logits for row in plan.rows):
            raise RuntimeError("this request breaks the model")

    with live_server(tmp_path, fake_for(mode, fault=fault), mode) as server, ThreadPoolExecutor(5) as pool:
        good = [pool.submit(post, server, prompt=f"good {k}", max_tokens=30, temperature=0) for k in range(4)]
        bad = post(server, prompt="bad!", max_tokens=30)
        answers = [future.result(PATIENCE_S) for future in good]
        after = post(server, prompt="good 0", max_tokens=30, temperature=0)
        assert is_idle(server)
        assert server.client.get("/health").status_code == 200
    assert bad.status_code == 500
    assert bad.json()["error"]["code"] == "generation_failed"
    assert "breaks" not in bad.text, "no inner detail leaks"
    assert [answer.status_code for answer in answers] == [200] * 4
    assert after.json()["choices"][0]["text"] == answers[0].json()["choices"][0]["text"]


def test_b55_a_dead_engine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtplx.server.openai.DEATH_GRACE_S", PATIENCE_S)

    def fault(plan: StepPlan) -> None:
        raise SystemError("the device is gone")

    with live_server(tmp_path, FakeRunner(fault=fault)) as server:
        client = server.client
        codes = [
            client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 2}).status_code
            for _ in range(17)
        ]
        assert codes == [500] * 15 + [503] * 2
        assert client.get("/health").status_code == 503
        assert client.get("/v1/status").status_code == 200


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("n", [1, 4])
def test_b56_b57_a_full_queue_refuses_at_once_and_counts_choices(tmp_path: Path, mode: str, n: int) -> None:
    """Width 2 (serial 1) and a queue of 4: that many choices are served, all others get 503 while nothing has run."""
    gate = Gate()
    room = (WIDTH_2[mode] + 4) // n
    width = {} if mode in ("serial", "hyper") else {"decode_batch_max": 2}
    with (
        live_server(tmp_path, fake_for(mode, fault=gate), mode, max_queue=4, **width) as server,
        ThreadPoolExecutor(64) as pool,
    ):
        answers: list[Future[httpx.Response]] = [
            pool.submit(post, server, max_tokens=5, n=n, temperature=1) for _ in range(64)
        ]
        assert eventually(lambda: sum(answer.done() for answer in answers) == 64 - room)
        for path in ("/health", "/metrics", "/v1/models", "/v1/status"):
            assert server.client.get(path).status_code == 200
        refused = [answer.result() for answer in answers if answer.done()]
        assert {answer.status_code for answer in refused} == {503}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        gate.open()
        codes = [answer.result(PATIENCE_S).status_code for answer in answers]
        assert codes.count(200) == room
        assert is_idle(server)


@pytest.mark.parametrize("mode", MODES)
def test_bursts_complete_exactly_once_and_leave_the_cache_empty(tmp_path: Path, mode: str) -> None:
    with (
        live_server(tmp_path, FakeRunner(num_blocks=512), mode, max_queue=200) as server,
        ThreadPoolExecutor(64) as pool,
    ):
        for burst in range(2):
            wanted = [3 + (k * 7 + burst) % 9 for k in range(50)]
            answers = list(pool.map(lambda tokens: post(server, max_tokens=tokens), wanted))
            assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == wanted
        parallel = list(pool.map(lambda k: post(server, prompt=f"p{k}", max_tokens=64), range(64)))
        assert [answer.json()["usage"]["completion_tokens"] for answer in parallel] == [64] * 64
        assert is_idle(server)
        metrics = server.client.get("/metrics").text
    assert "164" in metrics, "every request was counted once"


def test_an_answer_that_reached_a_stop_string_counts_as_stopped(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeRunner(script=saying("one END two", prompt_len=5))) as server:
        assert post(server, stop=["END"], max_tokens=40).json()["choices"][0]["finish_reason"] == "stop"
        assert eventually(lambda: server.status()["num_finished"] == {"stop": 1})
        assert is_idle(server)
