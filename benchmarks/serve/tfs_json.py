"""TensorFlow Serving's tests of tensors in JSON, on the functions of `pelton serve` that read and write it.

Each function here has the name and the arguments of one in its json_tensor.h, or of what its tests call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson

from pelton.engine.plan import Port
from pelton.serve import tensorflow, tensorflow_json
from pelton.serve.requests import OutputRequest, RequestError

from . import proto_text
from .gtest import COMMON, Language, Place, Status

ROW, COLUMN = "JsonPredictRequestFormat::kRow", "JsonPredictRequestFormat::kColumnar"
FORMATS = {"predictions": ROW, "outputs": COLUMN}
Ports = dict[str, Port]
KINDS = {"bytes_list": "string", "int64_list": "i64", "float_list": "f32"}


@dataclass
class Request:
    """A request that was read: its inputs, and for examples the body."""

    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    signature: str = ""
    body: bytes = b""


def _model(inputs: Ports, outputs: Ports) -> Any:
    return SimpleNamespace(inputs=inputs, outputs=outputs, settings=SimpleNamespace(labels={}))


def _ports(arrays: dict[str, np.ndarray]) -> Ports:
    names = {np.dtype(dtype): name for name, dtype in proto_text.DTYPES.items()}
    return {name: Port(name, names[a.dtype], ("batch", *a.shape[1:])) for name, a in arrays.items()}


def _status(error: RequestError) -> Status:
    return Status(error.code, str(error))


def parse_from_string(text: str, place: Place) -> bool:
    place.set(proto_text.parse(text))
    return True


def fill_predict(body: str, tensors: dict[str, Any], request: Place, form: Place) -> Status:
    """Reads a request to predict, for a model with inputs of these types."""
    ports = {name: Port(name, proto_text.dtype_of(t), ("batch",)) for name, t in tensors.items()}
    try:
        inputs, write = tensorflow.predict(_model(ports, ports), body.encode())
        request.set(Request(inputs, json.loads(body).get("signature_name", "")))
        answer = write("", [(OutputRequest("x"), np.zeros(1, np.int32))])
        form.set(FORMATS[next(iter(json.loads(answer)))])
    except RequestError as e:
        return _status(e)
    return Status()


def make_tensors(tensors: dict[str, Any], form: str, text: Place) -> Status:
    """Writes tensors as the answer to a request to predict."""
    try:
        arrays = {name: proto_text.tensor_of(t) for name, t in tensors.items()}
        key, rows = ("predictions", True) if form == ROW else ("outputs", False)
        value = (tensorflow_json.by_row if rows else tensorflow_json.by_column)(arrays)
        text.set(tensorflow_json.write(key, value, arrays).decode())
    except RequestError as e:
        return _status(e)
    except ValueError as e:
        return Status("UNIMPLEMENTED", str(e))
    return Status()


def equals_tensor(text: str) -> Callable[[Any], str]:
    """Returns the matcher EqualsProto, for tensors."""
    expected = proto_text.tensor_of(proto_text.parse(text))

    def match(array: np.ndarray | None) -> str:
        if array is None:
            return "no such tensor"
        if array.dtype != expected.dtype or array.shape != expected.shape:
            return f"{array.dtype}{list(array.shape)} is not {expected.dtype}{list(expected.shape)}"
        same = np.array_equal(array, expected, equal_nan=array.dtype.kind == "f")
        return "" if same else f"{array.tolist()} is not {expected.tolist()}"

    return match


# classify and regress

OUTPUT = {"scores": Port("scores", "f32", ("batch", 1))}


def fill_examples(read: Callable[..., Any], body: str, request: Place) -> Status:
    """Reads examples, for a model whose inputs they need not have. read: of `tensorflow`, for one method."""
    try:
        read(_model({}, OUTPUT), body.encode())
    except RequestError as e:
        return _status(e)
    request.set(Request(body=body.encode()))
    return Status()


def equal_examples(read: Callable[..., Any], request: Request, expected: Any) -> bool | str:
    """Compares each example with the features that it is to have, by itself, since they have different lengths."""
    if not isinstance(expected, dict) or not request.body:
        return "the request was rejected"
    content = json.loads(request.body)
    signature = [spec["signature_name"][0] for spec in expected.get("model_spec", [])]
    if signature != [content[k] for k in ("signature_name",) if k in content]:
        return "another signature"
    lists = expected["input"][0]
    lists = (lists.get("example_list") or lists["example_list_with_context"])[0]
    shared = _features(lists["context"][0]) if "context" in lists else {}
    if len(lists["examples"]) != len(content["examples"]):
        return "another number of examples"
    for example, message in zip(content["examples"], lists["examples"]):
        features = {**shared, **_features(message)}
        ports = {name: Port(name, dtype, ("batch", len(v))) for name, (dtype, v) in features.items()}
        one = json.dumps({**content, "examples": [example]}).encode()
        inputs, _ = read(_model(ports, OUTPUT), one)
        for name, (dtype, values) in features.items():
            wanted = np.array([values], proto_text.DTYPES[dtype])
            if not np.array_equal(inputs[name], wanted, equal_nan=dtype == "f32"):
                return f"feature {name}: {inputs[name].tolist()} is not {wanted.tolist()}"
    return True


def _features(message: Any) -> dict[str, tuple[str, list[Any]]]:
    """Returns the type and the values of each feature of an example."""
    result = {}
    for feature in message["features"][0]["feature"]:
        ((kind, value),) = feature["value"][0].items()
        result[feature["key"][0]] = (KINDS[kind], value[0]["value"])
    return result


def make_results(read: Callable[..., Any], arrays: dict[str, np.ndarray], text: Place) -> Status:
    """Writes the answer to a request to classify or to regress whose model gives these arrays."""
    count = len(next(iter(arrays.values())))
    body = orjson.dumps({"examples": [{"x": 1.0}] * count})
    try:
        _, write = read(_model({"x": Port("x", "f32", ("batch",))}, _ports(arrays)), body)
        text.set(write("", [(OutputRequest(name), array) for name, array in arrays.items()]).decode())
    except RequestError as e:
        return _status(e)
    return Status()


def make_classification(result: dict[str, Any], text: Place) -> Status:
    rows = [row["classes"] for row in result.get("classifications", [])]
    scores = np.array([[c["score"][0] for c in row] for row in rows], np.float32)
    labels = np.array([[c["label"][0] for c in row] for row in rows], object)
    return make_results(tensorflow.classify, {"scores": scores, "labels": labels}, text)


def make_regression(result: dict[str, Any], text: Place) -> Status:
    values = np.array([row["value"][0] for row in result.get("regressions", [])], np.float32)
    return make_results(tensorflow.regress, {"y": values}, text)


# comparing documents


def compare_json(first: str, second: str, as_texts: bool = False) -> Status:
    """Compares two documents. as_texts: numbers have the same digits, too."""
    numbers: Any = {"parse_float": str, "parse_int": str, "parse_constant": str} if as_texts else {}
    try:
        a, b = (json.loads(text, **numbers) for text in (first, second))
    except ValueError as e:
        return Status("INVALID_ARGUMENT", f"no JSON: {e}")
    return Status() if a == b else Status("INVALID_ARGUMENT", f"{first[:200]} is not {' '.join(second.split())[:200]}")


def languages(kind: str) -> list[Language]:
    """Returns what a test of a kind calls: once for TEST, for classify and for regress if it has a parameter."""
    return [_language(read) for read in ((None,) if kind == "TEST" else (tensorflow.classify, tensorflow.regress))]


def _language(read: Callable[..., Any] | None) -> Language:
    functions: dict[str, Callable[..., Any]] = {
        **COMMON,
        "ParseFromString": parse_from_string,
        "getmap": lambda tensors: tensors,
        "FillPredictRequestFromJson": fill_predict,
        "MakeJsonFromTensors": make_tensors,
        "EqualsProto": equals_tensor,
        "MakeJsonFromClassificationResult": make_classification,
        "MakeJsonFromRegressionResult": make_regression,
        "CompareJson": compare_json,
        "CompareJsonAllValuesAsStrings": partial(compare_json, as_texts=True),
    }
    methods: dict[str, Callable[..., Any]] = {
        "inputs": lambda place: place.get().inputs,
        "model_spec": lambda place: place.get(),
        "signature_name": lambda place: place.get().signature,
        "set_float_comparison": lambda place, kind: None,
        "set_treat_nan_as_equal": lambda place, equal: None,
        "set_field_comparator": lambda place, comparator: None,
        "DebugString": lambda place: "",
    }
    if read is not None:
        functions |= {"FillRequest": partial(fill_examples, read), "ApproximatelyEquals": partial(equal_examples, read)}
        methods["Compare"] = lambda place, request, expected: equal_examples(read, request, expected)
    types: dict[str, Callable[[], Any]] = {
        "TensorInfoMap": dict,
        "TensorMap": dict,
        "PredictRequest": Request,
        "TypeParam": Request,
        "string": str,
        "absl::Status": Status,
        "ClassificationResult": dict,
        "RegressionResult": dict,
    }
    return Language(functions, types, methods, parameter="" if read is None else read.__name__)
