"""What a collector receives: a receiver of OTLP that the test starts, over HTTP and over gRPC, with the exporters that programs use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.observers.otel import OtelObserver, span_ids
from detent.observers.otel_names import SCHEMA_URL
from detent.testing import ScriptedPlanner


class Received:
    """What came, as the protocol has it."""

    def __init__(self) -> None:
        self.traces: list[Any] = []
        self.metrics: list[Any] = []

    def spans(self) -> dict[str, Any]:
        """Return the spans by name."""
        return {span.name: span for one in self.traces for r in one.resource_spans for scope in r.scope_spans for span in scope.spans}

    def points(self) -> set[str]:
        """Return the names of the metrics."""
        return {m.name for one in self.metrics for r in one.resource_metrics for scope in r.scope_metrics for m in scope.metrics}


@contextmanager
def over_http() -> Generator[tuple[Received, Any, Any]]:
    """Receive over HTTP; give what came, and exporters to there."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind, into, answer = (
                (ExportTraceServiceRequest, received.traces, ExportTraceServiceResponse())
                if self.path == "/v1/traces"
                else (ExportMetricsServiceRequest, received.metrics, ExportMetricsServiceResponse())
            )
            into.append(kind.FromString(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.SerializeToString())

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield received, HttpSpans(endpoint=f"{url}/traces"), HttpMetrics(endpoint=f"{url}/metrics")
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def over_grpc() -> Generator[tuple[Received, Any, Any]]:
    """Receive over gRPC; give what came, and exporters to there."""
    grpc = pytest.importorskip("grpc", reason="pip install '.[dev]' brings it")
    exporters: Any = pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="pip install '.[dev]' brings it")
    assert exporters
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_service
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_service

    received = Received()

    class Traces(trace_service.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.traces.append(request)
            return ExportTraceServiceResponse()

    class Metrics(metrics_service.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.metrics.append(request)
            return ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_service.add_MetricsServiceServicer_to_server(Metrics(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received, OTLPSpanExporter(endpoint=address, insecure=True), OTLPMetricExporter(endpoint=address, insecure=True)
    finally:
        server.stop(None).wait()


@tool(side_effect="read")
def look(what: str) -> str:
    """Look."""
    return f"seen: {what}"


@pytest.mark.parametrize("receiving", [over_http, over_grpc])
def test_a_collector_gets_the_spans_and_metrics_of_a_run(receiving: Callable[[], Any]) -> None:
    """In one trace, under the names of the conventions, with the address of their schema, and without what was said."""

    async def run(observer: OtelObserver) -> None:
        planner = ScriptedPlanner([ToolCall(tool="look", args={"what": "zebra"}), FinalAnswer(content="a zebra")])
        async with Engine(planner=planner, observers=[observer]) as engine:
            await engine.run(Agent(name="looker", tools=[look]), "find the zebra")

    with receiving() as (received, spans, metrics):
        tracing, measuring = TracerProvider(id_generator=span_ids()), MeterProvider(metric_readers=[PeriodicExportingMetricReader(metrics)])
        tracing.add_span_processor(BatchSpanProcessor(spans))
        asyncio.run(run(OtelObserver(tracer_provider=tracing, meter_provider=measuring)))
        tracing.shutdown()
        measuring.shutdown()
    found = received.spans()
    assert set(found) == {"invoke_agent looker", "execute_tool look"}
    agent, call = found["invoke_agent looker"], found["execute_tool look"]
    assert (call.trace_id, call.parent_span_id) == (agent.trace_id, agent.span_id)
    assert {one.key: one.value.string_value for one in call.attributes}["gen_ai.operation.name"] == "execute_tool"
    assert {scope.schema_url for one in received.traces for r in one.resource_spans for scope in r.scope_spans} == {SCHEMA_URL}
    assert {"gen_ai.client.operation.duration", "detent.runs.active", "detent.runs.ended", "detent.budget.used"} <= received.points()
    assert b"zebra" not in b"".join(one.SerializeToString() for one in received.traces).replace(b"find-zebra", b"").replace(
        b"find-the-zebra", b""
    )
