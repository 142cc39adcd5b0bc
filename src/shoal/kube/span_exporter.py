"""Sends spans to a collector as OTLP in JSON over HTTP, which every collector takes on its port 4318.

OpenTelemetry's own exporter brings an HTTP client and protobuf into the image for these few fields. Called by the
library in a thread of its own, with batches; imported only where traces are asked for.
"""

from __future__ import annotations

import logging
import os
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from shoal.api.meta import Json

log = logging.getLogger(__name__)
TIMEOUT = 10.0


class SpanSender(SpanExporter):
    def __init__(self, url: str) -> None:
        self._url = url
        self._headers = {"content-type": "application/json", **_headers(os.environ)}
        authorities = os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")
        self._secure = ssl.create_default_context(cafile=authorities) if url.startswith("https://") else None
        self._failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """A batch that is not taken is lost; that is said once until one is taken again."""
        body = msgspec.json.encode(request_of(spans))
        asked = urllib.request.Request(self._url, data=body, headers=self._headers, method="POST")
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT, context=self._secure):
                self._failed = False
                return SpanExportResult.SUCCESS
        except OSError as error:
            if not self._failed:
                log.warning("the collector of traces does not take them: %s", error)
            self._failed = True
            return SpanExportResult.FAILURE


def request_of(spans: Sequence[ReadableSpan]) -> Json:
    """All of one process."""
    resource = spans[0].resource.attributes if spans else {}
    scope = {"name": "shoal", "version": str(resource.get("service.version", ""))}
    made = {"scope": scope, "spans": [_span(one) for one in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [made]}]}


def _span(one: ReadableSpan) -> Json:
    context = one.context
    assert context is not None, "a span that was made by a tracer has one"
    made: Json = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": one.name,
        "kind": one.kind.value + 1,  # OTLP counts from the unspecified
        "startTimeUnixNano": str(one.start_time),
        "endTimeUnixNano": str(one.end_time),
        "attributes": _attributes(one.attributes or {}),
        "status": {"code": one.status.status_code.value, "message": one.status.description or ""},
        "events": [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes or {}),
            }
            for event in one.events
        ],
    }
    return {**made, "parentSpanId": f"{one.parent.span_id:016x}"} if one.parent is not None else made


def _attributes(found: Mapping[str, Any]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in found.items()]


def _value(value: Any) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}


def _headers(environment: Mapping[str, str]) -> dict[str, str]:
    """`OTEL_EXPORTER_OTLP_HEADERS`: name=value with commas between, values as in a URL."""
    pairs = [one.partition("=") for one in environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")]
    return {name.strip(): unquote(value.strip()) for name, equals, value in pairs if name.strip() and equals}
