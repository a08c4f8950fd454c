"""Deadlines and priorities through HTTP, as the official client sees them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from mtplx.batching.state import StepPlan
from tests.e2e.test_behaviours_load import eventually
from tests.fakes import FakeDraftingRunner
from tests.faults import PATIENCE_S
from tests.live import COHORT, DRAFTING_MODES, MODEL, MODES, LiveServer, live_server

HI = [{"role": "user", "content": "hi"}]


class LateRunner(FakeDraftingRunner):
    """After so many steps of an answer its deadline has passed: the engine's clock is the test's."""

    def __init__(self) -> None:
        super().__init__(0.6, fault=self._tick)
        self.num_steps = 0
        self.now_s = 0.0

    def _tick(self, plan: StepPlan) -> None:
        self.num_steps -= 1
        if self.num_steps == 0:
            self.now_s = 1000.0


def late_server(folder: Path, mode: str, num_steps: int, **settings: Any) -> Iterator[LiveServer]:
    runner = LateRunner()
    with live_server(folder, runner, mode, **settings) as server:
        server.service._assembly.core._clock = lambda: runner.now_s
        server.service.streams._clock = lambda: 0.0
        runner.num_steps = num_steps
        yield server


@pytest.mark.parametrize("mode", sorted({*MODES, *DRAFTING_MODES}))
@pytest.mark.parametrize("by_server", [False, True])
def test_an_answer_ends_with_what_it_has(tmp_path: Path, mode: str, by_server: bool) -> None:
    settings: dict[str, Any] = {"request_timeout_s": 900.0} if by_server else {}
    for server in late_server(tmp_path, mode, 4, **settings):
        asked: dict[str, Any] = {} if by_server else {"extra_body": {"timeout": 900}}
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=200, seed=1, **asked)  # type: ignore[call-overload]
        [choice] = answer.choices
        assert choice.finish_reason == "timeout"
        assert 0 < answer.usage.completion_tokens < 200
        assert len(choice.message.content) == answer.usage.completion_tokens
        status = server.status()
        assert (status["num_running"], status["num_waiting"], status["cache_blocks_used"]) == (0, 0, 0)
        assert status["num_finished"]["timeout"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_at_all_is_an_error(tmp_path: Path, stream: bool) -> None:
    for server in late_server(tmp_path, "ar_batch", 1, prefill_chunk_tokens=2):
        body = {"model": MODEL, "prompt": "A long prompt", "max_tokens": 200, "timeout": 900, "stream": stream}
        response = server.client.post("/v1/completions", json=body)
        if stream:
            assert response.text.rstrip().endswith("}")
            assert '"code":"deadline_exceeded"' in response.text
        else:
            assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("mode", sorted({*MODES, *DRAFTING_MODES} - {COHORT}))
def test_the_urgent_start_before_those_who_wait_already(tmp_path: Path, mode: str) -> None:
    """One place and one who holds it until both others wait; the later, urgent one is next."""
    may_go = threading.Event()
    may_go.set()

    def hold(plan: StepPlan) -> None:
        assert may_go.wait(PATIENCE_S)

    runner = FakeDraftingRunner(fault=hold)
    width = {} if mode in ("serial", "hyper") else {"decode_batch_max": 1}
    with live_server(tmp_path, runner, mode, **width) as server:

        def ask(name: str, priority: int) -> None:
            server.post("/v1/completions", prompt=name, max_tokens=3, priority=priority)

        may_go.clear()
        threads = []
        for num_waiting, (name, priority) in enumerate([("first", 0), ("patient", 0), ("urgent", 1)]):
            threads.append(threading.Thread(target=ask, args=(name, priority)))
            threads[-1].start()
            # The order of arrival is what this is about; the first has its place once it is in a step.
            assert eventually(lambda: server.service.streams.num_live > num_waiting)  # noqa: B023
            assert eventually(lambda: any(row.seq_id == 0 for plan in runner.plans for row in plan.rows))
        may_go.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert list(dict.fromkeys(row.seq_id for plan in runner.plans for row in plan.rows if row.seq_id >= 0)) == [0, 2, 1]
