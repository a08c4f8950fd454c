"""What Prometheus reads: the engine's counters as they stand, and what only the HTTP side can time.

Each app has a registry of its own, so that two servers in one process don't share numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mtplx.batching.cohorts import CohortStatus
from mtplx.batching.prefix import PrefixStatus
from mtplx.batching.state import FinishReason
from mtplx.telemetry.counters import DraftCounts, EngineStatus

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)


class DeltaLike(Protocol):
    """What a watch reads of a delta."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def finish_reason(self) -> FinishReason | None: ...


class HttpMetrics:
    """One server's registry."""

    def __init__(self, read_status: Callable[[], EngineStatus], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(read_status))
        self._first_token_s = Histogram(
            "mtplx_time_to_first_token_seconds",
            "From a request's admission to its first token",
            ("endpoint",),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._request_s = Histogram(
            "mtplx_request_seconds",
            "From a request's admission to the end of each of its choices",
            ("endpoint",),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._choices = Counter(
            "mtplx_choices_finished",
            "Choices that were answered, by finish reason",
            ("endpoint", "reason"),
            registry=self._registry,
        )
        self._errors = Counter(
            "mtplx_errors",
            "Requests refused or failed, by the code in the error's body",
            ("code",),
            registry=self._registry,
        )

    def watch(self, endpoint: str) -> RequestWatch:
        """A watch that starts now."""
        return RequestWatch(
            started_at_s=self._clock(),
            clock=self._clock,
            first_token_s=self._first_token_s.labels(endpoint),
            request_s=self._request_s.labels(endpoint),
            count_finish=lambda reason: self._choices.labels(endpoint, reason).inc(),
        )

    def count_error(self, code: str) -> None:
        self._errors.labels(code).inc()

    def render(self) -> bytes:
        """Everything, in the text format that CONTENT_TYPE names."""
        return generate_latest(self._registry)


class RequestWatch:
    """Times one request by the deltas it hears of."""

    def __init__(
        self,
        *,
        started_at_s: float,
        clock: Callable[[], float],
        first_token_s: Histogram,
        request_s: Histogram,
        count_finish: Callable[[str], None],
    ) -> None:
        self._started_at_s = started_at_s
        self._clock = clock
        self._first_token_s = first_token_s
        self._request_s = request_s
        self._count_finish = count_finish
        self._has_token = False

    def on_delta(self, delta: DeltaLike) -> None:
        if delta.token_ids and not self._has_token:
            self._has_token = True
            self._first_token_s.observe(self._clock() - self._started_at_s)
        if delta.finish_reason is not None:
            self._request_s.observe(self._clock() - self._started_at_s)
            self._count_finish(str(delta.finish_reason))


class _EngineCollector(Collector):
    """Reads the engine's own totals when Prometheus asks; keeps none."""

    def __init__(self, read_status: Callable[[], EngineStatus]) -> None:
        self._read_status = read_status

    def describe(self) -> Iterable[Metric]:
        return []  # else registering would ask the engine, which may not run yet

    def collect(self) -> Iterator[Metric]:
        status = self._read_status()
        yield from _gauges(status)
        yield from _counters(status)
        yield from _draft_counters(status.drafts)
        yield from _prefix_counters(status.prefix)
        yield from _cohort_counters(status.cohorts) if status.cohorts else ()
        finished = CounterMetricFamily("mtplx_sequences_finished", "Sequences that ended, by reason", labels=["reason"])
        for reason, count in sorted(status.num_finished.items()):
            finished.add_metric([str(reason)], count)
        yield finished
        yield HistogramMetricFamily(
            "mtplx_step_width",
            "Sequences in each step",
            buckets=_cumulative(status.width_histogram),
            sum_value=sum(width * count for width, count in status.width_histogram.items()),
        )


def _gauges(status: EngineStatus) -> Iterator[Metric]:
    for name, text, value in (
        ("mtplx_sequences_running", "Sequences running now", status.num_running),
        ("mtplx_sequences_waiting", "Sequences waiting now", status.num_waiting),
        ("mtplx_last_step_width", "Sequences in the last step", status.last_step_width),
        ("mtplx_cache_blocks_used", "Cache blocks in use", status.num_blocks_used),
        ("mtplx_cache_blocks", "Cache blocks there are", status.num_blocks_total),
    ):
        yield GaugeMetricFamily(name, text, value)


def _counters(status: EngineStatus) -> Iterator[Metric]:
    for name, text, value in (
        ("mtplx_steps", "Steps that ran", status.num_steps),
        ("mtplx_failed_steps", "Steps whose forward pass or sampling failed", status.num_failed_steps),
        ("mtplx_prefill_tokens", "Prompt tokens computed", status.num_prefill_tokens),
        ("mtplx_decode_tokens", "Tokens computed one at a time", status.num_decode_tokens),
        ("mtplx_preemptions", "Sequences set back for lack of cache blocks", status.num_preemptions),
    ):
        yield CounterMetricFamily(name, text, value)


def _prefix_counters(prefix: PrefixStatus) -> Iterator[Metric]:
    """vLLM's queries and hits count tokens."""
    yield GaugeMetricFamily("mtplx_prefix_cache_blocks", "Cache blocks that can be shared", prefix.num_blocks)
    for name, text, value in (
        ("mtplx_prefix_cache_hits", "Times that a sequence took over shared blocks", prefix.num_hits),
        ("mtplx_prefix_cache_saved_tokens", "Tokens that weren't computed", prefix.num_saved_tokens),
        ("mtplx_prefix_cache_evictions", "Shared blocks whose place was needed", prefix.num_evictions),
        ("vllm:prefix_cache_queries", "Tokens of admitted sequences", prefix.num_queried_tokens),
        ("vllm:prefix_cache_hits", "Tokens that weren't computed", prefix.num_saved_tokens),
    ):
        yield CounterMetricFamily(name, text, value)


def _cohort_counters(cohorts: CohortStatus) -> Iterator[Metric]:
    for name, text, value in (
        ("mtplx_cohorts", "Cohorts of two or more requests that have a member", cohorts.num_cohorts),
        ("mtplx_cohort_members", "Sequences in those", cohorts.num_members),
        ("mtplx_cohort_index_bytes", "Memory of the indexes that drafts are taken from", cohorts.index_bytes),
    ):
        yield GaugeMetricFamily(name, text, value)
    saved = "Tokens that members of cohorts took over computed"
    yield CounterMetricFamily("mtplx_cohort_saved_tokens", saved, cohorts.num_saved_tokens)
    drafted = CounterMetricFamily("mtplx_draft_tokens_by_source", "Tokens drafted, by source", labels=["source"])
    accepted = CounterMetricFamily("mtplx_accepted_tokens_by_source", "Of them accepted", labels=["source"])
    for source, counts in (("head", cohorts.head), ("index", cohorts.index)):
        drafted.add_metric([source], counts.num_draft_tokens)
        accepted.add_metric([source], counts.num_accepted_tokens)
    yield from (drafted, accepted)


def _draft_counters(counts: DraftCounts) -> Iterator[Metric]:
    """Each number under our name and under vLLM's, which benchmark tools read."""
    for name, vllm_name, text, value in (
        ("mtplx_drafts", "num_drafts", "Rows that had drafts", counts.num_drafts),
        ("mtplx_draft_tokens", "num_draft_tokens", "Tokens drafted", counts.num_draft_tokens),
        ("mtplx_accepted_tokens", "num_accepted_tokens", "Drafted tokens accepted", counts.num_accepted_tokens),
    ):
        yield CounterMetricFamily(name, text, value)
        yield CounterMetricFamily(f"vllm:spec_decode_{vllm_name}", text, value)
    for name in ("mtplx_accepted_tokens_by_position", "vllm:spec_decode_num_accepted_tokens_per_pos"):
        by_position = CounterMetricFamily(name, "Drafted tokens accepted, by position", labels=["position"])
        for position in sorted(counts.drafted_by_position):
            by_position.add_metric([str(position)], counts.accepted_by_position[position])
        yield by_position
    depths = CounterMetricFamily("mtplx_draft_depths", "Decoded rows, by their number of drafts", labels=["depth"])
    for depth, num_rows in sorted(counts.depth_histogram.items()):
        depths.add_metric([str(depth)], num_rows)
    yield depths


def _cumulative(histogram: Mapping[int, int]) -> list[tuple[str, float]]:
    """Prometheus' buckets: how many steps were at most so wide.

    Example: {1: 3, 4: 2} gives 1 -> 3, 2 -> 3, 4 -> 5, ..., +Inf -> 5
    """
    bounds = [(str(bound), float(bound)) for bound in _WIDTHS] + [("+Inf", float("inf"))]
    return [(name, float(sum(count for width, count in histogram.items() if width <= bound))) for name, bound in bounds]
