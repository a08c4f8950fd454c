"""Costs kept between starts: measured once a setup, refused when damaged or no longer true, never a reason to fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtplx.batching.speculation import Costs
from mtplx.config import Settings
from mtplx.model import cost_cache
from mtplx.model.cost_cache import load_costs
from mtplx.server.assemble import build_core
from tests.fakes import FakeDraftingRunner
from tests.unit.test_costs import Timed


def load(root: Path | None, runner: Timed | None = None, **changes: Any) -> Costs:
    """The costs of one start on a machine whose steps take what `Timed` says."""
    runner = runner or Timed()
    given: dict[str, Any] = {"fingerprint": "mtplx-fake", "threads": 2, "max_tokens": 16, **changes}
    return load_costs(runner, **given, root=root, clock=lambda: runner.now_s)


def only_file(root: Path) -> Path:
    (path,) = root.rglob("*.json")
    return path


def test_a_second_start_takes_what_the_first_measured(tmp_path: Path) -> None:
    runner = Timed()
    first, second = load(tmp_path), load(tmp_path, runner)
    assert not first.is_cached
    assert second == replace(first, is_cached=True)
    assert [plan.num_tokens for plan in runner.plans] == [1] * 7, "a look at whether they still hold"
    assert [request.depth for call in runner.draft_calls for request in call] == [1, 1, 1, 1]
    assert [path.name for path in tmp_path.rglob("*.partial")] == []


@pytest.mark.parametrize(
    "change", [{"fingerprint": "another"}, {"threads": 1}, {"threads": None}, {"max_tokens": 17}], ids=str
)
def test_another_setup_is_measured_by_itself(tmp_path: Path, change: dict[str, Any]) -> None:
    load(tmp_path)
    assert not load(tmp_path, **change).is_cached
    assert load(tmp_path, **change).is_cached
    assert load(tmp_path).is_cached, "and leaves the first one's alone"


def test_another_head_build_or_machine_is_another_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path)
    shallow, rebuilt = Timed(), Timed()
    shallow.max_draft_depth = 2
    rebuilt.info = replace(rebuilt.info, build="avx512")
    assert not load(tmp_path, shallow).is_cached
    assert not load(tmp_path, rebuilt).is_cached
    monkeypatch.setattr(cost_cache, "cpu_name", lambda: "a faster one")
    assert not load(tmp_path).is_cached


def test_what_is_not_true_any_more_is_measured_again_and_replaced(tmp_path: Path) -> None:
    slow = 0.003
    fast = load(tmp_path)
    again = load(tmp_path, Timed(slow))
    assert not again.is_cached
    assert again.step.of(1) == pytest.approx(3 * fast.step.of(1))
    assert load(tmp_path, Timed(slow)) == replace(again, is_cached=True)


def test_a_start_keeps_its_costs_where_the_depth_follows_them(tmp_path: Path) -> None:
    def start(**settings: Any) -> None:
        build_core(Settings(prefill_chunk_tokens=16, **settings), FakeDraftingRunner(), "fingerprint", tmp_path)

    start(scheduler_mode="mtp_batch", draft_depth=2)
    assert list(tmp_path.rglob("*")) == []
    start(scheduler_mode="mtp_batch")
    assert json.loads(only_file(tmp_path).read_text())["setup"]["fingerprint"] == "fingerprint"


def damaged(text: str) -> list[str]:
    """The file's text with one thing wrong at a time."""
    data = json.loads(text)
    wrong: list[dict[str, Any]] = [
        {"step_s": []},
        {"step_s": [0.002, 0.001]},
        {"step_after_draft_s": [0.002, 0.001]},
        {"step_after_draft_s": []},
        {"step_s": [0.0, 0.001]},
        {"step_s": ["0.001"]},
        {"draft_level_s": -1.0},
        {"draft_token_s": None},
        {"format_version": 1},
        {"setup": {}},
        {"more": 1},
    ]
    changed = [json.dumps({**data, **change}) for change in wrong]
    infinite = text.replace(str(data["draft_level_s"]), "Infinity")
    return ["", "{}", "[]", text[: len(text) // 2], infinite, "\udcff", *changed]


def test_a_damaged_file_is_measured_again_and_mended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path)
    path = only_file(tmp_path)
    for text in damaged(path.read_text(encoding="utf-8")):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        caplog.clear()
        assert not load(tmp_path).is_cached, text
        assert "measuring again" in caplog.text
        assert load(tmp_path).is_cached


def test_a_folder_that_can_not_be_written_costs_nothing_but_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / cost_cache.FOLDER).write_text("a file is in the way")
    assert not load(tmp_path).is_cached
    assert "can't be kept" in caplog.text
    assert not load(tmp_path).is_cached


def test_without_a_folder_every_start_measures() -> None:
    assert not load(None).is_cached
    assert not load(None).is_cached
