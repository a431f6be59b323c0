"""Traces of requests, kept in memory by OpenTelemetry's own exporter, and sent to a collector of this test."""

import gzip
import http.server
import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from serve_rest import half_plus_two, save, serving
from test_serve_pipeline import TWICE, infer, write
from test_serve_process import ENVIRONMENT, ask, running

from pelton.errors import InputError, QueueFullError
from pelton.serve import grpc as remote
from pelton.serve import run, schema
from pelton.serve.options import ServeOptions

MISSING = "opentelemetry-sdk is not installed here; the extra `telemetry` brings it"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"  # of W3C's own example
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
X = np.float32([[1, 2], [-3, 0.5]])


@pytest.fixture
def traced(tmp_path):
    """A function that serves a repository with traces: a client, and its finished spans by name."""
    pytest.importorskip("opentelemetry.sdk", reason=MISSING)
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from pelton.serve.telemetry import Traces

    save(tmp_path, "half", half_plus_two())
    opened = []

    def start(config="", **options):
        (tmp_path / "half" / "config.pbtxt").write_text(config)
        exporter, context = InMemorySpanExporter(), serving(tmp_path, traces="otlp", **options)
        client = context.__enter__()
        client.server.traces = Traces(client.server.options, SimpleSpanProcessor(exporter))
        client.application = client.server.traces.over(client.application)
        opened.append((context, client.server.traces))
        return client, lambda: {span.name: span for span in exporter.get_finished_spans()}

    yield SimpleNamespace(start=start, root=tmp_path)
    for context, traces in opened:
        context.__exit__(None, None, None)
        traces.close()


