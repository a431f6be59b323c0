"""Requests that are sent to a Triton server and to `pelton serve`, good ones and bad ones."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass, field
from typing import Any

from .oracle_models import DATATYPES

Json = dict[str, Any]
VALUES: dict[str, list[Any]] = {"BOOL": [True, False, True, True], "BYTES": ["a", "", "π", "b c"]}
FORMATS = {"BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"} | {
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class HttpRequest:
    """A request over HTTP. group: what it is of."""

    group: str
    name: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    method: str = ""

    @property
    def verb(self) -> str:
        return self.method or ("GET" if self.body is None else "POST")


@dataclass(frozen=True)
class GrpcRequest:
    """A call over gRPC. content: of the message, as its JSON form has it."""

    group: str
    name: str
    method: str
    content: Json = field(default_factory=dict)


def numbers(datatype: str) -> list[Any]:
    """Returns four values of a datatype."""
    if datatype in VALUES:
        return VALUES[datatype]
    if datatype.startswith("FP"):
        return [0.5, -2.0, 0.0, 1024.0]
    return [0, 1, 2, 100 if datatype.startswith("U") else -100]


def raw(datatype: str, values: list[Any]) -> bytes:
    """Returns values as the protocol's binary tensors have them."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(v.encode())) + v.encode() for v in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def tensor(datatype: str = "FP32", values: Any = None, shape: Any = (1, 4), name: str = "INPUT0", **more: Any) -> Json:
    """Returns an input of a request."""
    data = numbers(datatype) if values is None else values
    return {"name": name, "shape": list(shape), "datatype": datatype, **more, "data": data}


def infer(group: str, name: str, model: str, inputs: Any, headers: Json | None = None, **more: Any) -> HttpRequest:
    """Returns a request to run a model, with its inputs in JSON."""
    body = json.dumps({"inputs": inputs, **more}).encode()
    return HttpRequest(group, name, f"/v2/models/{model}/infer", body, headers or {})


def binary(group: str, name: str, model: str, data: bytes, header: int | str | None = None, **more: Any) -> HttpRequest:
    """Returns a request to run a model with one binary input behind the JSON. header: the length that is named; None
    for the right one. size: of the data as the request names it."""
    size, datatype = more.pop("size", len(data)), more.pop("datatype", "FP32")
    port = {"name": "INPUT0", "shape": more.pop("shape", [1, 4]), "datatype": datatype}
    content = {"inputs": [{**port, "parameters": {"binary_data_size": size}}], **more}
    text = json.dumps(content).encode()
    headers = {JSON_LENGTH: str(len(text) if header is None else header)}
    return HttpRequest(group, name, f"/v2/models/{model}/infer", text + data, headers)


def http() -> list[HttpRequest]:
    """Returns the requests over HTTP, in the order in which they are sent."""
    return [*_looks(), *_good(), *_bad(), *_binary(), *_bad_binary(), *_classes(), *_states()]


def _looks() -> list[HttpRequest]:
    group = "health and metadata"
    paths = {
        "live": "/v2/health/live",
        "ready": "/v2/health/ready",
        "server": "/v2",
        **{f"metadata {m}": f"/v2/models/{m}" for m in ("identity_fp32", "identity_bytes", "single", "add_sub")},
        "metadata of a version": "/v2/models/scores/versions/1",
        "model ready": "/v2/models/single/ready",
        "version ready": "/v2/models/single/versions/1/ready",
        "config": "/v2/models/add_sub/config",
        "config of a version": "/v2/models/batched/versions/1/config",
        "absent model": "/v2/models/absent",
        "absent version": "/v2/models/single/versions/9",
        "version that is no number": "/v2/models/single/versions/x",
        "absent model ready": "/v2/models/absent/ready",
        "absent version ready": "/v2/models/single/versions/9/ready",
        "config of an absent model": "/v2/models/absent/config",
        "absent path": "/v2/absent",
        "path below a model": "/v2/models/single/absent",
        "root": "/",
        "health without a part": "/v2/health",
        "slash behind": "/v2/",
        "models": "/v2/models",
    }
    return [HttpRequest(group, name, path) for name, path in paths.items()] + [
        HttpRequest(group, "POST to ready", "/v2/health/ready", b""),
        HttpRequest(group, "POST to metadata", "/v2/models/single", b"{}"),
        HttpRequest(group, "DELETE a model", "/v2/models/single", method="DELETE"),
        HttpRequest(group, "HEAD of the server", "/v2", method="HEAD"),
        HttpRequest(group, "GET infer", "/v2/models/single/infer"),
    ]


