"""One OpenTelemetry trace a request, by the conventions for generative models, sent by OTLP over HTTP.

The `otel` extra brings the library; nothing else imports it. A span is made when its request has ended, from the same
record as the line in the log, so tracing costs nothing while tokens are made. Texts are never in it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mtplx.sampling_params import SamplingParams
from mtplx.telemetry.record import RequestRecord
from mtplx.telemetry.watch import RequestWatch

EXPORT_TIMEOUT_S = 5.0  # also what a collector that is gone may hold up the end of the server
TRACES_PATH = "/v1/traces"  # where a collector listens, for an address without a path

Attributes = dict[str, str | int | float | list[str]]


def otlp_processor(endpoint: str) -> SpanProcessor:
    """What sends spans to a collector, on a thread of its own."""
    address = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + TRACES_PATH
    exporter = OTLPSpanExporter(endpoint=address, timeout=EXPORT_TIMEOUT_S)
    return BatchSpanProcessor(exporter, export_timeout_millis=1000 * EXPORT_TIMEOUT_S)


class RequestTracer:
    """Makes the spans of requests; it is the process's own, not the library's global one."""

    def __init__(self, processor: SpanProcessor, *, model_name: str, version: str) -> None:
        resource = Resource.create({"service.name": "mtplx", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("mtplx", version)
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def trace(self, record: RequestRecord) -> None:
        """Sends the spans of a request that has ended, unless it only looked at a page."""
        if record.method in ("GET", "HEAD") or record.ended_at_s is None:
            return
        clock = _UnixClock()
        span = self._tracer.start_span(
            self._name(record),
            context=self._propagator.extract(record.trace_headers),
            kind=SpanKind.SERVER,
            attributes=self._attributes(record),
            start_time=clock.at(record.started_at_s),
        )
        if record.has_failed:
            span.set_status(Status(StatusCode.ERROR, record.error_code))
        if record.watch is not None:
            _trace_phases(self._tracer, set_span_in_context(span), record.watch, clock)
        span.end(clock.at(record.ended_at_s))

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def _name(self, record: RequestRecord) -> str:
        return record.method if record.watch is None else f"{_operation(record.watch)} {self._model_name}"

    def _attributes(self, record: RequestRecord) -> Attributes:
        attributes: Attributes = {
            "http.request.method": record.method,
            "url.path": record.path,
            "mtplx.request.id": record.request_id,
        }
        if record.status is not None:
            attributes["http.response.status_code"] = record.status
        if record.error_code is not None:
            attributes["error.type"] = record.error_code
        if record.watch is not None:
            attributes |= _answer_attributes(record.watch, self._model_name)
        if record.params is not None:
            attributes |= _asked_attributes(record.params)
        return attributes


class _UnixClock:
    """Turns times of the monotonic clock into nanoseconds since 1970."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def at(self, monotonic_s: float) -> int:
        return self._offset_ns + round(1e9 * monotonic_s)


def _operation(watch: RequestWatch) -> str:
    return "text_completion" if watch.endpoint == "completions" else "chat"


def _answer_attributes(watch: RequestWatch, model_name: str) -> Attributes:
    reasons = [str(choice.finish_reason) for choice in watch.choices.values() if choice.finish_reason is not None]
    return {
        "gen_ai.operation.name": _operation(watch),
        "gen_ai.provider.name": "mtplx",
        "gen_ai.request.model": model_name,
        "gen_ai.response.model": model_name,
        "gen_ai.usage.input_tokens": watch.num_prompt_tokens,
        "gen_ai.usage.output_tokens": watch.num_tokens,
        "gen_ai.response.finish_reasons": reasons,
    }


def _asked_attributes(params: SamplingParams) -> Attributes:
    asked: Mapping[str, int | float | None] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or None,
        "max_tokens": params.max_tokens,
        "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
        "seed": params.seed,
    }
    return {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}


def _trace_phases(tracer: Tracer, parent: Context, watch: RequestWatch, clock: _UnixClock) -> None:
    """A span each for queue, prefill and decode, as far as any choice came; of several from the first to the last."""
    choices = watch.choices.values()
    started = [choice.started_at_s for choice in choices if choice.started_at_s is not None]
    first = [choice.first_token_at_s for choice in choices if choice.first_token_at_s is not None]
    last = [choice.last_token_at_s for choice in choices if choice.last_token_at_s is not None]
    if not started:
        return
    edges_s = [watch.asked_at_s, min(started), *((min(first), max(last)) if first else ())]
    for name, start_s, end_s in zip(("queue", "prefill", "decode"), edges_s, edges_s[1:], strict=False):
        tracer.start_span(name, context=parent, start_time=clock.at(start_s)).end(clock.at(end_s))
