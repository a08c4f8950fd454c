"""What the server says of itself: models, status, health, metrics."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mtplx.batching.cohorts import CohortStatus, SourceCounts
from mtplx.batching.speculation import Costs, CostTable, DraftCost
from mtplx.errors import OverloadedError
from mtplx.telemetry.counters import DraftingStatus
from tests.server.asgi import ask, chat, complete, error_of
from tests.server.fakes import MODEL, FakeServer, FakeStreams, engine_status, fake_server


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    return fake_server(tmp_path)


def samples(server: FakeServer) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample of the metrics page by name and label values."""
    response = ask(server, "GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_models_show_the_served_one_with_its_limit(server: FakeServer) -> None:
    card = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "mtplx",
        "max_model_len": server.streams.max_model_len,
    }
    assert ask(server, "GET", "/v1/models").json() == {"object": "list", "data": [card]}
    assert ask(server, "GET", f"/v1/models/{MODEL}").json() == card, "a name may have a slash in it"


def test_health_is_ok_while_the_engine_lives(server: FakeServer) -> None:
    response = ask(server, "GET", "/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_health_is_503_while_a_step_is_overdue_and_ok_again_when_it_has_ended(tmp_path: Path) -> None:
    server = fake_server(tmp_path, step_timeout_s=60)
    now_s = time.monotonic()
    for started_at_s, status in ((None, 200), (now_s, 200), (now_s - 61, 503), (None, 200)):
        server.streams.step_start_s = started_at_s
        response = ask(server, "GET", "/health")
        assert response.status_code == status
        if status == 503:
            assert error_of(response)["code"] == "step_overdue"


@pytest.mark.parametrize("path", ["/health", "/v1/models", f"/v1/models/{MODEL}", "/v1/status", "/status", "/metrics"])
def test_head_answers_where_get_does(server: FakeServer, path: str) -> None:
    got, headed = ask(server, "GET", path), ask(server, "HEAD", path)
    assert (headed.status_code, headed.headers["content-type"]) == (200, got.headers["content-type"])
    assert set(ask(server, "POST", path).headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_status_says_what_the_engine_did(tmp_path: Path) -> None:
    before_s = time.monotonic()
    server = fake_server(tmp_path, FakeStreams(engine=engine_status(last_step_at_s=before_s)))
    status = ask(server, "GET", "/v1/status").json()
    assert 0 <= status.pop("uptime_s") <= status.pop("seconds_since_last_step") <= time.monotonic() - before_s
    assert status == {
        "scheduler_mode": "ar_batch",
        "model": MODEL,
        "runner": "fake",
        "device": "cpu",
        "dtype": "float32",
        "build": None,
        "quantization": None,
        "kv_cache_dtype": None,
        "tool_parser": "hermes",
        "reasoning_parser": "none",
        "draft_head": None,
        "exact": True,
        "exact_note": "scripted",
        "version": "0.0.1",
        "system_fingerprint": "fp-fake",
        "alive": True,
        "max_model_len": 64,
        "max_running": 16,
        "num_running": 2,
        "num_waiting": 3,
        "num_steps": 9,
        "last_step_width": 2,
        "width_histogram": {"1": 4, "2": 5},
        "num_prefill_tokens": 100,
        "num_decode_tokens": 14,
        "cache_blocks_used": 7,
        "cache_blocks_total": 32,
        "cache_block_size": 16,
        "num_preemptions": 1,
        "num_failed_steps": 0,
        "num_finished": {"stop": 6},
        "drafts": {
            "num_drafts": 0,
            "num_draft_tokens": 0,
            "num_accepted_tokens": 0,
            "depth_histogram": {},
            "drafted_by_position": [],
            "accepted_by_position": [],
            "last_depths": [],
            "why_none": None,
            "num_failed": 0,
            "costs_ms": None,
        },
        "prefix_cache": {
            "is_on": True,
            "num_blocks": 5,
            "num_hits": 2,
            "num_queried_tokens": 90,
            "num_saved_tokens": 48,
            "num_evictions": 1,
        },
        "cohorts": None,
    }


def test_cohorts_are_shown_where_the_mode_has_them(tmp_path: Path) -> None:
    cohorts = CohortStatus(1, 3, 96, 2, 4096, SourceCounts(20, 9), SourceCounts(40, 38))
    server = fake_server(tmp_path, FakeStreams(engine=engine_status(cohorts=cohorts)))
    assert ask(server, "GET", "/v1/status").json()["cohorts"] == {
        "num_cohorts": 1,
        "num_members": 3,
        "num_saved_tokens": 96,
        "num_indexes": 2,
        "index_bytes": 4096,
        "head": {"num_draft_tokens": 20, "num_accepted_tokens": 9},
        "index": {"num_draft_tokens": 40, "num_accepted_tokens": 38},
    }
    found = samples(server)
    assert {
        ("mtplx_cohorts", ()): 1,
        ("mtplx_cohort_members", ()): 3,
        ("mtplx_cohort_index_bytes", ()): 4096,
        ("mtplx_cohort_saved_tokens_total", ()): 96,
        ("mtplx_draft_tokens_by_source_total", ("head",)): 20,
        ("mtplx_draft_tokens_by_source_total", ("index",)): 40,
        ("mtplx_accepted_tokens_by_source_total", ("head",)): 9,
        ("mtplx_accepted_tokens_by_source_total", ("index",)): 38,
    }.items() <= found.items()
    assert not any(name.startswith("mtplx_cohort") for name, _ in samples(fake_server(tmp_path)))


@pytest.mark.parametrize(("is_cached", "source"), [(True, "cached"), (False, "measured")])
def test_status_says_what_drafting_does_now_and_where_its_costs_are_from(
    tmp_path: Path, is_cached: bool, source: str
) -> None:
    costs = Costs(CostTable((0.004, 0.005)), DraftCost(0.0003, 0.00002), CostTable((0.006,)), is_cached=is_cached)
    drafting = DraftingStatus(last_depths=(3, 0, 1), why_none=None, costs=costs, num_failed=2)
    server = fake_server(tmp_path, FakeStreams(engine=engine_status(drafting=drafting)))
    drafts = ask(server, "GET", "/v1/status").json()["drafts"]
    assert (drafts["last_depths"], drafts["why_none"], drafts["num_failed"]) == ([3, 0, 1], None, 2)
    shown = drafts["costs_ms"]
    assert shown["source"] == source
    assert [shown["step"][size] for size in ("1", "2", "4")] == pytest.approx([4, 5, 7])
    assert [shown["step_after_draft"][size] for size in ("1", "2", "4")] == pytest.approx([6, 12, 24])
    assert (shown["draft_level"], shown["draft_token"]) == pytest.approx((0.3, 0.02))


def test_status_has_two_addresses_and_knows_no_step_before_the_first(server: FakeServer) -> None:
    short, long = ask(server, "GET", "/status").json(), ask(server, "GET", "/v1/status").json()
    assert short.keys() == long.keys()
    assert short["seconds_since_last_step"] is None


def test_metrics_show_the_engines_own_totals(server: FakeServer) -> None:
    found = samples(server)
    expected = {
        "mtplx_sequences_running": 2,
        "mtplx_sequences_waiting": 3,
        "mtplx_cache_blocks_used": 7,
        "mtplx_cache_blocks": 32,
        "mtplx_steps_total": 9,
        "mtplx_prefill_tokens_total": 100,
        "mtplx_decode_tokens_total": 14,
        "mtplx_preemptions_total": 1,
        "mtplx_step_width_count": 9,
        "mtplx_step_width_sum": 14,
    }
    assert {name: found[name, ()] for name in expected} == expected
    assert found["mtplx_sequences_finished_total", ("stop",)] == 6
    buckets = {bound: found["mtplx_step_width_bucket", (bound,)] for bound in ("1", "2", "4", "+Inf")}
    assert buckets == {"1": 4, "2": 9, "4": 9, "+Inf": 9}


def test_metrics_count_answers_and_errors(server: FakeServer) -> None:
    chat(server, n=2)
    complete(server, stream=True)
    complete(server, temperature=9)
    server.streams.refusal = OverloadedError("full")
    chat(server)
    found = samples(server)
    assert found["mtplx_choices_finished_total", ("chat_completions", "stop")] == 2
    assert found["mtplx_choices_finished_total", ("completions", "stop")] == 1
    assert found["mtplx_time_to_first_token_seconds_count", ("chat_completions",)] == 1
    assert found["mtplx_request_seconds_count", ("completions",)] == 1
    assert found["mtplx_errors_total", ("invalid_value",)] == 1
    assert found["mtplx_errors_total", ("overloaded",)] == 1


def test_two_servers_share_no_metrics(tmp_path: Path) -> None:
    first, second = fake_server(tmp_path), fake_server(tmp_path)
    chat(first)
    assert ("mtplx_choices_finished_total", ("chat_completions", "stop")) not in samples(second)
