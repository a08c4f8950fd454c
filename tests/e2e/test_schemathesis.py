"""The server against requests that a fuzzer makes from its own OpenAPI description: no 5xx, no hang, true schemas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import FakeRunner
from tests.live import live_server

# It takes 26.0 for a valid integer, as JSON Schema does; the API asks for integers that are written as integers.
EXCLUDED = "positive_data_acceptance"

# Every boundary of every field takes half a minute for each of the larger bodies. Those that are translated are made of
# the same types, and random requests are enough for them.
TRANSLATED = ("--exclude-path", "/v1/messages", "--exclude-path", "/v1/responses")


@pytest.mark.parametrize(
    "phases",
    [("--phases", "examples,fuzzing,stateful"), ("--phases", "coverage", *TRANSLATED)],
    ids=["random", "boundaries"],
)
def test_schemathesis_finds_no_server_error_and_no_hang(tmp_path: Path, phases: tuple[str, ...]) -> None:
    with live_server(tmp_path / "model", FakeRunner(num_blocks=2048), max_queue=1000) as server:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--max-examples", "15", "--seed", "1", "--request-timeout", "20", "--exclude-checks", EXCLUDED),
            *("--generation-database", "none", "--no-color", "--suppress-health-check", "all", "--warnings", "off"),
            *phases,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert server.client.get("/health").status_code == 200
        assert server.post("/v1/completions", prompt="after all that", max_tokens=3)["usage"]["completion_tokens"] == 3
