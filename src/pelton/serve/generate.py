"""The extension "generate" of Triton Inference Server: a flat JSON object in, a flat JSON object out.

Source: Triton's documentation, extension_generate.md. Models answer once, so a stream has one event.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from . import datatypes
from .requests import InferRequest, OutputRequest, RequestError, shown
from .server import Server

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class Generate:
    """The extension as an ASGI application, for the routes that end in /generate and /generate_stream."""

    def __init__(self, server: Server):
        self.server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] != "POST":
            raise RequestError("generate takes POST alone", "method")
        arrived = time.monotonic_ns()
        application, path, headers = scope["pelton.application"], scope["path_params"], scope["pelton.headers"]
        model = self.server.model(path["model"], path.get("version", ""))
        limit = application.options.body
        request = read(scope["pelton.body"], model.name, path.get("version", ""), model.metadata()["inputs"], limit)
        body = await application.infer(request, arrived, receive, lambda v, answers: write(request, v, answers))
        if scope["path"].endswith("/generate_stream"):
            await application.answer(send, 200, b"data: " + body + b"\n\n", [EVENTS])
        else:
            await application.answer(send, 200, body, [JSON], headers)


def read(body: bytes, model: str, version: str, inputs: list[dict[str, Any]], limit: int) -> InferRequest:
    """Reads a request: members named like inputs are tensors, others parameters, as are those of "parameters".

    inputs: of the model's metadata. limit: bytes of all tensors. Raises RequestError for what is neither.
    """
    ports = {tensor["name"]: tensor for tensor in inputs}
    request = InferRequest(model, version, {})
    size = 0
    for name, value in _members(_object(body)):
        if name == "id":
            if not isinstance(value, str):
                raise RequestError(f"id of a request is a text, got {shown(value)}")
            request.id = value
        elif name not in ports:
            if not isinstance(value, (bool, int, float, str)):
                raise RequestError(
                    f"parameter '{name[:200]}' has invalid type. It should be either 'int', 'bool', 'string' or"
                    " 'double'."
                )
            request.parameters = {**request.parameters, name: value}
        elif name in request.inputs:
            raise RequestError(f"input '{name}' already exists in request")
        else:
            array = _tensor(value, ports[name])
            added = array.nbytes if array.dtype.kind != "O" else sum(4 + len(s) for s in datatypes.strings(array))
            if size + added > limit:
                raise RequestError(
                    f"request size of {size} bytes with input '{name}' of size {added} bytes exceeds the maximum"
                    f" allowed input size of {limit}. Use --http-max-input-size to increase the limit."
                )
            size += added
            request.inputs[name] = array
    return request


def _object(body: bytes) -> dict[str, Any]:
    """Parses an object, whose members may not repeat."""
    try:
        content = json.loads(body.decode() or "{}", object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        if isinstance(e, RequestError):
            raise
        raise RequestError(f"failed to parse the request JSON: {e}") from None
    if not isinstance(content, dict):
        raise RequestError(f"a request to generate is an object of JSON, got {shown(content)}")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise RequestError(f"input '{name[:200]}' already exists in request")
        content[name] = value
    return content


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _members(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the members of a request and those of its object "parameters"."""
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError("Expected JSON object for keyword: 'parameters'")
    return [*((name, value) for name, value in content.items() if name != "parameters"), *parameters.items()]


def _tensor(value: Any, port: Mapping[str, Any]) -> np.ndarray:
    """Reads a value or a list as a tensor of the input's shape: its innermost dynamic size takes the elements that the
    fixed ones leave, other dynamic sizes are 1."""
    name, datatype = port["name"], port["datatype"]
    values = value if isinstance(value, list) else [value]
    if datatype == "BYTES":
        flat = datatypes.flat_strings(values, name)
    else:
        flat = datatypes.from_json(values, datatype, [len(values)], len(values), name)
    shape = list(port["shape"])
    fixed = math.prod(size for size in shape if size >= 0)
    dynamic = [axis for axis, size in enumerate(shape) if size < 0]
    rest = flat.size // max(fixed, 1)
    for axis in dynamic:
        shape[axis] = rest if axis == dynamic[-1] else 1
    if math.prod(shape) != flat.size:
        raise RequestError(
            f"The schema can not convert input '{name}' to tensor with proper shape: {flat.size} elements make no"
            f" tensor of shape {port['shape']}"
        )
    return flat.reshape(shape)


def write(request: InferRequest, version: str, answers: list[tuple[OutputRequest, np.ndarray]]) -> bytes:
    """Writes an answer: each output as a flat list, or as a value if it has one element."""
    answer: dict[str, Any] = {"id": request.id} if request.id else {}
    answer.update(model_name=request.model, model_version=version)
    for asked, array in answers:
        values = datatypes.to_json(array, asked.name)
        answer[asked.name] = values[0] if len(values) == 1 else values
    return orjson.dumps(answer)
