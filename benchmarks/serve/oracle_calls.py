"""Calls over gRPC that are sent to a Triton server and to `pelton serve`, good ones and bad ones."""

from __future__ import annotations

import base64
from typing import Any

from pelton.serve.grpc import CONTENTS

from .oracle_models import DATATYPES
from .oracle_requests import GrpcRequest, Json, numbers, raw


def contents(datatype: str, values: list[Any]) -> Json:
    """Returns the typed contents of a tensor."""
    if datatype == "BYTES":
        values = [base64.b64encode(v.encode()).decode() for v in values]
    return {CONTENTS[datatype]: values}


def port(datatype: str = "FP32", shape: Any = (1, 4), name: str = "INPUT0", **more: Any) -> Json:
    """Returns an input of a call, without its data."""
    return {"name": name, "datatype": datatype, "shape": [str(n) for n in shape], **more}


def typed(datatype: str = "FP32", values: Any = None, shape: Any = (1, 4), name: str = "INPUT0") -> Json:
    """Returns an input with its data."""
    data = numbers(datatype) if values is None else values
    return port(datatype, shape, name, contents=contents(datatype, data))


def infer(
    group: str, name: str, model: str, inputs: list[Json], data: tuple[bytes, ...] = (), **more: Any
) -> GrpcRequest:
    """Returns a call that runs a model. data: of each input, as raw bytes."""
    content = {"model_name": model, "inputs": inputs, **more}
    if data:
        content["raw_input_contents"] = [base64.b64encode(d).decode() for d in data]
    return GrpcRequest(group, name, "ModelInfer", content)


def grpc() -> list[GrpcRequest]:
    """Returns the calls, in the order in which they are sent."""
    return [*_looks(), *_good(), *_bad(), *_states()]


def _looks() -> list[GrpcRequest]:
    group = "gRPC: health and metadata"
    asked: list[tuple[str, str, Json]] = [
        ("live", "ServerLive", {}),
        ("ready", "ServerReady", {}),
        ("server", "ServerMetadata", {}),
        ("model ready", "ModelReady", {"name": "single"}),
        ("version ready", "ModelReady", {"name": "single", "version": "1"}),
        ("absent model ready", "ModelReady", {"name": "absent"}),
        ("absent version ready", "ModelReady", {"name": "single", "version": "9"}),
        ("version that is no number ready", "ModelReady", {"name": "single", "version": "x"}),
        ("metadata", "ModelMetadata", {"name": "add_sub"}),
        ("metadata of a version", "ModelMetadata", {"name": "single", "version": "1"}),
        ("metadata of an absent model", "ModelMetadata", {"name": "absent"}),
        ("metadata without a name", "ModelMetadata", {}),
        ("config", "ModelConfig", {"name": "batched"}),
        ("config of an absent model", "ModelConfig", {"name": "absent"}),
    ]
    return [GrpcRequest(group, name, method, content) for name, method, content in asked]


def _good() -> list[GrpcRequest]:
    group, data = "gRPC: requests", raw("FP32", numbers("FP32"))
    both = [typed("INT32"), typed("INT32", [1, 1, 1, 1], name="INPUT1")]
    return [
        *(infer(group, f"{d}, typed", f"identity_{d.lower()}", [typed(d)]) for d in DATATYPES if d != "FP16"),
        *(infer(group, f"{d}, raw", f"identity_{d.lower()}", [port(d)], (raw(d, numbers(d)),)) for d in DATATYPES),
        infer(group, "two inputs", "add_sub", both),
        infer(group, "one output", "add_sub", both, outputs=[{"name": "OUTPUT1"}]),
        infer(group, "outputs in another order", "add_sub", both, outputs=[{"name": f"OUTPUT{i}"} for i in (1, 0)]),
        infer(group, "identifier", "batched", [typed()], id="abc"),
        infer(group, "a version", "batched", [typed()], model_version="1"),
        infer(group, "parameters", "batched", [typed()], parameters={"mine": {"int64_param": "1"}}),
        infer(group, "no batch", "single", [port(shape=[4])], (data,)),
        infer(group, "no columns", "identity_fp32", [port(shape=[1, 0])], (b"",)),
        infer(
            group,
            "classes",
            "scores",
            [typed(values=[0.1, 0.9, 0.4], shape=[1, 3])],
            outputs=[{"name": "OUTPUT0", "parameters": {"classification": {"int64_param": "2"}}}],
        ),
    ]


