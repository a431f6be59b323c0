"""Traces of requests by OpenTelemetry; imported only if the server is asked to send them.

    POST /v2/models/{model}/infer       SERVER, below the span of the client's `traceparent`
      infer resnet50                    the model, or each model of a pipeline
        queue
        run

Source: semantic conventions of OpenTelemetry for HTTP and RPC servers; W3C Trace Context.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode

from pelton.version import VERSION

from .model import ServedModel
from .requests import STATUSES, RequestError

if TYPE_CHECKING:
    from .options import ServeOptions
    from .server import Running

INFERENCE = re.compile(
    r"/v2/models/[^/]+(?P<version>/versions/[^/]+)?/(?P<v2>infer|generate|generate_stream)"
    r"|/v1/models/[^/:]+(?:/(?P<kind>versions|labels)/[^/:]+)?:(?P<v1>predict|classify|regress)"
)
LONGEST = 200  # characters of a text of a client
# of gRPC, that are faults of the server
FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
Asgi = Callable[..., Awaitable[None]]


def route(path: str) -> str:
    """Returns the route of a path of inference; "" for any other."""
    parts = INFERENCE.fullmatch(path)
    if parts is None:
        return ""
    if parts["v2"]:
        return f"/v2/models/{{model}}{'/versions/{version}' if parts['version'] else ''}/{parts['v2']}"
    kind = (parts["kind"] or "").removesuffix("s")
    return f"/v1/models/{{model}}{f'/{kind}s/{{{kind}}}' if kind else ''}:{parts['v1']}"


class Traces:
    """Makes spans of requests, and sends them in a thread of its own.

    processor: receives the spans; default: one that sends them by OTLP over HTTP to the URL of the options, or to that
    of OTEL_EXPORTER_OTLP_ENDPOINT if they say "otlp". OpenTelemetry's other variables apply, too.
    """

    def __init__(self, options: ServeOptions, processor: Any = None):
        if processor is None:
            processor = BatchSpanProcessor(OTLPSpanExporter(endpoint(options.traces or "otlp")))
        rate = options.trace_rate
        own = Resource({"service.name": options.name, "service.version": VERSION})
        self._provider = TracerProvider(
            None if rate is None else ParentBased(TraceIdRatioBased(rate)),
            Resource.create(dict(own.merge(OTELResourceDetector().detect()).attributes)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("pelton.serve", VERSION)

    def close(self) -> None:
        """Sends the last spans."""
        self._provider.shutdown()

    # requests

    def over(self, application: Asgi) -> Asgi:
        """Returns an ASGI application with a span for each request of inference that `application` answers."""

        async def traced(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            path = route(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else ""
            if not path:
                await application(scope, receive, send)
                return
            status = 0

            async def watched(message: MutableMapping[str, Any]) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            attributes = _of_http(scope, path, headers)
            with self._request(f"POST {path}", headers, attributes) as span:
                await application(scope, receive, watched)
                if status:
                    span.set_attribute("http.response.status_code", status)
                else:  # the client went
                    span.set_attribute("error.type", "disconnected")
                if status >= 500 or not status:
                    span.set_status(Status(StatusCode.ERROR))

        return traced

    def over_call(self, function: Callable[[Any, Any], Any], method: str) -> Callable[[Any, Any], Any]:
        """Returns a method of gRPC with a span for each call. method: "package.Service/Method"."""

        def traced(request: Any, context: Any) -> Any:
            metadata = {k: v for k, v in context.invocation_metadata() if isinstance(v, str)}
            attributes = {"rpc.system.name": "grpc", "rpc.method": method}
            with self._request(method, metadata, attributes) as span:
                code = "OK"
                try:
                    return function(request, context)
                except RequestError as e:
                    code = e.code
                    raise
                except BaseException:  # `abort` raises one, too
                    code = context.code().name if context.code() is not None else "UNKNOWN"
                    raise
                finally:
                    span.set_attribute("rpc.response.status_code", code)
                    if code in FAULTS:
                        span.set_status(Status(StatusCode.ERROR))

        return traced

    @contextmanager
    def _request(self, name: str, carrier: dict[str, str], attributes: dict[str, Any]) -> Iterator[trace.Span]:
        """Context manager: the span of a request is the current one."""
        parent = propagate.extract(carrier, Context())
        with self._tracer.start_as_current_span(
            name, parent, SpanKind.SERVER, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span

    # models

    def refused(self, model: ServedModel, fault: str) -> None:
        """Notes why a model did not begin the current request."""
        trace.get_current_span().set_attributes({**_of_model(model), "error.type": fault})

    def record(self, running: Running, ended: int, now: int, fault: str = "") -> None:
        """Records a request of a model below the current span. ended, now: when its run and its answer were finished,
        by `time.monotonic_ns`. fault: why it failed."""
        parent = trace.get_current_span()
        if not parent.is_recording():
            return
        model, run = running.model, running.future
        rows = model.rows(running.request.inputs)
        attributes = {**_of_model(model), "pelton.rows": rows, "pelton.cached": running.cached}
        if run is not None:
            attributes["pelton.batch.rows"] = getattr(run, "batch_rows", rows)
        if fault:
            attributes["error.type"] = fault
        parent.set_attributes(attributes)
        since = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(f"infer {model.name}", attributes=attributes, start_time=running.arrived + since)
        if fault and STATUSES[fault][0] >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside = trace.set_span_in_context(span)
        for name, begin, end in _parts(running, ended):
            self._tracer.start_span(name, inside, start_time=begin + since).end(end + since)
        span.end(now + since)


def endpoint(destination: str) -> str | None:
    """Returns where the exporter sends spans; None for the URL of its environment variables. A URL without a path is
    that of a collector."""
    if destination == "otlp":
        return None
    scheme, _, rest = destination.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}/v1/traces" if not path else destination


def _parts(running: Running, ended: int) -> Iterator[tuple[str, int, int]]:
    """Yields the parts of a request, each with its begin and end."""
    run = running.future
    if run is None:
        if not running.cached:
            yield "run", running.begun, ended
        return
    if run.queued_ns:
        yield "queue", run.queued_ns, run.started_ns or ended
    if run.started_ns:
        yield "run", run.started_ns, run.ended_ns or ended


def _of_model(model: ServedModel) -> dict[str, Any]:
    return {"pelton.model.name": model.name, "pelton.model.version": model.version}


def _of_http(scope: MutableMapping[str, Any], path: str, headers: dict[str, str]) -> dict[str, Any]:
    """Returns the attributes of an HTTP request, as the semantic conventions name them."""
    attributes: dict[str, Any] = {
        "http.request.method": scope["method"],
        "http.route": path,
        "url.path": scope["path"][:LONGEST],
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }
    server, client = scope.get("server"), scope.get("client")
    if server:
        attributes["server.address"] = server[0]
        if server[1] is not None:  # a socket file has no port
            attributes["server.port"] = server[1]
    if client:
        attributes["client.address"] = client[0]
    if "user-agent" in headers:
        attributes["user_agent.original"] = headers["user-agent"][:LONGEST]
    return attributes
