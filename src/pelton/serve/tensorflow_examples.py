"""Examples of TensorFlow Serving's requests to classify and to regress: features by name, flat lists of values.

Source: TensorFlow Serving, "RESTful API" (api_rest.md); texts of errors as its server has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .requests import RequestError
from .tensorflow_json import TYPES, is_object, kind, listed, shown, tensor

if TYPE_CHECKING:
    from pelton.engine.plan import Port

KINDS = {bool: "int64", int: "int64", float: "float", str: "bytes", dict: "bytes"}


def examples(content: Mapping[str, Any], ports: Mapping[str, Port], method: str) -> tuple[dict[str, np.ndarray], int]:
    """Reads "examples" and "context": features by the names of inputs; returns the inputs and the number of examples.
    A feature's flat list takes the shape that its input has behind the batch axis. Other features have no effect."""
    context = _features(content["context"]) if "context" in content else {}
    if "examples" not in content:
        raise RequestError(
            f"JSON Value: {shown(content)} When method is {method}, key 'examples' is expected and was not found"
        )
    entries = content["examples"]
    if type(entries) is not list:
        raise RequestError(f"JSON Value: {shown(content)} Expecting 'examples' value to be an list/array")
    if not entries:
        raise RequestError(f"JSON Value: {shown(content)} 'examples' value is an empty array")
    features = []
    for example in map(_features, entries):
        twice = context.keys() & example.keys()
        if twice:
            raise RequestError(f"Feature: {min(twice)} appears in the context, and must not appear in examples")
        features.append({**context, **example})
    return {name: _feature_tensor(features, port) for name, port in ports.items()}, len(entries)


def _features(example: Any) -> dict[str, list[Any]]:
    """Reads an example: lists of values by feature, each of one kind."""
    if type(example) is not dict:
        raise RequestError(f"Example must be JSON object but got JSON {kind(example)}")
    features = {}
    for name, content in example.items():
        values = content if type(content) is list else [content]
        for value in values:
            feature_kind = KINDS.get(type(value))
            if feature_kind is None or is_object(value):
                raise RequestError(f"Feature: {name} has element with unexpected JSON type: {kind(value)}")
            if feature_kind != KINDS[type(values[0])]:
                raise RequestError(
                    f"Unexpected element type in feature: {name} expecting type: {KINDS[type(values[0])]}"
                )
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise RequestError(f"Feature: {name} has uint64_t element. Only int64_t is supported.")
        features[name] = [int(v) if isinstance(v, bool) else v for v in values]
    return features


def _feature_tensor(features: list[dict[str, list[Any]]], port: Port) -> np.ndarray:
    row = [d if isinstance(d, int) else -1 for d in port.shape[1:]]
    if row.count(-1) > 1:
        raise RequestError(
            f"input {port.name!r} has several dynamic sizes; a flat feature cannot tell them: use predict"
        )
    arrays = []
    for item, example in enumerate(features):
        if port.name not in example:
            raise RequestError(
                f"Feature: {port.name} (data type: {TYPES[port.dtype]}) is required but could not be found."
            )
        values: list[Any] = example[port.name]
        if port.dtype == "bool":
            values = [bool(v) if v in (0, 1) else v for v in values]
        array = tensor(values, port)
        try:
            arrays.append(array.reshape(row))
        except ValueError:
            raise RequestError(
                f"Key: {port.name}, Index: {item}.  Number of {TYPES[port.dtype]} values != expected.  Values size:"
                f" {array.size} but output shape: {listed(tuple(row))}"
            ) from None
        if arrays[-1].shape != arrays[0].shape:
            raise RequestError(f"Expecting shape {listed(arrays[0].shape)} but got: {listed(arrays[-1].shape)}")
    return np.stack(arrays)
