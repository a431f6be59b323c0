"""The Open Inference Protocol over gRPC: a synchronous server whose methods are those of the compiled schema.

Source: Open Inference Protocol, version 2, with Triton's extensions; tensors as raw bytes or typed contents.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

import numpy as np

# gRPC 1.80 moved servers from its polling listener to its event engine: a call costs 143 µs instead of 104.
# It reads the variable when it is loaded; versions without this experiment log that they do not know it.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

import grpc  # noqa: E402 - after the variable
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from pelton.errors import InputError

from . import datatypes, schema
from .requests import NONE, InferRequest, OutputRequest, RequestError, distinct, region, requested
from .routes import Endpoints, set_log, trace_settings
from .worker_pool import WorkerPool

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("pelton.serve")

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
WIDE = {"i": np.dtype("i8"), "u": np.dtype("u8")}  # kind of a type → the type of its contents
Response = schema.message("ModelInferResponse")
StreamResponse = schema.message("ModelStreamInferResponse")
THREADS = 2  # that run calls; more contend for the interpreter's lock
EXTRA = 1 << 20  # bytes of a message beside its tensors


class Remote:
    """A running server for gRPC. port: that it listens on."""

    def __init__(self, server: Any, pool: WorkerPool, port: int):
        self._server, self._pool, self.port = server, pool, port

    def stop(self, grace: float) -> None:
        """Rejects new requests, and waits up to `grace` seconds for those under way."""
        self._server.stop(grace).wait()
        self._pool.shutdown()


def start(server: Server) -> Remote:
    """Starts the server's gRPC port. Raises InputError if it cannot be opened."""
    options = server.options
    most = options.body + EXTRA
    pool = WorkerPool(THREADS, options.requests)
    remote = grpc.server(
        pool,
        options=[
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(options.workers > 1)),
            ("grpc.max_metadata_size", options.header),
        ],
    )
    remote.add_generic_rpc_handlers((_handlers(server, pool),))
    address = f"[{options.host}]:{options.grpc_port}" if ":" in options.host else f"{options.host}:{options.grpc_port}"
    try:
        port = (
            remote.add_secure_port(address, _credentials(server))
            if options.certificate
            else remote.add_insecure_port(address)
        )
        if options.unix is not None:
            remote.add_insecure_port(f"unix:{options.unix}.grpc")
    except RuntimeError as e:
        raise InputError(f"port {options.grpc_port} of {options.host} cannot be opened: {e}; choose another") from None
    remote.start()
    return Remote(remote, pool, port)


def _credentials(server: Server) -> Any:
    options = server.options
    assert options.certificate is not None and options.key is not None
    authority = None if options.client_ca is None else options.client_ca.read_bytes()
    pair = options.key.read_bytes(), options.certificate.read_bytes()
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def _handlers(server: Server, pool: WorkerPool) -> Any:
    """Returns the handlers of all methods, by the names and types of the schema."""
    service, token = Service(server, pool), server.options.token
    bearer = None if token is None else f"Bearer {token}"
    handlers = {}
    for method in schema.methods():
        message, asked = schema.message(method.input_type.name), bearer if "Server" not in method.name else None
        function = _guarded(getattr(service, _snake(method.name)), message, asked)
        if server.traces is not None and method.name == "ModelInfer":
            function = server.traces.over_call(function, f"{schema.SERVICE}/{method.name}")
        kind = grpc.stream_stream_rpc_method_handler if method.client_streaming else grpc.unary_unary_rpc_method_handler
        if method.client_streaming:
            function = _guarded_stream(service.stream, message, bearer)
        handlers[method.name] = kind(
            function,  # of bytes: what gRPC cannot read itself, it calls an internal error
            response_serializer=schema.message(method.output_type.name).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(schema.SERVICE, handlers)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _guarded(function: Callable[[Any, Any], Any], message: Any, bearer: str | None) -> Callable[[bytes, Any], Any]:
    """Reads messages, and turns rejections into statuses of gRPC; asks for the server's token, if it has one."""

    def answer(data: bytes, context: Any) -> Any:
        try:
            _authorize(context, bearer)
            return function(message.FromString(data), context)
        except RequestError as e:
            context.abort(getattr(grpc.StatusCode, e.code), str(e))
        except (DecodeError, json_format.ParseError) as e:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
        except Exception as e:
            if not context.is_active() or type(e) is Exception:  # `abort` raises it
                raise
            log.exception("a request failed in the server")
            context.abort(grpc.StatusCode.INTERNAL, "the request failed; the server's log says why")

    return answer


def _guarded_stream(
    function: Callable[[Any, Any], Iterator[Any]], message: Any, bearer: str | None
) -> Callable[[Any, Any], Iterator[Any]]:
    def answer(requests: Iterator[bytes], context: Any) -> Iterator[Any]:
        try:
            _authorize(context, bearer)
            yield from function(map(message.FromString, requests), context)
        except RequestError as e:
            context.abort(getattr(grpc.StatusCode, e.code), str(e))
        except DecodeError as e:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))

    return answer


