"""Tensors in the JSON of TensorFlow Serving's REST API: rows, columns, examples, and the answers.

Source: TensorFlow Serving, "RESTful API" (api_rest.md); texts of errors as its server has them. Numbers that a type
cannot hold are rejected, where that server wraps them or makes them infinite.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from . import datatypes
from .requests import RequestError

if TYPE_CHECKING:
    from pelton.engine.plan import Port

# Pelton's name of an element type → that of TensorFlow's messages; DT_ and the same in capitals in its metadata
TYPES = {
    "bool": "bool",
    **{f"{sign}{bits}": f"{name}{bits}" for bits in (8, 16, 32, 64) for sign, name in (("i", "int"), ("u", "uint"))},
    "f16": "half",
    "bf16": "bfloat16",
    "f32": "float",
    "f64": "double",
    "string": "string",
}
SHOWN = 256  # characters of a value in a message
MOST_AXES = 32
BYTES = "_bytes"  # end of an output's name whose strings are written as base64


def parse(body: bytes) -> tuple[dict[str, Any], bool]:
    """Reads a body; returns its object, and whether arrays of it may hide values that are no numbers. NaN, Infinity
    and -Infinity are numbers. Raises RequestError if it is no object."""
    if not body.strip():
        raise RequestError("JSON Parse error: The document is empty")
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = _parse_more(body)
    if type(content) is not dict:
        raise RequestError(f"JSON Value: {shown(content)} Is not object")
    return content, b"true" in body or b"false" in body


def _parse_more(body: bytes) -> Any:
    """Reads what strict JSON has not: the tokens NaN, Infinity and -Infinity."""
    try:
        return json.loads(body.decode(), parse_float=_finite)
    except RecursionError:
        raise RequestError("JSON Parse error: The document is nested too deeply") from None
    except UnicodeDecodeError as e:
        raise RequestError(f"JSON Parse error: Invalid encoding in string. at offset: {e.start}") from None
    except json.JSONDecodeError as e:
        raise RequestError(f"JSON Parse error: Invalid value. at offset: {e.pos}: {e.msg}") from None
    except ValueError as e:
        raise RequestError(f"JSON Parse error: Number too big to be stored in double: {e}") from None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text[:SHOWN])
    return value


def shown(value: Any) -> str:
    """Returns a value for a message, cut to SHOWN characters."""
    try:
        return json.dumps(value)[:SHOWN]
    except (RecursionError, ValueError):
        return f"a {kind(value)} nested too deeply"


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    names = {dict: "Object", list: "Array", str: "String", type(None): "Null"}
    return names.get(type(value), "Number")


def _is_base64(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and isinstance(value.get("b64"), str)


def is_object(value: Any) -> bool:
    return type(value) is dict and not _is_base64(value)


def _string(value: Any) -> str:
    """Reads a text, or bytes as an object {"b64": …}; bytes that are no UTF-8 become surrogates."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"JSON Value: {shown(value)} has half a surrogate pair, which is no text") from None
        return value
    if not _is_base64(value):
        raise RequestError(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    text = "".join(value["b64"].split()).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        raise RequestError("Unable to base64 decode") from None


# reading tensors


def tensor(value: Any, port: Port, careful: bool = True) -> np.ndarray:
    """Reads a tensor from nested lists. careful: look at each value by itself, as strings and mixtures need."""
    if port.dtype == "bf16":
        raise RequestError(f"Conversion of JSON Value: {shown(value)} to type: bfloat16", "unsupported")
    if not careful and port.dtype != "string":
        try:
            return datatypes.numbers(value, port.numpy_dtype, datatypes.NAMES[port.dtype], port.name)
        except RequestError:
            pass  # the values one by one say which of them does not fit
    shape: list[int] = []
    first = value
    while type(first) is list and len(shape) <= MOST_AXES:
        shape.append(len(first))
        first = first[0] if first else None
    if len(shape) > MOST_AXES:
        raise RequestError(f"input {port.name!r} has more than {MOST_AXES} axes")
    flat: list[Any] = []
    _flatten(value, 0, shape, port, flat)
    if port.dtype == "string":
        array = np.empty(len(flat), object)
        array[:] = flat
    else:
        array = np.array(flat, port.numpy_dtype)
    return array.reshape(shape)


def _flatten(value: Any, level: int, shape: list[int], port: Port, flat: list[Any]) -> None:
    """Appends the values of nested lists, each checked."""
    if type(value) is not list:
        if level != len(shape):
            raise RequestError(
                f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in the JSON DOM."
                f" Expected at level: {len(shape)}"
            )
        flat.append(_value(value, port))
        return
    if level >= len(shape):
        raise RequestError(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise RequestError(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    for inner in value:
        _flatten(inner, level + 1, shape, port, flat)


def _value(value: Any, port: Port) -> Any:
    dtype = port.dtype
    if dtype == "string" and isinstance(value, (str, dict)):
        return _string(value)
    kinds: Any = {"b": bool, "f": (int, float)}.get(port.numpy_dtype.kind, int)
    fits = dtype != "string" and isinstance(value, kinds) and (dtype == "bool") == isinstance(value, bool)
    if fits and port.numpy_dtype.kind in "iu":
        limits = np.iinfo(port.numpy_dtype)
        fits = int(limits.min) <= value <= int(limits.max)
    elif fits and port.numpy_dtype.kind == "f" and not (isinstance(value, float) and math.isinf(value)):
        with np.errstate(over="ignore"):
            try:
                fits = not math.isinf(port.numpy_dtype.type(value))
            except OverflowError:
                fits = False
    if not fits:
        raise RequestError(f"JSON Value: {shown(value)} Type: {kind(value)} is not of expected type: {TYPES[dtype]}")
    return value


def rows(instances: Any, ports: Mapping[str, Port], careful: bool) -> dict[str, np.ndarray]:
    """Reads "instances": a list of values for the only input, or of objects with a value for each input."""
    if type(instances) is not list:
        raise RequestError(f"JSON Value: {shown(instances)} Expecting 'instances' to be an list/array")
    if not instances:
        raise RequestError(f"JSON Value: {shown(instances)} No values in 'instances' array")
    if type(instances[0]) is not dict and len(ports) > 1:
        raise RequestError(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per"
            " tensorinfo_map"
        )
    if not is_object(instances[0]):
        (port,) = ports.values()
        for item, value in enumerate(instances):
            if is_object(value):
                raise RequestError(f"Expecting value/list but got object at item {item} of input list")
        return {port.name: _stacked(instances, port, careful, "")}
    for item, value in enumerate(instances):
        if not is_object(value):
            raise RequestError(f"Expecting object but got list at item {item} of input list")
        if value.keys() != ports.keys():
            place = f"Failed to process element: {item}"
            for name in value:
                if name not in ports:
                    raise RequestError(
                        f"{place} key: {name[:SHOWN]} of 'instances' list. Error: INVALID_ARGUMENT: JSON object:"
                        f" does not have named input: {name[:SHOWN]}"
                    )
            raise RequestError(
                f"{place} of 'instances' list. JSON object: {shown(value)} keys must be equal to:"
                f" {','.join(sorted(ports))}"
            )
    return {
        name: _stacked([value[name] for value in instances], port, careful, f" key: {name}")
        for name, port in ports.items()
    }


def _stacked(values: list[Any], port: Port, careful: bool, key: str) -> np.ndarray:
    """Reads a tensor of each value, all of one shape, and stacks them."""
    if not careful and port.dtype not in ("string", "bf16"):
        try:
            return datatypes.numbers(values, port.numpy_dtype, datatypes.NAMES[port.dtype], port.name)
        except RequestError:
            pass
    arrays: list[np.ndarray] = []
    for item, value in enumerate(values):
        try:
            array = tensor(value, port)
            first = arrays[0] if arrays else array
            if array.size != first.size:
                raise RequestError(f"Expecting tensor size: {first.size} but got: {array.size}")
            if array.shape != first.shape:
                raise RequestError(f"Expecting shape {listed(first.shape)} but got: {listed(array.shape)}")
        except RequestError as e:
            code = "UNIMPLEMENTED" if e.fault == "unsupported" else "INVALID_ARGUMENT"
            raise RequestError(
                f"Failed to process element: {item}{key} of 'instances' list. Error: {code}: {e}", e.fault
            ) from None
        arrays.append(array)
    return np.stack(arrays)


def listed(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def columns(inputs: Any, ports: Mapping[str, Port], careful: bool) -> dict[str, np.ndarray]:
    """Reads "inputs": the value of the only input, or an object with a value for each input."""
    if is_object(inputs):
        for name in ports:
            if name not in inputs:
                raise RequestError(f"Missing named input: {name} in 'inputs' object.")
        for name in inputs:
            if name not in ports:
                raise RequestError(f"JSON object: does not have named input: {name[:SHOWN]}")
        return {name: tensor(inputs[name], port, careful) for name, port in ports.items()}
    if len(ports) > 1:
        raise RequestError(
            "inputs is a plain value/list, but expecting an object as multiple input tensors required as per"
            " tensorinfo_map"
        )
    (port,) = ports.values()
    return {port.name: tensor(inputs, port, careful)}


# writing answers


def write(key: str, value: Any, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Writes an answer {key: value}; arrays: all that `value` holds. Floats have the digits that their type needs."""
    for name, array in arrays.items():
        if array.dtype.kind == "V":
            raise RequestError(f"Failed to write JSON value for tensor type: bfloat16, of output {name!r}")
    if all(a.dtype.kind != "f" or np.isfinite(a).all() for a in arrays.values()):
        return orjson.dumps({key: value}, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps({key: value}, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """Returns arrays and numbers of numpy as Python's, for what the writer does not know."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind == "f" and value.dtype.itemsize < 8:
            value = value.astype("U").astype(np.float64)  # the shortest digits, as f64
        return value.tolist()
    raise TypeError


def by_row(arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns "predictions": the rows of the only output, or an object for each row."""
    rows_of: int | None = None
    for name in sorted(arrays):
        array = arrays[name]
        if not array.ndim:
            raise RequestError(f"Tensor name: {name} has no shape information ")
        if rows_of is not None and len(array) != rows_of:
            raise RequestError(f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {rows_of}")
        rows_of = len(array)
    values = {name: writable(name, array) for name, array in arrays.items()}
    if len(values) == 1:
        return next(iter(values.values()))
    return [{name: value[row] for name, value in values.items()} for row in range(rows_of or 0)]


def by_column(arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns "outputs": the only output, or an object with each."""
    values = {name: writable(name, array) for name, array in arrays.items()}
    return next(iter(values.values())) if len(values) == 1 else values


def writable(name: str, array: np.ndarray) -> Any:
    """Returns an array as the writer takes it: strings as texts, or as base64 if the name ends in "_bytes"."""
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array) if array.ndim else array
    values = np.empty(array.size, object)
    if name.endswith(BYTES):
        values[:] = [{"b64": base64.b64encode(v).decode()} for v in datatypes.strings(array)]
    else:
        try:
            values[:] = [v.decode() for v in datatypes.strings(array)]
        except UnicodeDecodeError:
            raise RequestError(
                f"output {name!r} holds bytes that are no UTF-8; only names in {BYTES} hold these"
            ) from None
    return values.reshape(array.shape).tolist()
