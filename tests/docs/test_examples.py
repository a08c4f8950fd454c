"""Every file under examples/ runs as it is written; a new one that nothing runs fails here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeRunner
from tests.live import MODEL, LiveServer, live_server

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    runner = FakeRunner(script=lambda history: ord("a") + len(history) % 26)
    with live_server(tmp_path_factory.mktemp("model"), runner) as server:
        yield server


def run(*command: str | Path) -> str:
    completed = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_all_examples_are_run_here() -> None:
    names = ["chat.py", "curl.sh", "inprocess.py", "status.py", "structured.py"]
    assert sorted(path.name for path in EXAMPLES.iterdir()) == names


def test_chat_streams_an_answer(server: LiveServer) -> None:
    printed = run(sys.executable, EXAMPLES / "chat.py", f"{server.url}/v1")
    assert len(printed.strip()) == 60  # tokens are letters here


def test_curl_gets_a_list_an_answer_and_a_stream(server: LiveServer) -> None:
    printed = run("sh", EXAMPLES / "curl.sh", f"{server.url}/v1", MODEL)
    assert f'"id":"{MODEL}"' in printed.replace(" ", "")
    assert '"chat.completion"' in printed
    assert printed.rstrip().endswith("data: [DONE]")


def test_status_names_the_mode_that_runs(server: LiveServer) -> None:
    program = (EXAMPLES / "status.py").read_text().replace("http://localhost:8000", server.url)
    assert run(sys.executable, "-c", program) == "ar_batch\n"


def test_structured_reads_an_answer_into_a_class(server: LiveServer) -> None:
    printed = run(sys.executable, EXAMPLES / "structured.py", f"{server.url}/v1")
    assert re.fullmatch(r"name='\w{0,20}' length_km=\d{1,4} continent='(Africa|America|Asia|Europe)'\n", printed)


@pytest.mark.real_model
def test_inprocess_completes_three_prompts() -> None:
    printed = run(sys.executable, EXAMPLES / "inprocess.py")
    assert len(printed.splitlines()) == 3
    assert "Paris" in printed
