"""Which mode and depth come of the settings and of the runner's head, and what is refused at launch."""

from __future__ import annotations

from typing import Any

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.depth import AdaptiveDepth, FixedDepth
from mtplx.batching.state import SchedulerMode
from mtplx.config import Settings, load_settings
from mtplx.errors import ConfigError
from mtplx.server.assemble import build_core
from mtplx.server.modes import make_scheduler, make_speculator, resolve_depth, resolve_mode
from tests.fakes import FakeDraftingRunner, FakeRunner, flat_costs

COHORT = SchedulerMode.MTP_COHORT_EXPERIMENTAL


def settings(**given: Any) -> Settings:
    return Settings(**given)


def refusal(max_draft_depth: int = 0, **given: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve_mode(settings(**given), max_draft_depth=max_draft_depth)
    return caught.value


def test_the_default_mode_follows_the_head() -> None:
    assert resolve_mode(settings(), max_draft_depth=8) is SchedulerMode.MTP_BATCH
    assert resolve_mode(settings(), max_draft_depth=0) is SchedulerMode.AR_BATCH


@pytest.mark.parametrize("mode", ["mtp_batch", "hyper"])
def test_without_a_head_the_drafting_modes_say_what_is_missing(mode: str) -> None:
    error = refusal(scheduler_mode=mode)
    assert error.parameter == "--scheduler-mode"
    assert "--draft-head" in str(error)
    assert "mtplx train-head" in str(error)
    assert "choose one of serial, cooperative, ar_batch" in str(error)
    assert str(error).count("hyper") == (mode == "hyper")


@pytest.mark.parametrize("max_draft_depth", [0, 8])
def test_cohorts_are_refused_unless_they_are_opened_and_the_sentence_says_how(max_draft_depth: int) -> None:
    error = refusal(max_draft_depth, scheduler_mode="mtp_cohort_experimental")
    assert error.parameter == "--scheduler-mode"
    assert "--experimental-mtp-cohorts" in str(error)
    assert "MTPLX_EXPERIMENTAL_MTP_COHORTS=1" in str(error)
    there = "serial, cooperative, ar_batch, mtp_batch, hyper" if max_draft_depth else "serial, cooperative, ar_batch"
    assert str(error).endswith(f"choose one of {there}")


@pytest.mark.parametrize("max_draft_depth", [0, 8])
def test_cohorts_that_are_opened_run_with_and_without_a_head(max_draft_depth: int) -> None:
    given = settings(scheduler_mode="mtp_cohort_experimental", experimental_mtp_cohorts=True, draft_depth=8)
    assert resolve_mode(given, max_draft_depth=max_draft_depth) is COHORT
    assert resolve_depth(given, COHORT, max_draft_depth=max_draft_depth) == 8


def test_other_modes_are_what_they_were_when_cohorts_are_opened() -> None:
    assert resolve_mode(settings(experimental_mtp_cohorts=True), max_draft_depth=8) is SchedulerMode.MTP_BATCH
    error = refusal(0, scheduler_mode="hyper", experimental_mtp_cohorts=True)
    assert str(error).endswith("choose one of serial, cooperative, ar_batch, mtp_cohort_experimental")


@pytest.mark.parametrize(("variable", "is_open"), [("1", True), ("0", False), (None, False)])
def test_the_variable_opens_cohorts(monkeypatch: pytest.MonkeyPatch, variable: str | None, is_open: bool) -> None:
    if variable is not None:
        monkeypatch.setenv("MTPLX_EXPERIMENTAL_MTP_COHORTS", variable)
    assert load_settings({}).experimental_mtp_cohorts is is_open


@pytest.mark.parametrize(
    ("max_draft_depth", "given", "says"),
    [
        (0, {"draft_depth": 2}, "(docs/heads.md says which there are), or make one with mtplx train-head"),
        (0, {"draft_depth": 1, "scheduler_mode": "serial"}, "there is no draft head"),
        (8, {"draft_depth": 2, "scheduler_mode": "ar_batch"}, "ar_batch never drafts"),
        (3, {"draft_depth": 4}, "at most 3"),
    ],
)
def test_a_depth_that_nothing_can_draft_is_refused(max_draft_depth: int, given: dict[str, Any], says: str) -> None:
    error = refusal(max_draft_depth, **given)
    assert error.parameter == "--draft-depth"
    assert says in str(error)


@pytest.mark.parametrize("mode", ["serial", "hyper"])
def test_modes_of_width_one_refuse_another(mode: str) -> None:
    error = refusal(8, scheduler_mode=mode, decode_batch_max=4)
    assert error.parameter == "--decode-batch-max"
    assert f"--scheduler-mode {mode}, whose width is 1" in str(error)
    assert resolve_mode(settings(scheduler_mode=mode, decode_batch_max=1), max_draft_depth=8) == mode


@pytest.mark.parametrize(
    ("mode", "asked", "max_draft_depth", "depth"),
    [
        ("serial", "auto", 8, 0),
        ("serial", 3, 8, 3),
        ("cooperative", "auto", 8, None),
        ("cooperative", "auto", 0, 0),
        ("ar_batch", "auto", 8, 0),
        ("mtp_batch", "auto", 8, None),
        ("mtp_batch", 0, 8, 0),
        ("hyper", "auto", 8, None),
        ("hyper", 8, 8, 8),
        ("mtp_cohort_experimental", "auto", 8, None),
        ("mtp_cohort_experimental", "auto", 0, None),
        ("mtp_cohort_experimental", 0, 8, 0),
    ],
)
def test_auto_is_none_in_serial_and_adaptive_elsewhere(
    mode: str, asked: Any, max_draft_depth: int, depth: int | None
) -> None:
    found = resolve_depth(settings(draft_depth=asked), SchedulerMode(mode), max_draft_depth=max_draft_depth)
    assert found == depth


def test_a_speculator_is_made_only_where_something_is_to_be_decided() -> None:
    assert make_speculator(0, None, prefill_chunk_tokens=16) is None
    fixed = make_speculator(2, None, prefill_chunk_tokens=16)
    adaptive = make_speculator(None, flat_costs(), prefill_chunk_tokens=16)
    assert fixed is not None
    assert adaptive is not None
    assert isinstance(fixed.policy, FixedDepth)
    assert isinstance(adaptive.policy, AdaptiveDepth)


@pytest.mark.parametrize("mode", ["serial", "hyper"])
def test_width_one_is_within_any_maximum(mode: str) -> None:
    scheduler = make_scheduler(SchedulerMode(mode), BlockAllocator(8, 4), decode_batch_max=1, prefill_chunk_tokens=16)
    assert scheduler.max_running == 1


class TestBuildCore:
    """What a server's start does once the runner is loaded."""

    def test_a_head_gives_mtp_batch_with_measured_costs(self) -> None:
        core = build_core(settings(prefill_chunk_tokens=16), FakeDraftingRunner())
        assert core.scheduler.mode is SchedulerMode.MTP_BATCH
        drafting = core.status().drafting
        assert drafting is not None
        assert drafting.costs is not None
        assert drafting.costs.step.of(1) > 0

    def test_no_head_refuses_and_falls_back_as_resolve_mode_says(self) -> None:
        assert build_core(settings(), FakeRunner()).scheduler.mode is SchedulerMode.AR_BATCH
        with pytest.raises(ConfigError, match="needs a draft head"):
            build_core(settings(scheduler_mode="hyper"), FakeRunner())

    def test_cohorts_without_a_head_draft_by_costs_of_steps(self) -> None:
        given = settings(scheduler_mode=COHORT, experimental_mtp_cohorts=True, prefill_chunk_tokens=16)
        core = build_core(given, FakeRunner())
        costs = core.status().drafting.costs
        assert core.scheduler.mode is COHORT
        assert costs is not None
        assert costs.step.of(8) > 0 == costs.draft.of(8, 8)

    def test_a_head_that_guesses_two_is_never_asked_for_more(self) -> None:
        runner = FakeDraftingRunner()
        runner.max_draft_depth = 2
        with pytest.raises(ConfigError, match="at most 2"):
            build_core(settings(draft_depth=3), runner)
