"""Routes of the Open Inference Protocol besides inference: health, metadata, statistics, repository, shared memory."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from google.protobuf import json_format
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from .generate import Generate
from .model import ServedModel
from .openai.api import OpenAiApi
from .openai.faults import PATHS as OPENAI_PATHS
from .page import Page
from .requests import RequestError, integer, shown
from .server import Server
from .tensorflow import TensorFlowApi

log = logging.getLogger("pelton.serve")
Route = Callable[..., Awaitable[None]]
Answer = Any  # what is sent as JSON; None for an empty body
UNLOADING = "unloading takes the parameter 'unload_dependents' alone"
TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}


def config_of(model: ServedModel) -> dict[str, Any]:
    """Returns a model's configuration as the protocol's JSON has it."""
    config: dict[str, Any] = json_format.MessageToDict(
        model.config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _in_order(model.config.DESCRIPTOR, config)


def _in_order(message: Any, content: dict[str, Any]) -> dict[str, Any]:
    """Returns a message's JSON with its fields in the schema's order, and with numbers where protobuf writes integers
    of 64 bits as text."""
    ordered = {}
    for field in message.fields:
        if field.name not in content:
            continue
        value, inner = content[field.name], field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            entry = inner.fields_by_name["value"].message_type
            value = value if entry is None else {k: _in_order(entry, v) for k, v in value.items()}
        elif inner is not None:
            many = isinstance(value, list)
            value = [_in_order(inner, v) for v in value] if many else _in_order(inner, value)
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            value = [int(v) for v in value] if isinstance(value, list) else int(value)
        ordered[field.name] = value
    return ordered


def log_settings() -> dict[str, Any]:
    """Returns the log's settings as the extension "logging" names them."""
    level = log.getEffectiveLevel()
    return {
        "log_file": "",
        "log_info": level <= logging.INFO,
        "log_warning": level <= logging.WARNING,
        "log_error": level <= logging.ERROR,
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def set_log(changes: Any) -> dict[str, Any]:
    """Changes the level of the log. Raises RequestError for settings other than log_info and log_verbose_level."""
    if not isinstance(changes, dict):
        raise RequestError("log settings are an object")
    present = log_settings()
    for name, value in changes.items():
        if name == "log_verbose_level":
            log.setLevel(logging.DEBUG if integer(value, name, 0, 1 << 31) else logging.INFO)
        elif name == "log_info" and isinstance(value, bool):
            log.setLevel(logging.INFO if value else logging.WARNING)
        elif present.get(name) != value:
            raise RequestError(f"log setting {name[:80]!r} cannot be changed to {shown(value)}", "unsupported")
    return log_settings()


def trace_settings(changes: Any) -> dict[str, Any]:
    """Returns the trace settings. Raises RequestError for a change: requests are not traced."""
    if not isinstance(changes, dict):
        raise RequestError("trace settings are an object")
    for name, value in changes.items():
        if value is not None and TRACE.get(name) != value:
            raise RequestError(f"trace setting {name[:80]!r} cannot be changed: requests are not traced", "unsupported")
    return TRACE


class MethodRoute(StarletteRoute):
    """A route that answers other methods than its own with an error in JSON."""

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] in (self.methods or (scope["method"],)):
            await super().handle(scope, receive, send)
            return
        allowed = ", ".join(sorted(self.methods or ()))
        body = orjson.dumps({"error": f"{scope['path'][:200]} takes {allowed}, not {scope['method'][:20]}"})
        await Response(body, 405, {"Allow": allowed}, "application/json")(scope, receive, send)