def _authorize(context: Any, bearer: str | None) -> None:
    if bearer is not None and dict(context.invocation_metadata()).get("authorization") != bearer:
        raise RequestError("this server needs the metadata 'authorization: Bearer TOKEN'", "unauthenticated")


class Service:
    """The methods of the service, named as in the schema, in lower case with underscores."""

    def __init__(self, server: Server, pool: WorkerPool):
        self.server, self.endpoints, self.pool = server, Endpoints(server), pool
        self._infer = self.model_infer  # of a stream
        if server.traces is not None:
            self._infer = server.traces.over_call(self.model_infer, f"{schema.SERVICE}/ModelStreamInfer")

    def server_live(self, request: Any, context: Any) -> Any:
        return schema.message("ServerLiveResponse")(live=True)

    def server_ready(self, request: Any, context: Any) -> Any:
        return schema.message("ServerReadyResponse")(ready=self.server.ready())

    def server_metadata(self, request: Any, context: Any) -> Any:
        return schema.message("ServerMetadataResponse")(**self.server.metadata())

    def model_ready(self, request: Any, context: Any) -> Any:
        if request.version and not request.version.isdigit():
            raise RequestError(f"the version of a model is a whole number, got {request.version[:80]!r}")
        ready = (request.name, request.version) in self.server.table
        return schema.message("ModelReadyResponse")(ready=ready)

    def model_metadata(self, request: Any, context: Any) -> Any:
        return schema.message("ModelMetadataResponse")(**self.endpoints.model(_path(request), None))

    def model_config(self, request: Any, context: Any) -> Any:
        model = self.server.model(request.name, request.version)
        return schema.message("ModelConfigResponse")(config=model.config)

    def model_statistics(self, request: Any, context: Any) -> Any:
        reports = self.server.statistics(request.name, request.version)
        return json_format.ParseDict({"model_stats": reports}, schema.message("ModelStatisticsResponse")())

    def repository_index(self, request: Any, context: Any) -> Any:
        if request.repository_name:
            raise RequestError("the index has the models of all repositories: ask without a name", "unsupported")
        rows = self.endpoints.index({}, {"ready": request.ready})
        return schema.message("RepositoryIndexResponse")(models=rows)

    def repository_model_load(self, request: Any, context: Any) -> Any:
        unknown = [name for name in request.parameters if name != "config"]
        if unknown:
            raise RequestError(f"loading takes the parameter 'config' alone, got {unknown[0][:80]!r}", "unsupported")
        config = request.parameters["config"].string_param if "config" in request.parameters else None
        self.server.load(request.model_name, config)
        return schema.message("RepositoryModelLoadResponse")()

    def repository_model_unload(self, request: Any, context: Any) -> Any:
        parameters = _parameters(request.parameters)
        self.endpoints.unload({"model": request.model_name}, {"parameters": parameters})
        return schema.message("RepositoryModelUnloadResponse")()

    def system_shared_memory_status(self, request: Any, context: Any) -> Any:
        regions = self.endpoints.regions({"region": request.name}, None)
        return schema.message("SystemSharedMemoryStatusResponse")(regions={r["name"]: r for r in regions})

    def system_shared_memory_register(self, request: Any, context: Any) -> Any:
        self.server.regions.register(request.name, request.key, request.offset, request.byte_size)
        return schema.message("SystemSharedMemoryRegisterResponse")()

    def system_shared_memory_unregister(self, request: Any, context: Any) -> Any:
        self.server.regions.unregister(request.name or None)
        return schema.message("SystemSharedMemoryUnregisterResponse")()

    def cuda_shared_memory_status(self, request: Any, context: Any) -> Any:
        self.endpoints.cuda_regions({"region": request.name}, None)
        return schema.message("CudaSharedMemoryStatusResponse")()

    def cuda_shared_memory_register(self, request: Any, context: Any) -> Any:
        return self.endpoints.cuda_register({}, None)

    def cuda_shared_memory_unregister(self, request: Any, context: Any) -> Any:
        return schema.message("CudaSharedMemoryUnregisterResponse")()

    def trace_setting(self, request: Any, context: Any) -> Any:
        if request.model_name:
            self.server.model(request.model_name)
        changes = {name: list(s.value) for name, s in request.settings.items() if s.value}
        settings = trace_settings({name: v if name == "trace_level" else v[0] for name, v in changes.items()})
        texts = {name: {"value": v if isinstance(v, list) else [v]} for name, v in settings.items()}
        return json_format.ParseDict({"settings": texts}, schema.message("TraceSettingResponse")())

    def log_settings(self, request: Any, context: Any) -> Any:
        settings = set_log({name: _chosen(value) for name, value in request.settings.items()})
        response = schema.message("LogSettingsResponse")()
        for name, value in settings.items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(response.settings[name], kind, value)
        return response

    def model_infer(self, request: Any, context: Any) -> Any:
        arrived = time.monotonic_ns()
        if self.pool.backlog() > self.server.options.requests:
            raise RequestError(f"{self.server.options.requests} requests are under way", "full", 1.0)
        running = self.server.begin(read(request, self.server.regions.view), arrived)
        if running.future is not None:
            _cancel_with(context, running.future)
            with self.pool.waiting():
                wait((running.future,))
        return running.finish(lambda version, answers: write(request, version, answers))

    def model_stream_infer(self, request: Any, context: Any) -> Any:
        raise NotImplementedError  # `stream` is its handler

    def stream(self, requests: Any, context: Any) -> Iterator[Any]:
        """Answers the requests of a stream in their order; a rejected one does not end the stream."""
        for request in requests:
            try:
                response = StreamResponse(infer_response=self._infer(request, context))
            except RequestError as e:
                response = StreamResponse(error_message=str(e))
                response.infer_response.id = request.id
            yield response
            if _chosen(request.parameters["triton_enable_empty_final_response"]) is True:
                response = StreamResponse()
                response.infer_response.model_name, response.infer_response.id = request.model_name, request.id
                response.infer_response.parameters["triton_final_response"].bool_param = True
                yield response