def _good() -> list[HttpRequest]:
    group, four = "requests in JSON", [tensor()]
    both = [tensor("INT32", name="INPUT0"), tensor("INT32", [1, 1, 1, 1], name="INPUT1")]
    path = "/v2/models/single/infer"
    body = json.dumps({"inputs": [tensor(shape=[4])]}).encode()
    text = '{"inputs":[{"name":"INPUT0","shape":[4],"datatype":"FP32","data":%s}]}'
    return [
        *(infer(group, d, f"identity_{d.lower()}", [tensor(d)]) for d in DATATYPES if d != "FP16"),
        infer(group, "nested", "batched", [tensor(values=[[1, 2, 3, 4]])]),
        infer(group, "nested otherwise", "batched", [tensor(values=[[1, 2], [3, 4]])]),
        infer(group, "a batch", "batched", [tensor(values=[0.1] * 12, shape=[3, 4])]),
        infer(group, "no batch", "single", [tensor(shape=[4])]),
        infer(group, "two inputs", "add_sub", both),
        infer(group, "inputs in another order", "add_sub", both[::-1]),
        infer(group, "one output", "add_sub", both, outputs=[{"name": "OUTPUT1"}]),
        infer(group, "outputs in another order", "add_sub", both, outputs=[{"name": f"OUTPUT{i}"} for i in (1, 0)]),
        infer(group, "no outputs named", "batched", four, outputs=[]),
        infer(group, "an output twice", "batched", four, outputs=[{"name": "OUTPUT0"}] * 2),
        infer(group, "identifier", "batched", four, id="abc"),
        infer(group, "empty identifier", "batched", four, id=""),
        infer(group, "parameters", "batched", four, parameters={"mine": 1, "text": "a", "flag": True}),
        infer(group, "unknown keys", "batched", [tensor(other=1)], more={"a": 1}),
        infer(group, "data not as binary", "batched", [tensor(parameters={"binary_data": False})]),
        infer(group, "no rows", "batched", [tensor(values=[], shape=[0, 4])]),
        infer(group, "no columns", "identity_fp32", [tensor(values=[], shape=[1, 0])]),
        infer(group, "whole numbers for floats", "single", [tensor(values=[1, 2, 3, 4], shape=[4])]),
        infer(group, "a version", "single/versions/1", [tensor(shape=[4])]),
        infer(group, "an empty text", "identity_bytes", [tensor("BYTES", [""], [1, 1])]),
        HttpRequest(group, "numbers with exponents", path, (text % "[1e2,-1E-2,2.5e+3,0.0]").encode()),
        HttpRequest(group, "many digits", path, (text % "[0.1,0.30000001192092896,1e-45,16777217]").encode()),
        HttpRequest(group, "another type of content", path, body, {"Content-Type": "text/plain"}),
        HttpRequest(group, "compressed", path, gzip.compress(body), {"Content-Encoding": "gzip"}),
        HttpRequest(group, "length of the JSON", path, body, {JSON_LENGTH: str(len(body))}),
        HttpRequest(group, "length in small letters", path, body, {JSON_LENGTH.lower(): str(len(body))}),
    ]


