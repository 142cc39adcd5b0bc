"""Spans of OpenTelemetry, where an administrator asks for them: passes over objects, requests, plans and decisions.

Off unless an entry point calls `configure`, and then next to free: the library is imported there. A request carries the
`traceparent` of its span, so that a trace goes on in an API server that traces, too. Nothing is decided by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from shoal.errors import BadInput

NANO = 1_000_000_000
Attributes = Mapping[str, str | int]
_tracer: Any = None
_NOTHING: AbstractContextManager[Any] = nullcontext()


def configure(url: str, version: str) -> Callable[[], None]:
    """Send spans to a collector of OTLP over HTTP from now on; the rest (headers, certificate, sampler, attributes of
    the process) is as the variables OTEL_… say. Returns what ends it, with everything sent. Raises BadInput."""
    global _tracer
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"{url!r} is no address of a collector, such as http://collector:4318")
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from shoal.kube.span_exporter import SpanSender
    except ImportError:
        raise BadInput(
            'traces need a package that is not installed: pip install "shoal-ray[controller]" brings it'
        ) from None
    about = Resource.create({"service.name": "shoal-controller", "service.version": version})
    provider = TracerProvider(resource=about)
    provider.add_span_processor(BatchSpanProcessor(SpanSender(f"{url.rstrip('/')}/v1/traces")))
    _tracer = provider.get_tracer("shoal", version)

    def end() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return end


def span(name: str, attributes: Callable[[], Attributes], *, sent: bool = False) -> AbstractContextManager[Any]:
    """A span around a block, the child of the one around it. `sent`: a request to a server."""
    if _tracer is None:
        return _NOTHING
    from opentelemetry.trace import SpanKind

    kind = SpanKind.CLIENT if sent else SpanKind.INTERNAL
    found: AbstractContextManager[Any] = _tracer.start_as_current_span(name, kind=kind, attributes=dict(attributes()))
    return found


def past(name: str, seconds: float, attributes: Callable[[], Attributes]) -> None:
    """A span of its own that ends now and began so many seconds ago."""
    if _tracer is None:
        return
    now = time.time_ns()
    made = _tracer.start_span(name, attributes=dict(attributes()), start_time=now - int(seconds * NANO))
    made.end(end_time=now)


def answered(made: Any, status: int) -> None:
    """What a server said to the request of this span, which is None where there are none."""
    if made is not None:
        made.set_attribute("http.response.status_code", status)


def headers() -> dict[str, str]:
    """What a request carries of the span around it."""
    if _tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carried)
    return carried


def trace_id() -> str:
    """Of the span around the caller, for its line in the log; empty where there is none."""
    if _tracer is None:
        return ""
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""