def _path(request: Any) -> dict[str, str]:
    return {"model": request.name, "version": request.version}


def _cancel_with(context: Any, future: Future[Any]) -> None:
    """Cancels a run if its client goes, or its deadline passes."""
    if not context.add_callback(future.cancel):
        future.cancel()


def _chosen(parameter: Any) -> Any:
    """Returns the value of a parameter; None if it has none."""
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _parameters(message: Any) -> dict[str, Any]:
    return {name: _chosen(value) for name, value in message.items()}


def read(request: Any, shared: Callable[[tuple[str, int, int]], memoryview]) -> InferRequest:
    """Reads a ModelInferRequest; see `open_inference.read`."""
    raw, place = request.raw_input_contents, 0
    inputs: dict[str, np.ndarray] = {}
    for tensor in request.inputs:
        name, datatype, shape = tensor.name, tensor.datatype, list(tensor.shape)
        if name in inputs:
            raise RequestError(f"input {name!r} is given twice")
        count = datatypes.elements(shape, name)
        memory = region(_parameters(tensor.parameters), f"input {name!r}") if tensor.parameters else None
        if memory is not None:
            inputs[name] = datatypes.from_raw(shared(memory), datatype, shape, count, name)
        elif raw:
            if tensor.HasField("contents"):
                raise RequestError(
                    f"contents field must not be specified when using raw_input_contents for '{name}' for model"
                    f" '{request.model_name}'"
                )
            if place == len(raw):
                raise RequestError(
                    f"raw_input_contents has {len(raw)} tensors, fewer than there are inputs without memory"
                )
            inputs[name] = datatypes.from_raw(raw[place], datatype, shape, count, name)
            place += 1
        else:
            inputs[name] = _contents(tensor, datatype, shape, count)
    if place != len(raw):
        raise RequestError(f"raw_input_contents has {len(raw)} tensors for {place} inputs")
    parameters = _parameters(request.parameters) if request.parameters else NONE
    outputs = distinct([requested(o.name, _parameters(o.parameters), True) for o in request.outputs])
    return InferRequest(request.model_name, request.model_version, inputs, outputs, request.id, parameters, binary=True)