def _bad() -> list[HttpRequest]:
    group, four = "bad requests in JSON", [tensor()]
    path, memory = "/v2/models/single/infer", {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    no_name, no_shape, no_type, no_data = ({k: v for k, v in four[0].items() if k != key} for key in four[0])
    texts = {
        "empty body": b"",
        "no JSON": b"{",
        "a list": b"[]",
        "a number": b"1",
        "null": b"null",
        "empty object": b"{}",
    }
    return [
        *(HttpRequest(group, name, path, body) for name, body in texts.items()),
        HttpRequest(group, "no UTF-8", path, b'{"inputs": [{"name": "\xff"}]}'),
        infer(group, "inputs are no list", "single", {"a": 1}),
        infer(group, "no inputs", "single", []),
        infer(group, "an input is a number", "single", [1]),
        infer(group, "no name", "batched", [no_name]),
        infer(group, "no shape", "batched", [no_shape]),
        infer(group, "no datatype", "batched", [no_type]),
        infer(group, "no data", "batched", [no_data]),
        infer(group, "name is a number", "batched", [{**four[0], "name": 1}]),
        infer(group, "unknown input", "batched", [tensor(name="OTHER")]),
        infer(group, "an input too many", "batched", [*four, tensor(name="OTHER")]),
        infer(group, "an input twice", "batched", four * 2),
        infer(group, "an input too few", "add_sub", [tensor("INT32")]),
        infer(group, "unknown datatype", "batched", [{**four[0], "datatype": "FP12"}]),
        infer(group, "another datatype", "batched", [tensor("INT32")]),
        infer(group, "FP16 in JSON", "identity_fp16", [tensor("FP16")]),
        infer(group, "shape is a text", "batched", [{**four[0], "shape": "1,4"}]),
        infer(group, "shape of a text", "batched", [tensor(shape=["1", 4])]),
        infer(group, "negative size", "batched", [tensor(shape=[-1, 4])]),
        infer(group, "size with a fraction", "batched", [tensor(shape=[1.5, 4])]),
        infer(group, "another width", "batched", [tensor(values=[1, 2, 3], shape=[1, 3])]),
        infer(group, "an axis too few", "batched", [tensor(shape=[4])]),
        infer(group, "an axis too many", "batched", [tensor(shape=[1, 1, 4])]),
        infer(group, "an axis too many for one without batch", "single", [tensor()]),
        infer(group, "too many rows", "batched", [tensor(values=[0.5] * 36, shape=[9, 4])]),
        infer(group, "a value too few", "batched", [tensor(values=[1, 2, 3])]),
        infer(group, "a value too many", "batched", [tensor(values=[1, 2, 3, 4, 5])]),
        infer(group, "data is a number", "batched", [tensor(values=1)]),
        infer(group, "data is a text", "batched", [tensor(values="abcd")]),
        infer(group, "a text among numbers", "batched", [tensor(values=[1, "2", 3, 4])]),
        infer(group, "null among numbers", "batched", [tensor(values=[1, None, 3, 4])]),
        infer(group, "true among numbers", "batched", [tensor(values=[1, True, 3, 4])]),
        infer(group, "a fraction for whole numbers", "identity_int32", [tensor("INT32", [1.5, 2, 3, 4])]),
        infer(group, "a number out of range", "identity_int8", [tensor("INT8", [1, 300, 3, 4])]),
        infer(group, "a negative number without a sign", "identity_uint8", [tensor("UINT8", [1, -3, 3, 4])]),
        infer(group, "a number for a truth value", "identity_bool", [tensor("BOOL", [1, 0, 1, 0])]),
        infer(group, "a number for a text", "identity_bytes", [tensor("BYTES", [1, 2, 3, 4])]),
        infer(group, "unknown output", "batched", four, outputs=[{"name": "OTHER"}]),
        infer(group, "outputs are no list", "batched", four, outputs={"name": "OUTPUT0"}),
        infer(group, "an output without a name", "batched", four, outputs=[{}]),
        infer(group, "identifier is a number", "batched", four, id=7),
        infer(group, "parameters are a list", "batched", four, parameters=[1]),
        infer(group, "a parameter is a list", "batched", four, parameters={"a": [1]}),
        infer(group, "absent model", "absent", four),
        infer(group, "absent version", "single/versions/7", four),
        infer(group, "unknown region", "batched", [{**no_data, "parameters": memory}]),
        infer(group, "region without a size", "batched", [{**no_data, "parameters": {"shared_memory_region": "r"}}]),
        HttpRequest(group, "unknown compression", path, b"{}", {"Content-Encoding": "br"}),
        HttpRequest(group, "no compressed data", path, b"{}", {"Content-Encoding": "gzip"}),
    ]


def _binary() -> list[HttpRequest]:
    group, all_binary = "binary tensors", {"binary_data_output": True}
    data = raw("FP32", numbers("FP32"))
    one = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    no = [{"name": "OUTPUT0", "parameters": {"binary_data": False}}]
    both = [tensor("INT32", name="INPUT0"), tensor("INT32", [1, 1, 1, 1], name="INPUT1")]
    mixed = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}]
    return [
        *(
            binary(group, d, f"identity_{d.lower()}", raw(d, numbers(d)), datatype=d, parameters=all_binary)
            for d in DATATYPES
        ),
        binary(group, "answer in JSON", "batched", data),
        binary(group, "an output named", "batched", data, outputs=one),
        binary(group, "the output's parameter first", "batched", data, outputs=no, parameters=all_binary),
        infer(group, "only the answer", "batched", [tensor()], outputs=one),
        infer(group, "one output of two", "add_sub", both, outputs=mixed),
        infer(group, "both outputs", "add_sub", both, parameters=all_binary),
        infer(group, "with an identifier", "batched", [tensor()], parameters=all_binary, id="7"),
        binary(group, "no bytes", "identity_fp32", b"", shape=[1, 0], parameters=all_binary),
    ]


