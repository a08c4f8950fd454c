"""The Prometheus page: what requests took, what the engine has done, and the same numbers under vLLM's names.

Each app has a registry of its own, so that two servers in one process don't share numbers. Labels are the server's own
words (endpoints, codes, reasons) and draft positions: what clients write makes no new ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mtplx.telemetry.counters import EngineStatus
from mtplx.telemetry.engine_metrics import EngineCollector
from mtplx.telemetry.record import RequestRecord
from mtplx.telemetry.watch import RequestMeters, RequestSeconds, RequestWatch

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

VLLM_NAMES: Mapping[str, str] = {
    "mtplx_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "mtplx_inter_token_seconds": "vllm:inter_token_latency_seconds",
    "mtplx_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
    "mtplx_request_seconds": "vllm:e2e_request_latency_seconds",
    "mtplx_queue_seconds": "vllm:request_queue_time_seconds",
    "mtplx_prefill_seconds": "vllm:request_prefill_time_seconds",
    "mtplx_decode_seconds": "vllm:request_decode_time_seconds",
    "mtplx_prompt_tokens": "vllm:prompt_tokens",
    "mtplx_generated_tokens": "vllm:generation_tokens",
    "mtplx_choices_finished": "vllm:request_success",
    "mtplx_sequences_running": "vllm:num_requests_running",
    "mtplx_sequences_waiting": "vllm:num_requests_waiting",
    "mtplx_cache_use": "vllm:kv_cache_usage_perc",
    "mtplx_preemptions": "vllm:num_preemptions",
    "mtplx_prefix_cache_queried_tokens": "vllm:prefix_cache_queries",
    "mtplx_prefix_cache_saved_tokens": "vllm:prefix_cache_hits",
    "mtplx_drafts": "vllm:spec_decode_num_drafts",
    "mtplx_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "mtplx_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "mtplx_accepted_tokens_by_position": "vllm:spec_decode_num_accepted_tokens_per_pos",
}
"""Names that dashboards and benchmark tools know, each for the same number of ours."""

_VLLM_LABELS: Mapping[str, str] = {"reason": "finished_reason"}


class HttpMetrics:
    """One server's registry; `model_name` is a label of what goes by vLLM's names."""

    def __init__(
        self,
        read_status: Callable[[], EngineStatus],
        model_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._meters: dict[str, RequestMeters] = {}
        self._own = CollectorRegistry()
        self._own.register(EngineCollector(read_status))
        self._page = CollectorRegistry()
        self._page.register(_WithVllmNames(self._own, model_name))
        self._seconds = _histograms(self._own)
        self._prompt_tokens = self._counter("mtplx_prompt_tokens", "Prompt tokens of requests that got a token")
        self._generated_tokens = self._counter("mtplx_generated_tokens", "Tokens of answers")
        self._choices = Counter(
            "mtplx_choices_finished",
            "Choices that were answered, by finish reason",
            ("endpoint", "reason"),
            registry=self._own,
        )
        self._errors = Counter(
            "mtplx_errors",
            "Requests refused or failed, or left by their client, by the error's code",
            ("code",),
            registry=self._own,
        )

    def watch(self, endpoint: str, *, num_prompt_tokens: int) -> RequestWatch:
        """A watch that starts now."""
        meters = self._meters.get(endpoint)
        if meters is None:
            meters = self._meters[endpoint] = self._meters_of(endpoint)
        return RequestWatch(endpoint, meters, asked_at_s=self._clock(), num_prompt_tokens=num_prompt_tokens)

    def count_request(self, record: RequestRecord) -> None:
        """Counts a request that has ended, if it was refused or failed or its client left."""
        if record.error_code is not None:
            self._errors.labels(record.error_code).inc()

    def render(self) -> bytes:
        """Everything, in the text format that CONTENT_TYPE names."""
        return generate_latest(self._page)

    def _meters_of(self, endpoint: str) -> RequestMeters:
        return RequestMeters(
            seconds=RequestSeconds(**{name: each.labels(endpoint) for name, each in self._seconds.items()}),
            prompt_tokens=self._prompt_tokens.labels(endpoint),
            generated_tokens=self._generated_tokens.labels(endpoint),
            count_finish=lambda reason: self._choices.labels(endpoint, reason).inc(),
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("endpoint",), registry=self._own)


def _histograms(registry: CollectorRegistry) -> dict[str, Histogram]:
    """By their field of `RequestSeconds`."""

    def seconds(name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(name, text, ("endpoint",), registry=registry, buckets=buckets)

    return {
        "first_token": seconds("mtplx_time_to_first_token_seconds", "From a request's admission to its first token"),
        "request": seconds("mtplx_request_seconds", "From a request's admission to the end of each of its choices"),
        "queue": seconds("mtplx_queue_seconds", "From a request's admission to the first step of each of its choices"),
        "prefill": seconds("mtplx_prefill_seconds", "From a choice's first step to its first token"),
        "decode": seconds("mtplx_decode_seconds", "From a choice's first token to its end"),
        "inter_token": seconds(
            "mtplx_inter_token_seconds", "Between two steps that gave a choice tokens", _TOKEN_SECONDS
        ),
        "output_token": seconds(
            "mtplx_time_per_output_token_seconds", "A choice's decode time, for each token but one", _TOKEN_SECONDS
        ),
    }


class _WithVllmNames(Collector):
    """All of a registry, and after each metric that vLLM has too the same one as vLLM would show it."""

    def __init__(self, own: CollectorRegistry, model_name: str) -> None:
        self._own = own
        self._model_name = model_name

    def describe(self) -> Iterable[Metric]:
        return []  # else registering would ask the engine, which may not run yet

    def collect(self) -> Iterator[Metric]:
        for metric in self._own.collect():
            yield metric
            if metric.name in VLLM_NAMES:
                yield self._twin(metric, VLLM_NAMES[metric.name])

    def _twin(self, metric: Metric, name: str) -> Metric:
        twin = Metric(name, metric.documentation, metric.type)
        for sample in metric.samples:
            labels = {_VLLM_LABELS.get(label, label): value for label, value in sample.labels.items()}
            ending = sample.name.removeprefix(metric.name)
            twin.add_sample(name + ending, {"model_name": self._model_name, **labels}, sample.value)
        return twin
