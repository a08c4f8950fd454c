"""The engine's own totals as Prometheus reads them; keeps none of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mtplx.batching.cohorts import CohortStatus
from mtplx.batching.prefix import PrefixStatus
from mtplx.batching.speculation import MAX_DEPTH
from mtplx.telemetry.counters import DraftCounts, EngineStatus

_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)


class EngineCollector(Collector):
    """Reads a snapshot whenever it is asked."""

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
        ("mtplx_cache_use", "Cache blocks in use, of 1", status.num_blocks_used / status.num_blocks_total),
    ):
        yield GaugeMetricFamily(name, text, value)


def _counters(status: EngineStatus) -> Iterator[Metric]:
    for name, text, value in (
        ("mtplx_steps", "Steps that ran", status.num_steps),
        ("mtplx_failed_steps", "Steps whose forward pass or sampling failed", status.num_failed_steps),
        ("mtplx_prefill_tokens", "Prompt tokens computed", status.num_prefill_tokens),
        ("mtplx_decode_tokens", "Rows that decoded, one for each answer and step", status.num_decode_tokens),
        ("mtplx_preemptions", "Sequences set back for lack of cache blocks", status.num_preemptions),
    ):
        yield CounterMetricFamily(name, text, value)


def _prefix_counters(prefix: PrefixStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("mtplx_prefix_cache_blocks", "Cache blocks that can be shared", prefix.num_blocks)
    for name, text, value in (
        ("mtplx_prefix_cache_hits", "Times that a sequence took over shared blocks", prefix.num_hits),
        ("mtplx_prefix_cache_queried_tokens", "Tokens of admitted sequences", prefix.num_queried_tokens),
        ("mtplx_prefix_cache_saved_tokens", "Tokens that weren't computed", prefix.num_saved_tokens),
        ("mtplx_prefix_cache_evictions", "Shared blocks whose place was needed", prefix.num_evictions),
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
    for name, text, value in (
        ("mtplx_drafts", "Rows that had drafts", counts.num_drafts),
        ("mtplx_draft_tokens", "Tokens drafted", counts.num_draft_tokens),
        ("mtplx_accepted_tokens", "Drafted tokens accepted", counts.num_accepted_tokens),
    ):
        yield CounterMetricFamily(name, text, value)
    text = "Drafted tokens accepted, by position"
    by_position = CounterMetricFamily("mtplx_accepted_tokens_by_position", text, labels=["position"])
    for position in sorted(counts.drafted_by_position):
        by_position.add_metric([str(position)], counts.accepted_by_position[position])
    yield by_position
    depths = CounterMetricFamily("mtplx_draft_depths", "Decoded rows, by their number of drafts", labels=["depth"])
    for depth, num_rows in sorted(counts.depth_histogram.items()):
        depths.add_metric([str(depth)], num_rows)
    yield depths
    yield HistogramMetricFamily(
        "mtplx_accepted_length",
        "Accepted drafts of each row that had some",
        buckets=_accepted_lengths(counts),
        sum_value=counts.num_accepted_tokens,
    )


def _accepted_lengths(counts: DraftCounts) -> list[tuple[str, float]]:
    """Prometheus' buckets: of how many rows at most so many drafts were accepted.

    Position n counts the rows that accepted more than n: of 10 rows, {0: 7, 1: 2} gives 0 -> 3, 1 -> 8, 2 -> 10, ...
    """
    at_most = [float(counts.num_drafts - counts.accepted_by_position[n]) for n in range(MAX_DEPTH + 1)]
    return [(str(n), value) for n, value in enumerate(at_most)] + [("+Inf", float(counts.num_drafts))]


def _cumulative(histogram: Mapping[int, int]) -> list[tuple[str, float]]:
    """Prometheus' buckets: how many steps were at most so wide.

    Example: {1: 3, 4: 2} gives 1 -> 3, 2 -> 3, 4 -> 5, ..., +Inf -> 5
    """
    bounds = [(str(bound), float(bound)) for bound in _WIDTHS] + [("+Inf", float("inf"))]
    return [(name, float(sum(count for width, count in histogram.items() if width <= bound))) for name, bound in bounds]
