"""A request's spans: what took how long, whose child it is, and no word of any text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mtplx.config import Settings
from mtplx.errors import GenerationError
from mtplx.server.openai import serve
from mtplx.telemetry.tracing import RequestTracer, otlp_processor
from tests.fakes import FakeRunner
from tests.faults import PATIENCE_S
from tests.live import live_server
from tests.server.asgi import CHAT, COMPLETIONS, ask
from tests.server.fakes import MODEL, FakeServer, FakeStreams, fake_server, say

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "secret words"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[RequestTracer]:
    tracer = RequestTracer(SimpleSpanProcessor(exporter), model_name=MODEL, version="0.0.1")
    yield tracer
    tracer.close()


def traced(folder: Path, tracer: RequestTracer, streams: FakeStreams | None = None) -> FakeServer:
    return fake_server(folder, streams, observers=(tracer.trace,))


def post(server: FakeServer, path: str, headers: dict[str, str] | None = None, **fields: Any) -> int:
    text = {"messages": [{"role": "user", "content": SECRET}]} if path == CHAT else {"prompt": SECRET}
    body = {"model": MODEL, **text, **fields}
    return ask(server, "POST", path, json=body, headers=headers or {}).status_code


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize(
    ("path", "operation"), [(CHAT, "chat"), (COMPLETIONS, "text_completion")], ids=["chat", "completions"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_a_span_with_its_phases_inside(
    tmp_path: Path, tracer: RequestTracer, exporter: InMemorySpanExporter, path: str, operation: str, stream: bool
) -> None:
    server = traced(tmp_path, tracer)
    headers = {"traceparent": CALLER, "x-request-id": "mine"}
    assert post(server, path, headers, temperature=0.5, max_tokens=20, seed=3, stop=["zz"], stream=stream) == 200
    spans = by_name(exporter)
    root = spans[f"{operation} {MODEL}"]
    assert root.kind is SpanKind.SERVER
    assert root.parent is not None
    assert f"{root.context.trace_id:032x}-{root.parent.span_id:016x}" == CALLER[3:-3]
    assert root.status.status_code is StatusCode.UNSET
    known = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": MODEL,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": len(server.last.prompts[0]),
        "gen_ai.usage.output_tokens": len("p0c0 hello"),
        "gen_ai.response.finish_reasons": ("stop",),
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": path,
        "mtplx.request.id": "mine",
    }
    assert known.items() <= dict(root.attributes or {}).items()
    assert spans.keys() == {root.name, "queue", "prefill", "decode"}
    for name in spans.keys() - {root.name}:
        assert spans[name].parent == root.context
    assert not any(SECRET in span.to_json() or "hello" in span.to_json() for span in spans.values())


def test_failures_are_errors_and_refusals_are_the_clients(
    tmp_path: Path, tracer: RequestTracer, exporter: InMemorySpanExporter
) -> None:
    failing = FakeStreams(script=lambda *_: [*say("ab")[:1], GenerationError("the model failed")])
    assert post(traced(tmp_path, tracer, failing), COMPLETIONS) == 500
    assert post(traced(tmp_path, tracer, failing), COMPLETIONS, stream=True) == 200
    assert post(traced(tmp_path, tracer), COMPLETIONS, temperature=9) == 400
    failed, cut_off, refused = (span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER)
    for span in (failed, cut_off):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "generation_failed")
    assert (refused.name, refused.status.status_code) == ("POST", StatusCode.UNSET)
    assert (refused.attributes or {})["error.type"] == "invalid_value"


def test_looks_at_pages_are_no_traces(tmp_path: Path, tracer: RequestTracer, exporter: InMemorySpanExporter) -> None:
    ask(traced(tmp_path, tracer), "GET", "/health")
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("sent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", CALLER + "x" * 500])
def test_a_broken_traceparent_is_none(
    tmp_path: Path, tracer: RequestTracer, exporter: InMemorySpanExporter, sent: str
) -> None:
    assert post(traced(tmp_path, tracer), COMPLETIONS, {"traceparent": sent}) == 200
    assert by_name(exporter)[f"text_completion {MODEL}"].parent is None


def test_without_the_extra_the_flag_is_refused_before_anything_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "mtplx.telemetry.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert serve(Settings(otlp_endpoint="http://localhost:4318", model="no/such/model", port=0)) == 2
    assert "mtplx[otel]" in capsys.readouterr().err


class Collector(BaseHTTPRequestHandler):
    """Notes the addresses that something was sent to."""

    paths: list[str] = []  # noqa: RUF012 - one for all requests, of which each has a handler

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - as the base class has it


def test_a_server_sends_its_traces_before_it_ends(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Collector) as collector, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(collector.serve_forever, poll_interval=0.05)
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        with live_server(tmp_path, FakeRunner(), otlp_endpoint=endpoint) as server:
            server.post("/v1/completions", prompt="hello", max_tokens=2)
        collector.shutdown()
        serving.result(PATIENCE_S)
    assert Collector.paths == ["/v1/traces"]


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_an_address_without_a_path_is_a_collectors(endpoint: str, address: str) -> None:
    processor: Any = otlp_processor(endpoint)
    try:
        assert processor.span_exporter._endpoint == address
    finally:
        processor.shutdown()
