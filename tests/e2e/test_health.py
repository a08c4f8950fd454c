"""Health follows the worker: well, hanging in a step, and well again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.test_behaviours_load import Gate, eventually, post
from tests.fakes import FakeRunner
from tests.faults import PATIENCE_S
from tests.live import live_server


def test_health_is_503_while_a_step_hangs_and_200_when_it_has_ended(tmp_path: Path) -> None:
    gate = Gate()
    with (
        live_server(tmp_path, FakeRunner(fault=gate), step_timeout_s=0.05) as server,
        ThreadPoolExecutor(1) as pool,
    ):

        def health() -> int:
            return server.client.get("/health").status_code

        assert health() == 200
        answer = pool.submit(post, server, max_tokens=1)
        assert gate.reached.wait(PATIENCE_S)
        assert eventually(lambda: health() == 503)
        assert server.status()["alive"], "a step that hangs may still end"
        gate.open()
        assert answer.result(PATIENCE_S).status_code == 200
        assert eventually(lambda: health() == 200)
