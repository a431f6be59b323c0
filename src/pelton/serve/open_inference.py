"""The Open Inference Protocol over HTTP: bodies of inference requests and answers, JSON with binary tensors behind it.

Source: Open Inference Protocol, version 2, and the extensions "binary tensor data", "classification" and "shared
memory" of Triton Inference Server's documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from . import datatypes
from .requests import NONE, InferRequest, OutputRequest, RequestError, distinct, integer, region, requested, shown

Region = tuple[str, int, int]


def read(
    body: bytes, header: int | None, model: str, version: str, shared: Callable[[Region], memoryview]
) -> InferRequest:
    """Reads the body of an inference request.

    header: bytes of the JSON in front of binary tensors, of the header Inference-Header-Content-Length; None without.
    shared: returns the memory of a region. Raises RequestError for anything that is not as the protocol says.
    """
    view = memoryview(body)
    at = len(body) if header is None else header
    if at > len(body):
        raise RequestError(f"Inference-Header-Content-Length is {at}, but the body has {len(body)} bytes")
    try:
        content = orjson.loads(view[:at])
    except orjson.JSONDecodeError as e:
        raise RequestError(f"failed to parse the request JSON: {e}") from None
    if type(content) is not dict or type(content.get("inputs")) is not list:
        raise RequestError("a request is an object with 'inputs', a list")
    parameters = content.get("parameters", NONE)
    if type(parameters) is not dict:
        raise RequestError(f"parameters of a request are an object, got {shown(parameters)}")
    for key, value in parameters.items():
        if isinstance(value, (list, dict)):
            raise RequestError(
                f"parameter {key[:80]!r} of a request is a number, text or truth value, got {shown(value)}"
            )
    inputs: dict[str, np.ndarray] = {}
    booleans = body.find(b"true", 0, at) >= 0 or body.find(b"false", 0, at) >= 0
    for tensor in content["inputs"]:
        name, array, at = _input(tensor, view, at, shared, booleans)
        if name in inputs:
            raise RequestError(f"input {name!r} is given twice")
        inputs[name] = array
    if at != len(body):
        raise RequestError(f"the body has {len(body) - at} bytes after the binary data of its inputs")
    binary = parameters.get("binary_data_output") is True
    id = content.get("id", "")
    if not isinstance(id, str):
        raise RequestError(f"id of a request is a text, got {shown(id)}")
    return InferRequest(model, version, inputs, _outputs(content.get("outputs"), binary), id, parameters, binary)


def _input(
    tensor: Any, view: memoryview, at: int, shared: Callable[[Region], memoryview], booleans: bool
) -> tuple[str, np.ndarray, int]:
    """Reads an input: its name, its array, and where the next binary data begins."""
    if type(tensor) is not dict or type(tensor.get("name")) is not str:
        raise RequestError("an input is an object with 'name', a text, 'datatype', 'shape' and 'data'")
    name: str = tensor["name"]
    datatype: Any = tensor.get("datatype")
    shape: Any = tensor.get("shape")
    count = datatypes.elements(shape, name)
    datatypes.numpy_type(datatype, name)
    parameters = tensor.get("parameters", NONE)
    if type(parameters) is not dict:
        raise RequestError(f"parameters of input {name!r} are an object, got {shown(parameters)}")
    size = parameters.get("binary_data_size")
    if size is not None:
        end = at + integer(size, f"binary_data_size of input {name!r}")
        if end > len(view):
            raise RequestError(f"input {name!r} has {size} bytes of binary data, {len(view) - at} are left of the body")
        raw, at = view[at:end], end
    elif (place := region(parameters, f"input {name!r}")) is not None:
        raw = shared(place)
    elif "data" in tensor:
        return name, datatypes.from_json(tensor["data"], datatype, shape, count, name, booleans), at
    else:
        raise RequestError(f"input {name!r} has no data: neither 'data' nor 'binary_data_size' nor shared memory")
    return name, datatypes.from_raw(raw, datatype, shape, count, name), at


def _outputs(content: Any, binary: bool) -> list[OutputRequest] | None:
    if content is None:
        return None
    if type(content) is not list:
        raise RequestError(f"outputs of a request are a list, got {shown(content)}")
    outputs = []
    for output in content:
        if type(output) is not dict:
            raise RequestError("a requested output is an object with 'name'")
        outputs.append(requested(output.get("name"), output.get("parameters", NONE), binary))
    return distinct(outputs)


def write(
    request: InferRequest,
    version: str,
    answers: list[tuple[OutputRequest, np.ndarray]],
    parameters: Mapping[str, Any] = NONE,
) -> tuple[list[Any], int | None]:
    """Writes the body of an answer: its parts, and the bytes of the JSON in front if binary tensors follow.

    answers: each output as requested, with its tensor; those written to shared memory are empty arrays of their shape.
    """
    outputs, parts = [], []
    for asked, array in answers:
        output: dict[str, Any] = {
            "name": asked.name,
            "datatype": datatypes.datatype_of(array),
            "shape": list(array.shape),
        }
        if asked.region is not None:
            name, offset, size = asked.region
            output["parameters"] = {
                "shared_memory_region": name,
                "shared_memory_offset": offset,
                "shared_memory_byte_size": size,
            }
        elif asked.binary:
            raw = datatypes.to_raw(array)
            output["parameters"] = {"binary_data_size": len(raw)}
            parts.append(raw)
        else:
            output["data"] = datatypes.to_json(array, asked.name)
        outputs.append(output)
    answer: dict[str, Any] = {"id": request.id} if request.id else {}
    answer |= {"model_name": request.model, "model_version": version, "outputs": outputs}
    if parameters:
        answer["parameters"] = dict(parameters)
    content = orjson.dumps(answer)
    return [content, *parts], len(content) if parts else None


def raw_request(body: bytes, model: str, version: str, inputs: list[dict[str, Any]]) -> InferRequest:
    """Reads a body that is one tensor's bytes alone (Inference-Header-Content-Length: 0).

    inputs: the model's metadata, of one input with at most one dynamic axis, or of one string. All outputs are binary.
    """
    if len(inputs) != 1:
        raise RequestError(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(inputs)} inputs in '{model}'"
        )
    name, datatype, shape = inputs[0]["name"], inputs[0]["datatype"], list(inputs[0]["shape"])
    if datatype == "BYTES":
        if [max(d, 1) for d in shape] != [1] * len(shape) or shape[-1:] == [-1]:
            raise RequestError(f"For BYTE datatype raw input '{name}', the model must have input shape [1]")
        array = np.empty([1] * len(shape), object)
        array.fill(str(body, "utf-8", "surrogateescape"))
        return InferRequest(model, version, {name: array}, None, binary=True)
    free = [axis for axis, size in enumerate(shape) if size < 0]
    batched = bool(free) and free[0] == 0 and len(shape) > 1
    if batched and len(free) > 1:  # one row
        shape[0] = 1
        free = free[1:]
    if len(free) > 1:
        raise RequestError(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized"
            " dimension"
        )
    itemsize = datatypes.numpy_type(datatype, name).itemsize
    count = len(body) // itemsize
    if free:
        rest = int(np.prod([d for d in shape if d >= 0], dtype=np.int64))
        shape[free[0]] = count // rest if rest else 0
    array = datatypes.from_raw(body, datatype, shape, int(np.prod(shape, dtype=np.int64)), name)
    return InferRequest(model, version, {name: array}, None, binary=True)