def _bad_binary() -> list[HttpRequest]:
    group = "bad binary tensors"
    data = raw("FP32", numbers("FP32"))
    texts = raw("BYTES", numbers("BYTES"))

    def strings(name: str, data: bytes) -> HttpRequest:
        return binary(group, name, "identity_bytes", data, datatype="BYTES")

    return [
        binary(group, "a byte too few", "batched", data[:-1]),
        binary(group, "a byte too many", "batched", data + b"x"),
        binary(group, "less data than the size says", "batched", data[:8], size=16),
        binary(group, "more data than the size says", "batched", data + data, size=16),
        binary(group, "size is a text", "batched", data, size="16"),
        binary(group, "size is negative", "batched", data, size=-16),
        binary(group, "length is too large", "batched", data, header=100000),
        binary(group, "length is too small", "batched", data, header=10),
        binary(group, "length is no number", "batched", data, header="abc"),
        binary(group, "length is negative", "batched", data, header=-5),
        binary(group, "length is 0", "batched", data, header=0),
        strings("a text too few", texts[: -len(raw("BYTES", ["b c"]))]),
        strings("a text too many", texts + raw("BYTES", ["x"])),
        strings("a text that is cut off", texts[:-1]),
        strings("a length that is cut off", texts[:-5]),
        strings("a length beyond the end", b"\xff\xff\xff\xff" + texts[4:]),
    ]


def _classes() -> list[HttpRequest]:
    group, row = "classification", [tensor(values=[0.1, 0.9, 0.4], shape=[1, 3])]

    def ask(name: str, count: Any, inputs: Any = None, **more: Any) -> HttpRequest:
        outputs = [{"name": "OUTPUT0", "parameters": {"classification": count, **more}}]
        return infer(group, name, "scores", inputs or row, outputs=outputs)

    return [
        ask("one class", 1),
        ask("two classes", 2),
        ask("more classes than there are", 9),
        ask("two rows", 1, [tensor(values=[1, 2, 3, 6, 5, 4], shape=[2, 3])]),
        ask("no class", 0),
        ask("a negative number", -1),
        ask("a text", "2"),
        ask("binary", 1, binary_data=True),
    ]


def _states() -> list[HttpRequest]:
    group = "repository, statistics, settings, memory"
    paths = {
        "statistics": "/v2/models/stats",
        "statistics of a model": "/v2/models/batched/stats",
        "statistics of a version": "/v2/models/batched/versions/1/stats",
        "statistics of an absent model": "/v2/models/absent/stats",
        "memory": "/v2/systemsharedmemory/status",
        "memory of an absent region": "/v2/systemsharedmemory/region/r/status",
        "CUDA memory": "/v2/cudasharedmemory/status",
        "trace settings": "/v2/trace/setting",
        "trace settings of a model": "/v2/models/single/trace/setting",
        "log settings": "/v2/logging",
    }
    posts: dict[str, tuple[str, bytes]] = {
        "index": ("/v2/repository/index", b""),
        "index of ready models": ("/v2/repository/index", b'{"ready": true}'),
        "index with an empty object": ("/v2/repository/index", b"{}"),
        "index of another repository": ("/v2/repository/absent/index", b""),
        "index, no JSON": ("/v2/repository/index", b"{"),
        "load": ("/v2/repository/models/single/load", b""),
        "load an absent model": ("/v2/repository/models/absent/load", b""),
        "unload": ("/v2/repository/models/single/unload", b""),
        "register without a key": ("/v2/systemsharedmemory/region/r/register", b'{"offset": 0, "byte_size": 4}'),
        "register an absent file": (
            "/v2/systemsharedmemory/region/r/register",
            b'{"key": "/absent_pelton_oracle", "offset": 0, "byte_size": 4}',
        ),
        "unregister an absent region": ("/v2/systemsharedmemory/region/r/unregister", b""),
        "unregister all": ("/v2/systemsharedmemory/unregister", b""),
        "log settings, unknown": ("/v2/logging", b'{"absent": 1}'),
        "log settings, no truth value": ("/v2/logging", b'{"log_info": "yes"}'),
        "trace settings, unknown": ("/v2/trace/setting", b'{"absent": "1"}'),
    }
    return [HttpRequest(group, n, p) for n, p in paths.items()] + [
        HttpRequest(group, n, p, body) for n, (p, body) in posts.items()
    ]