class Endpoints:
    """The protocol's requests, each from its path's parameters and the JSON of its body."""

    def __init__(self, server: Server):
        self.server = server

    def live(self, path: dict[str, str], body: Any) -> Answer:
        return {"live": True}

    def ready(self, path: dict[str, str], body: Any) -> Answer:
        if not self.server.ready():
            raise RequestError("the server is not ready", "unavailable")
        return {"ready": True}

    def metadata(self, path: dict[str, str], body: Any) -> Answer:
        return self.server.metadata()

    def model(self, path: dict[str, str], body: Any) -> Answer:
        model = self.server.model(path["model"], path.get("version", ""))
        return {**model.metadata(), "versions": self.server.versions(model.name)}

    def model_ready(self, path: dict[str, str], body: Any) -> Answer:
        try:
            model = self.server.model(path["model"], path.get("version", ""))
        except RequestError as e:
            raise RequestError(str(e)) from None  # status 400, as clients expect
        return {"name": model.name, "ready": True}

    def config(self, path: dict[str, str], body: Any) -> Answer:
        return config_of(self.server.model(path["model"], path.get("version", "")))

    def statistics(self, path: dict[str, str], body: Any) -> Answer:
        return {"model_stats": self.server.statistics(path.get("model", ""), path.get("version", ""))}

    def index(self, path: dict[str, str], body: Any) -> Answer:
        ready = _object(body).get("ready", False)
        if not isinstance(ready, bool):
            raise RequestError(f"Invalid value for 'ready': expected a boolean, got {shown(ready)}")
        rows = [{k: v for k, v in row.items() if k != "reason" or v} for row in self.server.index()]
        return [r for r in rows if r.get("state") == "READY"] if ready else rows

    def load(self, path: dict[str, str], body: Any) -> Answer:
        parameters = _object(_object(body).get("parameters"))
        unknown = [name for name in parameters if name != "config"]
        if unknown:
            raise RequestError(f"loading takes the parameter 'config' alone, got {unknown[0][:80]!r}", "unsupported")
        config = parameters.get("config")
        if config is not None and not isinstance(config, str):
            raise RequestError("the parameter config is a text: JSON of a model configuration")
        self.server.load(path["model"], config)
        return None

    def unload(self, path: dict[str, str], body: Any) -> Answer:
        parameters = _object(_object(body).get("parameters"))
        dependents = parameters.pop("unload_dependents", False)
        if parameters:
            raise RequestError(f"{UNLOADING}, got {next(iter(parameters))[:80]!r}", "unsupported")
        if not isinstance(dependents, bool):
            raise RequestError(f"the parameter unload_dependents is a boolean, got {shown(dependents)}")
        self.server.unload(path["model"], dependents)
        return None

    def regions(self, path: dict[str, str], body: Any) -> Answer:
        regions = self.server.regions
        return [r.report() for r in ([regions.get(path["region"])] if path.get("region") else regions)]

    def register(self, path: dict[str, str], body: Any) -> Answer:
        place = _object(body)
        self.server.regions.register(path["region"], place.get("key"), place.get("offset", 0), place.get("byte_size"))
        return None

    def unregister(self, path: dict[str, str], body: Any) -> Answer:
        self.server.regions.unregister(path.get("region"))
        return None

    def cuda_regions(self, path: dict[str, str], body: Any) -> Answer:
        if path.get("region"):
            raise RequestError(f"Unable to find cuda shared memory region: '{path['region'][:200]}'", "absent")
        return []

    def cuda_register(self, path: dict[str, str], body: Any) -> Answer:
        raise RequestError(
            "failed to register shared memory region: invalid args, this server has no CUDA shared memory",
            "unsupported",
        )

    def cuda_unregister(self, path: dict[str, str], body: Any) -> Answer:
        return None

    def log(self, path: dict[str, str], body: Any) -> Answer:
        return set_log(_object(body))

    def trace(self, path: dict[str, str], body: Any) -> Answer:
        if "model" in path:
            self.server.model(path["model"])
        return trace_settings(_object(body))


MODEL, VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
# name of an endpoint → methods, paths
PATHS: dict[str, tuple[str, tuple[str, ...]]] = {
    "live": ("GET", ("/v2/health/live",)),
    "ready": ("GET", ("/v2/health/ready",)),
    "metadata": ("GET", ("/v2", "/v2/")),
    "statistics": ("GET", ("/v2/models/stats", MODEL + "/stats", VERSION + "/stats")),
    "model": ("GET", (MODEL, VERSION)),
    "model_ready": ("GET", (MODEL + "/ready", VERSION + "/ready")),
    "config": ("GET", (MODEL + "/config", VERSION + "/config")),
    "index": ("POST", ("/v2/repository/index", "/v2/repository/{repository}/index")),
    "load": ("POST", ("/v2/repository/models/{model}/load",)),
    "unload": ("POST", ("/v2/repository/models/{model}/unload",)),
    "regions": ("GET", (SYSTEM + "/status", SYSTEM + "/region/{region}/status")),
    "register": ("POST", (SYSTEM + "/region/{region}/register",)),
    "unregister": ("POST", (SYSTEM + "/unregister", SYSTEM + "/region/{region}/unregister")),
    "cuda_regions": ("GET", (CUDA + "/status", CUDA + "/region/{region}/status")),
    "cuda_register": ("POST", (CUDA + "/region/{region}/register",)),
    "cuda_unregister": ("POST", (CUDA + "/unregister", CUDA + "/region/{region}/unregister")),
    "log": ("GET POST", ("/v2/logging",)),
    "trace": ("GET POST", ("/v2/trace/setting", MODEL + "/trace/setting")),
}


def other_routes(server: Server) -> Route:
    """Returns the ASGI application of all paths but inference."""
    endpoints = Endpoints(server)
    routes: list[StarletteRoute] = [
        MethodRoute(path, _endpoint(getattr(endpoints, name)), methods=methods.split())
        for name, (methods, paths) in PATHS.items()
        for path in paths
    ]
    generate = Generate(server)
    for path in (MODEL, VERSION):
        routes += [StarletteRoute(path + end, generate) for end in ("/generate", "/generate_stream")]
    openai = OpenAiApi(server)
    routes += [StarletteRoute(path, openai) for path in OPENAI_PATHS]
    routes.append(StarletteRoute("/v1/{rest:path}", TensorFlowApi(server)))
    routes += Page(server).routes()
    return Router(routes, redirect_slashes=False, default=_unknown)


def _endpoint(function: Callable[[dict[str, str], Any], Answer]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        body = request.scope["pelton.body"]
        try:
            content = orjson.loads(body) if body else None
        except orjson.JSONDecodeError as e:
            raise RequestError(f"failed to parse the request JSON: {e}") from None
        result = await run_in_threadpool(function, request.path_params, content)
        if result is None:
            return Response(b"", media_type="application/json")
        return Response(orjson.dumps(result), media_type="application/json")

    return answer


async def _unknown(scope: Any, receive: Any, send: Any) -> None:
    raise RequestError(f"there is nothing at {scope['path'][:200]!r}", "absent")


def _object(content: Any) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise RequestError(f"the body is an object of JSON, got {shown(content)}")
    return content