def _bad() -> list[GrpcRequest]:
    group, data = "gRPC: bad requests", raw("FP32", numbers("FP32"))
    no_type = {"name": "INPUT0", "shape": ["1", "4"], "contents": contents("FP32", [1, 2, 3, 4])}
    return [
        infer(group, "no model", "", [typed()]),
        infer(group, "absent model", "absent", [typed()]),
        infer(group, "absent version", "batched", [typed()], model_version="9"),
        infer(group, "no inputs", "batched", []),
        infer(group, "no data", "batched", [port()]),
        infer(group, "typed and raw", "batched", [typed()], (data,)),
        infer(group, "raw data too few", "add_sub", [port("INT32"), port("INT32", name="INPUT1")], (data,)),
        infer(group, "raw data too many", "batched", [port()], (data, data)),
        infer(group, "a byte too few", "batched", [port()], (data[:-1],)),
        infer(group, "a byte too many", "batched", [port()], (data + b"x",)),
        infer(group, "a value too few", "batched", [typed(values=[1.0, 2.0])]),
        infer(group, "a value too many", "batched", [typed(values=[1.0] * 5)]),
        infer(group, "no datatype", "batched", [no_type]),
        infer(group, "unknown datatype", "batched", [port("FP12", contents=contents("FP32", [1, 2, 3, 4]))]),
        infer(group, "another datatype", "batched", [typed("INT32")]),
        infer(group, "contents of another type", "batched", [port(contents=contents("INT32", [1, 2, 3, 4]))]),
        infer(
            group,
            "contents of two types",
            "batched",
            [port(contents=contents("INT32", [1]) | contents("FP32", [1, 2, 3, 4]))],
        ),
        infer(group, "a number out of range", "identity_int8", [typed("INT8", [1, 300, 3, 4])]),
        infer(group, "negative size", "batched", [typed(shape=[-1, 4])]),
        infer(group, "an axis too many", "batched", [typed(shape=[1, 1, 4])]),
        infer(group, "another width", "batched", [typed(values=[1.0, 2.0, 3.0], shape=[1, 3])]),
        infer(group, "too many rows", "batched", [typed(values=[0.5] * 36, shape=[9, 4])]),
        infer(group, "unknown input", "batched", [typed(name="OTHER")]),
        infer(group, "an input too few", "add_sub", [typed("INT32")]),
        infer(group, "an input twice", "batched", [typed(), typed()]),
        infer(group, "unknown output", "batched", [typed()], outputs=[{"name": "OTHER"}]),
        infer(group, "an output twice", "batched", [typed()], outputs=[{"name": "OUTPUT0"}] * 2),
        infer(
            group, "a text that is cut off", "identity_bytes", [port("BYTES")], (raw("BYTES", numbers("BYTES"))[:-1],)
        ),
        infer(group, "a text too few", "identity_bytes", [port("BYTES")], (raw("BYTES", ["a", "b", "c"]),)),
        infer(
            group,
            "unknown region",
            "batched",
            [
                port(
                    parameters={
                        "shared_memory_region": {"string_param": "r"},
                        "shared_memory_byte_size": {"int64_param": "16"},
                    }
                )
            ],
        ),
    ]


def _states() -> list[GrpcRequest]:
    group = "gRPC: repository, statistics, settings, memory"
    asked: list[tuple[str, str, Json]] = [
        ("statistics of a model", "ModelStatistics", {"name": "batched"}),
        ("statistics of an absent model", "ModelStatistics", {"name": "absent"}),
        ("index", "RepositoryIndex", {}),
        ("index of ready models", "RepositoryIndex", {"ready": True}),
        ("index of another repository", "RepositoryIndex", {"repository_name": "absent"}),
        ("load", "RepositoryModelLoad", {"model_name": "single"}),
        ("load an absent model", "RepositoryModelLoad", {"model_name": "absent"}),
        ("unload", "RepositoryModelUnload", {"model_name": "single"}),
        ("memory", "SystemSharedMemoryStatus", {}),
        ("memory of an absent region", "SystemSharedMemoryStatus", {"name": "r"}),
        (
            "register an absent file",
            "SystemSharedMemoryRegister",
            {"name": "r", "key": "/absent_oracle", "byte_size": "4"},
        ),
        ("unregister an absent region", "SystemSharedMemoryUnregister", {"name": "r"}),
        ("CUDA memory", "CudaSharedMemoryStatus", {}),
        ("trace settings", "TraceSetting", {}),
        ("log settings", "LogSettings", {}),
        ("log settings, unknown", "LogSettings", {"settings": {"absent": {"bool_param": True}}}),
    ]
    return [GrpcRequest(group, name, method, content) for name, method, content in asked]