def body(x=X, name="x"):
    tensor = {"name": name, "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return json.dumps({"inputs": [tensor]})


def test_a_request_over_http(traced):
    client, spans = traced.start(batch=4)
    response = client.post("/v2/models/half/infer", body(), headers={**PARENT, "user-agent": "test/1"})
    assert response.status_code == 200
    found = spans()
    assert list(found) == ["queue", "run", "infer half", "POST /v2/models/{model}/infer"]
    queue, ran, model, request = found.values()
    assert request.kind.name == "SERVER" and f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == SPAN and request.parent.is_remote
    assert model.parent.span_id == request.context.span_id
    assert queue.parent.span_id == ran.parent.span_id == model.context.span_id
    expected = {
        "http.request.method": "POST",
        "http.route": "/v2/models/{model}/infer",
        "http.response.status_code": 200,
        "url.path": "/v2/models/half/infer",
        "url.scheme": "http",
        "server.address": "test",
        "user_agent.original": "test/1",
        "pelton.model.name": "half",
        "pelton.model.version": "1",
        "pelton.rows": 2,
        "pelton.batch.rows": 2,
    }
    assert expected.items() <= dict(request.attributes).items() and "error.type" not in request.attributes
    assert request.resource.attributes["service.name"] == "pelton"
    assert request.start_time <= model.start_time <= queue.start_time <= queue.end_time == ran.start_time
    assert ran.start_time < ran.end_time <= model.end_time <= request.end_time


def test_requests_without_a_queue_and_from_the_cache(traced):
    client, spans = traced.start("response_cache { enable: true }", cache=1 << 20)
    client.server.model("half").inline = True
    for _ in range(2):
        client.post("/v1/models/half/versions/1:predict", json.dumps({"instances": X.tolist()}))
    name = "POST /v1/models/{model}/versions/{version}:predict"
    last = spans()
    assert last[name].attributes["pelton.cached"] is True and last["run"].parent is not None
    assert last["run"].context.trace_id != last[name].context.trace_id  # of the first request alone


def test_other_requests_have_no_spans(traced):
    client, spans = traced.start()
    for path in ("/v2/health/ready", "/v2/models/half", "/page.json"):
        assert client.get(path).status_code == 200
    client.post("/v2/repository/index")
    assert spans() == {}


@pytest.mark.parametrize(
    "path, content, status, attributes, failed",
    [
        ("/v2/models/half/infer", body(name="z"), 400, {"error.type": "invalid", "pelton.model.name": "half"}, False),
        ("/v2/models/half/infer", body(X[:, :1]), 400, {"error.type": "invalid", "pelton.rows": 2}, False),
        ("/v2/models/none/infer", body(), 404, {"url.path": "/v2/models/none/infer"}, False),
        ("/v2/models/half/infer", "{", 400, {"http.route": "/v2/models/{model}/infer"}, False),
        ("/v2/models/half/versions/1/infer", body(), 503, {"error.type": "full"}, True),
    ],
)
def test_rejected_requests(traced, path, content, status, attributes, failed):
    client, spans = traced.start(batch=4)
    if failed:

        def refuse(*arguments, **options):
            raise QueueFullError("the queue is full", 1.0)

        client.server.model("half").queue.run_async = refuse
    assert client.post(path, content).status_code == status
    (request,) = [span for name, span in spans().items() if name.startswith("POST")]
    assert {"http.response.status_code": status, **attributes}.items() <= dict(request.attributes).items()
    assert request.status.status_code.name == ("ERROR" if failed else "UNSET")


def test_a_pipeline_has_a_span_for_each_model(traced):
    write(traced.root, "twice", TWICE)
    client, spans = traced.start(batch="off")
    traces, seen = client.server.traces, []
    record = traces.record
    traces.record = lambda running, *rest: (seen.append(running.model.name), record(running, *rest))
    np.testing.assert_array_equal(infer(client, "twice", X), (X / 2 + 2) / 2 + 2)
    found = spans()
    request = found["POST /v2/models/{model}/infer"]
    assert seen == ["half", "half", "twice"] and request.attributes["pelton.model.name"] == "twice"
    for name in ("infer half", "infer twice"):
        assert found[name].parent.span_id == request.context.span_id


def test_a_part_of_the_requests(traced):
    client, spans = traced.start(trace_rate=0.0)
    assert client.post("/v2/models/half/infer", body()).status_code == 200 and spans() == {}
    unsampled = {"traceparent": PARENT["traceparent"][:-1] + "0"}
    client, spans = traced.start(trace_rate=1.0)
    client.post("/v2/models/half/infer", body(), headers=unsampled)  # its client decided
    assert spans() == {}
    client.post("/v2/models/half/infer", body())
    assert "run" in spans()


def test_calls_of_grpc(traced):
    client, spans = traced.start(grpc_port=0, batch=4)
    port = remote.start(client.server)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
            request = schema.message("ModelInferRequest")(model_name="half", raw_input_contents=[X.tobytes()])
            tensor = request.inputs.add(name="x", datatype="FP32")
            tensor.shape.extend(X.shape)
            call = channel.unary_unary(f"/{schema.SERVICE}/ModelInfer", type(request).SerializeToString)
            call(request, metadata=tuple(PARENT.items()))
            found = spans()
            span = found[f"{schema.SERVICE}/ModelInfer"]
            assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == SPAN
            assert found["infer half"].parent.span_id == span.context.span_id and "queue" in found
            expected = {"rpc.system.name": "grpc", "rpc.response.status_code": "OK", "pelton.rows": 2}
            assert expected.items() <= dict(span.attributes).items()
            stream = channel.stream_stream(f"/{schema.SERVICE}/ModelStreamInfer", type(request).SerializeToString)
            assert len(list(stream(iter([request, request]), metadata=tuple(PARENT.items())))) == 2
            streamed = spans()[f"{schema.SERVICE}/ModelStreamInfer"]
            assert f"{streamed.parent.span_id:016x}" == SPAN and streamed.attributes["pelton.model.name"] == "half"
            request.model_name = "none"
            with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                call(request)
            assert spans()[f"{schema.SERVICE}/ModelInfer"].attributes["rpc.response.status_code"] == "NOT_FOUND"
    finally:
        port.stop(1)


@pytest.mark.parametrize(
    "path, expected",
    [
        ("/v2/models/a b/versions/3/generate_stream", "/v2/models/{model}/versions/{version}/generate_stream"),
        ("/v1/models/m/labels/stable:classify", "/v1/models/{model}/labels/{label}:classify"),
        ("/v1/models/m:predict", "/v1/models/{model}:predict"),
        ("/v2/models/a/b/infer", ""),
        ("/v2/models/m/config", ""),
        ("/v2/models/m/infer/", ""),
    ],
)
def test_routes(path, expected):
    pytest.importorskip("opentelemetry.sdk", reason=MISSING)
    from pelton.serve import telemetry

    assert telemetry.route(path) == expected


def test_endpoints():
    pytest.importorskip("opentelemetry.sdk", reason=MISSING)
    from pelton.serve.telemetry import endpoint

    assert endpoint("http://collector:4318") == endpoint("http://collector:4318/") == "http://collector:4318/v1/traces"
    assert endpoint("https://c/otlp/v1/traces") == "https://c/otlp/v1/traces" and endpoint("otlp") is None


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps what is sent to it."""

    def do_POST(self):
        content = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        self.server.sent.append((self.path, content))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def collector():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.sent = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("by", ["flag", "variable", "nothing"])
def test_only_the_flag_sends(tmp_path, collector, monkeypatch, by):
    if by != "nothing":
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=MISSING)
    url = f"http://127.0.0.1:{collector.server_port}"
    environment = {"OTEL_SERVICE_NAME": "shop-models", "OTEL_TRACES_EXPORTER": "otlp"}
    if by != "flag":
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
    for name, value in environment.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    save(tmp_path, "half", half_plus_two())
    flags = {"flag": ("--traces", url), "variable": ("--traces", "otlp"), "nothing": ()}[by]
    with running(tmp_path, *flags) as server:
        assert ask(server.url)[0] == 200
        status, errors = server.end()  # sends what is left
    assert status == 0, errors
    if by == "nothing":
        assert collector.sent == []
        return
    ((path, content),) = collector.sent
    assert path == "/v1/traces" and b"shop-models" in content and b"infer half" in content


def test_a_server_without_traces_imports_nothing_of_it():
    code = (
        "import sys; from pelton.serve import run, options; run.traces(options.ServeOptions());"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_missing_packages_and_wrong_flags(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "pelton.serve.telemetry", raising=False)
    with pytest.raises(InputError, match=r'sending traces needs the package opentelemetry: pip install "pelton\[tele'):
        run.traces(ServeOptions(traces="otlp"))
    for flags, message in (
        (("--traces", "collector:4318"), "expected otlp, or a URL such as http://127.0.0.1:4318"),
        (("--traces", "ftp://x"), "expected otlp, or a URL"),
        (("--traces", "otlp", "--trace-rate", "2"), "expected a number from 0 to 1, got '2'"),
        (("--trace-rate", "0.1"), "--trace-rate needs --traces"),
    ):
        with running(tmp_path, *flags) as server:
            status, errors = server.end()
        assert status and message in errors, errors