def _contents(tensor: Any, datatype: str, shape: list[int], count: int) -> np.ndarray:
    """Reads typed contents. Raises RequestError for numbers that the type cannot hold, and for other counts."""
    dtype = datatypes.numpy_type(datatype, tensor.name)
    if datatype not in CONTENTS:
        raise RequestError(f"input {tensor.name!r}: {datatype} has no typed contents; send raw_input_contents")
    values = getattr(tensor.contents, CONTENTS[datatype])
    if len(tensor.contents.ListFields()) > 1:
        names = ", ".join(field.name for field, _ in tensor.contents.ListFields())
        raise RequestError(f"contents of input {tensor.name!r} have several types: {names}; send {CONTENTS[datatype]}")
    if len(values) != count:
        raise RequestError(f"input {tensor.name!r} of shape {shape} has {count} elements, got {len(values)}")
    if datatype == "BYTES":
        array = np.empty(count, object)
        array[:] = [str(v, "utf-8", "surrogateescape") for v in values]
        return array.reshape(shape)
    wide = np.fromiter(values, WIDE.get(dtype.kind, dtype), count)
    if dtype.kind in "iu" and count:
        limits = np.iinfo(dtype)
        if wide.min() < limits.min or wide.max() > limits.max:
            raise RequestError(f"contents of input {tensor.name!r} exceed {datatype}, {limits.min} to {limits.max}")
    return wide.astype(dtype, copy=False).reshape(shape)


def write(request: Any, version: str, answers: list[tuple[OutputRequest, np.ndarray]]) -> Any:
    """Writes a ModelInferResponse with raw tensors; those in shared memory have none."""
    response = Response(model_name=request.model_name, model_version=version, id=request.id)
    for asked, array in answers:
        output = response.outputs.add()
        output.name, output.datatype = asked.name, datatypes.datatype_of(array)
        output.shape.extend(array.shape)
        if asked.region is None:
            response.raw_output_contents.append(bytes(datatypes.to_raw(array)))
        else:
            name, offset, size = asked.region
            output.parameters["shared_memory_region"].string_param = name
            output.parameters["shared_memory_offset"].int64_param = offset
            output.parameters["shared_memory_byte_size"].int64_param = size
    return response
