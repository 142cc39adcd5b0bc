"""OpenTelemetry traces of a controller, as a collector of OTLP over HTTP receives them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shoal.api import kinds
from shoal.cli import controller
from shoal.kube import tracing
from shoal.kube.client import Client
from shoal.kube.lease import LeaseSettings
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster
from tests.unit.cli.test_readiness import Replica, admin, running_replica
from tests.unit.kube.test_logs import lines
from tests.unit.queues.build import cluster_queue, counts, flavor, local_queue, make, ray_job

__all__ = ["lines"]
IDS = ("traceId", "spanId", "parentSpanId")


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Its address, and the spans that it was sent."""
    spans: list[Any] = []

    class Received(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            sent = Parse(with_bytes(body), ExportTraceServiceRequest())  # by OpenTelemetry's own definition
            for resource in sent.resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Received)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()


def with_bytes(body: bytes) -> str:
    """OTLP writes ids in hex where protobuf's JSON has base64."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: of_hex(inner) if key in IDS else read(inner) for key, inner in value.items()}
        return [read(one) for one in value] if isinstance(value, list) else value

    def of_hex(text: str) -> str:
        return base64.b64encode(bytes.fromhex(text)).decode()

    return json.dumps(read(json.loads(body)))


def told(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


async def test_a_decision_its_passes_and_their_requests_are_traced(quiet: Cluster, lines: list[dict[str, Any]]) -> None:
    await make(quiet, flavor(), cluster_queue(), local_queue())
    with collector() as (url, spans):
        end = tracing.configure(f"{url}/", "1")
        try:
            async with running_replica(Replica(admin(quiet), lease=LeaseSettings())) as replica:
                await replica.until("gangs", None)
                await make(quiet, ray_job("first", 1))
                await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one)[1] == 1)
        finally:
            end()
    decisions = [told(one) for one in spans if one.name.startswith("decision: ")]
    logged = {line["decision"] for line in lines if line["message"].endswith(": stored")}
    assert {one["shoal.decision"] for one in decisions} == logged != set()
    passes = {one.span_id: one for one in spans if one.name == "reconcile"}
    writes = [one for one in spans if one.name == "PATCH" and told(one)["url.path"].endswith("/status")]
    inside = [one for one in writes if one.parent_span_id in passes]
    assert inside and all(told(one)["http.response.status_code"] == 200 for one in inside)
    assert {one.trace_id for one in inside} <= {one.trace_id for one in passes.values()}
    assert any(one.name == "plan" and told(one)["shoal.reserved"] == 1 for one in spans)
    assert {line["trace"] for line in lines if "trace" in line} <= {one.trace_id.hex() for one in spans}


async def test_a_request_carries_its_trace_to_the_server() -> None:
    class Recorded:
        async def send(self, request: Request, *, timeout: float | None = None) -> Response:
            sent.append(request.headers)
            return Response(200, {}, b"{}")

    sent: list[Any] = []
    client = Client(Recorded())  # type: ignore[arg-type]
    await client.request("GET", "/version")
    with collector() as (url, spans):
        end = tracing.configure(url, "1")
        await client.request("GET", "/version")
        end()
    assert "traceparent" not in sent[0]
    (span,) = spans
    assert sent[1]["traceparent"].split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    outcome = CliRunner().invoke(controller.command, ["--traces", url])
    assert outcome.exit_code == 2 and "is no address of a collector" in outcome.output
