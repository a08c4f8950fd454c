"""The Prometheus page: what requests took by the engine's clock, under our names and vLLM's; the docs list all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mtplx.batching.cohorts import CohortStatus, SourceCounts
from mtplx.batching.state import FinishReason
from mtplx.server.choice_text import Delta
from mtplx.telemetry.counters import DraftCounts, EngineStatus
from mtplx.telemetry.metrics import VLLM_NAMES, HttpMetrics
from mtplx.telemetry.watch import RequestWatch
from tests.fakes import FakeRunner
from tests.live import MODEL, live_server
from tests.server.fakes import engine_status

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
Samples = Mapping[tuple[str, tuple[str, ...]], float]


def metrics_at(asked_at_s: float, status: EngineStatus | None = None) -> HttpMetrics:
    known = status or engine_status()
    return HttpMetrics(lambda: known, "m", clock=lambda: asked_at_s)


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def play(watch: RequestWatch, number: int, *deltas: Delta) -> None:
    for delta in deltas:
        watch.on_delta(number, delta)


def tokens(num: int, at_s: float, *, started_at_s: float | None = None, ends: bool = False) -> Delta:
    reason = FinishReason.STOP if ends else None
    return Delta(0, "", (1,) * num, (), reason, at_s=at_s, started_at_s=started_at_s)


def test_a_request_is_timed_by_the_engines_clock() -> None:
    """Asked at 10, first step at 12, tokens at 13, 14 and 18, three of them in the middle."""
    metrics = metrics_at(10.0)
    watch = metrics.watch("chat", num_prompt_tokens=7)
    play(watch, 0, tokens(1, 13, started_at_s=12), tokens(3, 14), tokens(1, 18, ends=True))
    found = samples(metrics.render().decode())
    sums = {
        "mtplx_time_to_first_token_seconds": 3,
        "mtplx_queue_seconds": 2,
        "mtplx_prefill_seconds": 1,
        "mtplx_decode_seconds": 5,
        "mtplx_request_seconds": 8,
        "mtplx_inter_token_seconds": 1 + 4,
        "mtplx_time_per_output_token_seconds": 5 / 4,
    }
    for name, value in sums.items():
        assert found[f"{name}_sum", ("chat",)] == value, name
        assert found[f"{VLLM_NAMES[name]}_sum", ("chat", "m")] == value, name
        assert found[f"{name}_count", ("chat",)] == (2 if name == "mtplx_inter_token_seconds" else 1)
    assert found["mtplx_prompt_tokens_total", ("chat",)] == found["vllm:prompt_tokens_total", ("chat", "m")] == 7
    assert found["mtplx_generated_tokens_total", ("chat",)] == found["vllm:generation_tokens_total", ("chat", "m")] == 5
    assert found["vllm:request_success_total", ("chat", "stop", "m")] == 1
    assert (watch.num_tokens, watch.num_prompt_tokens) == (5, 7)


def test_each_choice_is_timed_and_the_prompt_counts_once() -> None:
    metrics = metrics_at(0.0)
    watch = metrics.watch("chat", num_prompt_tokens=7)
    play(watch, 0, tokens(1, 2, started_at_s=1))
    play(watch, 1, tokens(1, 5, started_at_s=4, ends=True))
    play(watch, 0, tokens(1, 6, ends=True))
    found = samples(metrics.render().decode())
    assert found["mtplx_time_to_first_token_seconds_count", ("chat",)] == 1
    assert found["mtplx_queue_seconds_sum", ("chat",)] == 1 + 4
    assert found["mtplx_request_seconds_sum", ("chat",)] == 5 + 6
    assert found["mtplx_prompt_tokens_total", ("chat",)] == 7
    assert found["mtplx_time_per_output_token_seconds_count", ("chat",)] == 1, "one token alone has no pace"


def test_accepted_lengths_are_read_off_the_positions() -> None:
    counts = DraftCounts()
    for num_drafts, num_accepted in ((3, 0), (3, 1), (3, 1), (2, 2), (0, 0)):
        counts.count(num_drafts, num_accepted)
    found = samples(metrics_at(0.0, engine_status(drafts=counts)).render().decode())
    buckets = {bound: found["mtplx_accepted_length_bucket", (bound,)] for bound in ("0", "1", "2", "8", "+Inf")}
    assert buckets == {"0": 1, "1": 3, "2": 4, "8": 4, "+Inf": 4}
    assert found["mtplx_accepted_length_sum", ()] == 4


def test_every_metric_and_no_other_is_on_the_page() -> None:
    cohorts = CohortStatus(1, 3, 96, 2, 4096, SourceCounts(20, 9), SourceCounts(40, 38))
    text = metrics_at(0.0, engine_status(cohorts=cohorts)).render().decode()
    shown = {family.name for family in text_string_to_metric_families(text)}
    shown = {name for name in shown if not name.endswith("_created")}
    table = PAGE.read_text(encoding="utf-8").partition("| metric |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`((?:mtplx_|vllm:)\w+)`", table)) == shown
    for ours, theirs in VLLM_NAMES.items():
        assert any(f"`{ours}`" in line and f"`{theirs}`" in line for line in table.splitlines()), ours


@pytest.mark.parametrize("stream", [True, False])
def test_a_real_engines_times_add_up(tmp_path: Path, stream: bool) -> None:
    with live_server(tmp_path, FakeRunner(), decode_batch_max=1) as server:
        body = {"model": MODEL, "prompt": "x" * 40, "max_tokens": 8, "n": 3, "ignore_eos": True, "stream": stream}
        assert server.client.post("/v1/completions", json=body).status_code == 200
        found = samples(server.client.get("/metrics").text)
    sums = {
        name: found[f"mtplx_{name}_seconds_sum", ("completions",)]
        for name in ("queue", "prefill", "decode", "request", "inter_token")
    }
    assert all(value > 0 for value in sums.values())
    assert sums["queue"] + sums["prefill"] + sums["decode"] == pytest.approx(sums["request"])
    assert sums["inter_token"] == pytest.approx(sums["decode"])
    assert found["mtplx_queue_seconds_count", ("completions",)] == 3
    assert found["mtplx_inter_token_seconds_count", ("completions",)] == 3 * 7
    assert found["vllm:generation_tokens_total", ("completions", MODEL)] == 24
    assert found["vllm:kv_cache_usage_perc", (MODEL,)] == 0
