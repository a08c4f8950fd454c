"""`mtplx profile` against a hyper server in this process, and its refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtplx.commands.profile import PROMPTS, profile_table, read_conversations, summary
from mtplx.commands.public import main
from mtplx.errors import ConfigError
from tests.fakes import FakeDraftingRunner
from tests.live import LiveServer, live_server
from tests.unit.test_stages import checked_events


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("MTPLX_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(tmp_path / "model", FakeDraftingRunner(0.6), "hyper", draft_depth=3) as server:
        yield server


def test_it_counts_its_own_requests_and_not_the_one_for_warming_up(
    server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.post("/v1/completions", prompt="somebody else's", max_tokens=30)
    assert main(["profile", "--url", server.url, "--max-tokens", "12", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert server.status()["num_finished"] == {"length": 2 + len(PROMPTS)}
    assert page["num_decode_tokens"] == len(PROMPTS) * 11
    assert page["num_steps"] < page["last_step"] == server.status()["num_steps"]


def test_the_table_has_every_stage_and_the_forward_by_tokens(
    server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--url", server.url, "--max-tokens", "20"]) == 0
    printed = capsys.readouterr().out
    names = [line.split("  ")[0] or line.strip().split("  ")[0] for line in printed.splitlines()]
    for name in ("plan", "draft", "forward", "sample and verify", "commit"):
        assert name in names
    assert {"4 tokens", "16 tokens"} <= set(names)
    assert "hand-over, beside the next step" in names
    assert "detokenise, beside the next step" in names
    assert "tokens a step" in printed
    assert "drafts accepted" in printed


def test_prompts_come_from_a_file_and_a_trace_goes_to_one(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.json"
    system = {"messages": [{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}]}
    prompts.write_text(f"a plain one\n\n{json.dumps(system)}\n", encoding="utf-8")
    flags = ["--prompts", str(prompts), "--trace", str(trace), "--max-tokens", "9", "--json"]
    assert main(["profile", "--url", server.url, *flags]) == 0
    page = json.loads(capsys.readouterr().out)
    steps = [e for e in checked_events(json.loads(trace.read_text())) if e.get("cat") == "step"]
    assert len(steps) == page["num_steps"]
    assert sum(event["args"]["emitted"] for event in steps) == 18


def test_lines_are_prompts_unless_they_are_conversations(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('say "x"\n{"messages": [{"role": "user", "content": "y"}], "id": 3}\n[1]\n', encoding="utf-8")
    assert [[message["content"] for message in messages] for messages in read_conversations(path)] == [
        ['say "x"'],
        ["y"],
        ["[1]"],
    ]


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"--prompts .*prompts (can't be read|holds no prompt)"):
        read_conversations(path)


def test_another_mode_is_refused_in_the_servers_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live_server(tmp_path, FakeDraftingRunner(), "mtp_batch", draft_depth=2) as server:
        assert main(["profile", "--url", server.url]) == 1
        assert server.status()["num_steps"] == 0
    assert "start one with --scheduler-mode hyper" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--model", "m"], ["--draft-depth", "2"]])
def test_a_running_server_takes_no_settings(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--url", "http://127.0.0.1:9", *flags]) == 2
    assert "--model and --draft-depth" in capsys.readouterr().err


def test_a_server_that_can_not_start_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--model", str(tmp_path / "nowhere")]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == "mtplx: the server could not start"
    assert len(lines) == 2, "and the server's own sentence"


def test_a_trace_that_can_not_be_written_is_said(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max-tokens", "2", "--trace", str(tmp_path / "no" / "such" / "folder")]
    assert main(["profile", "--url", server.url, *flags]) == 1
    assert "the trace can't be written" in capsys.readouterr().err


def test_a_page_of_nothing_is_shown_too() -> None:
    counts = {"num_steps": 0, "num_dropped": 7, "steps_ms": 0.0, "num_draft_tokens": 0, "tokens_per_step": None}
    page: dict[str, Any] = {"model": "m", "stages": [], "forward_by_tokens": [], **counts}
    assert summary(page) == "m: 0 steps in 0 ms\nthe first 7 steps are no longer kept: send fewer requests"
    assert profile_table(page).row_count == 0
