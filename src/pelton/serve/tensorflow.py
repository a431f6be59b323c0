"""TensorFlow Serving's REST API: status, metadata, predict, classify and regress below /v1/models.

Source: TensorFlow Serving, "RESTful API" (api_rest.md). All models have one signature, "serving_default", which
answers to the names of methods, too: the page's own example calls "tensorflow/serving/regress".
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from . import tensorflow_examples
from . import tensorflow_json as values
from .model import ServedModel
from .openai.listing import listed
from .requests import InferRequest, OutputRequest, RequestError
from .server import Server
from .text_model import NO_TENSORS, TextModel

SIGNATURE, METHOD = "serving_default", "tensorflow/serving/"
_PLACE = r"/v1/models/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?"
RUN = re.compile(_PLACE + ":(classify|regress|predict)", re.IGNORECASE)
LOOK = re.compile(_PLACE + "(?:/(metadata))?", re.IGNORECASE)
Arrays = dict[str, np.ndarray]


class TensorFlowApi:
    """The API as an ASGI application, for the routes below /v1."""

    def __init__(self, server: Server):
        self.server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        arrived = time.monotonic_ns()
        method, path, application = scope["method"], scope["path"], scope["pelton.application"]
        models = listed(self.server, path) if method == "GET" else None
        if models is not None:
            await application.answer(send, 200, orjson.dumps(models), [JSON], scope["pelton.headers"])
            return
        match = {"GET": LOOK, "POST": RUN}[method].fullmatch(path) if method in ("GET", "POST") else None
        if match is None:
            if method == "GET" and path.rstrip("/").lower() == "/v1/models":
                raise RequestError("Missing model name in request.")
            raise RequestError(f"Malformed request: {method} {path[:200]}")
        name, version, label, action = match.groups()
        if version is not None:
            version = _version(version)
        if method == "GET":
            look = self.metadata if action else self.status
            body = orjson.dumps(look(name, version, label), option=orjson.OPT_INDENT_2)
        else:
            model = self._model(name, version, label)
            if isinstance(model, TextModel):
                raise RequestError(f"model {name!r} {NO_TENSORS}", "unsupported")
            run = {"predict": predict, "classify": classify, "regress": regress}[action.lower()]
            inputs, write = run(model, scope["pelton.body"])
            request = InferRequest(name, "" if version is None and label is None else model.version, inputs)
            body = await application.infer(request, arrived, receive, write)
        await application.answer(send, 200, body, [JSON], scope["pelton.headers"])

    def _model(self, name: str, version: str | None, label: str | None) -> ServedModel:
        table = self.server.table
        if label is not None:
            version = self._labelled(name, label)
        model = table.get((name, version or ""))
        if model is None:
            wanted = f"Latest({name[:200]})" if version is None else f"Specific({name[:200]}, {version})"
            raise RequestError(f"Servable not found for request: {wanted}", "absent")
        return model

    def _labelled(self, name: str, label: str) -> str:
        """Returns the version that a label of the model's configuration names."""
        model = self.server.table.get((name, ""))
        version = None if model is None else model.settings.versions.get(label)
        if version is None:
            raise RequestError(f"Unrecognized servable version label: {label[:200]}")
        return version

    def status(self, name: str, version: str | None, label: str | None) -> dict[str, Any]:
        """Returns the states of a model's versions, the latest first."""
        if label is not None:
            version = self._labelled(name, label)
        loaded = set(self.server.versions(name))
        reason = self.server.reasons.get(name, "")
        place = self.server.places.get(name)
        failed = set(place.versions) - loaded if place is not None and reason else set()
        states = {**dict.fromkeys(failed, reason), **dict.fromkeys(loaded, "")}
        if version is not None:
            if version not in states:
                raise RequestError(f"Could not find version {version} of model {name[:200]}", "absent")
            states = {version: states[version]}
        elif not states:
            raise RequestError(f"Could not find any versions of model {name[:200]}", "absent")
        return {
            "model_version_status": [
                {
                    "version": number,
                    "state": "AVAILABLE" if number in loaded else "END",
                    "status": {
                        "error_code": "UNKNOWN" if why not in ("", "unloaded") else "OK",
                        "error_message": why if why != "unloaded" else "",
                    },
                }
                for number, why in sorted(states.items(), key=lambda item: -int(item[0]))
            ]
        }

    def metadata(self, name: str, version: str | None, label: str | None) -> dict[str, Any]:
        """Returns the signature of a model."""
        model = self._model(name, version, label)
        signature = {
            "inputs": {port.name: _tensor_info(port) for port in model.inputs.values()},
            "outputs": {port.name: _tensor_info(port) for port in model.outputs.values()},
            "method_name": METHOD + "predict",
            "defaults": {},
        }
        return {
            "model_spec": {"name": model.name, "signature_name": "", "version": model.version},
            "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
        }


JSON = (b"content-type", b"application/json")
Write = Callable[[str, list[tuple[OutputRequest, np.ndarray]]], bytes]


def _version(text: str) -> str:
    if len(text) > 19 or int(text) >= 1 << 63:
        raise RequestError(f"Failed to convert version: {text[:80]} to numeric.")
    return str(int(text))


def _tensor_info(port: Any) -> dict[str, Any]:
    return {
        "dtype": "DT_" + values.TYPES[port.dtype].upper(),
        "tensor_shape": {
            "dim": [{"size": str(d) if isinstance(d, int) else "-1", "name": ""} for d in port.shape],
            "unknown_rank": False,
        },
        "name": port.name,
    }


def _signature(content: Mapping[str, Any], method: str, refusal: str) -> None:
    """Raises RequestError for another signature than the models have, and than that called like the method."""
    signature = content.get("signature_name", "")
    if not isinstance(signature, str):
        raise RequestError(
            f"JSON Value: {values.shown(content)} not formatted correctly. 'signature_name' key must be a string value."
        )
    if signature not in ("", SIGNATURE, METHOD + method):
        raise RequestError(refusal.format(signature[: values.SHOWN]))


def predict(model: ServedModel, body: bytes) -> tuple[Arrays, Write]:
    """Reads a request to predict; returns the inputs, and the function that writes the answer in the same form."""
    content, careful = values.parse(body)
    _signature(content, "predict", 'Serving signature name: "{}" not found in signature def')
    if "instances" in content and "inputs" in content:
        raise RequestError(
            f"JSON Value: {values.shown(content)} Not formatted correctly expecting only one of 'inputs' or"
            " 'instances' keys to exist "
        )
    if "instances" in content:
        read: Any = values.rows(content["instances"], model.inputs, careful)
        return read, lambda _, answers: values.write("predictions", values.by_row(_arrays(answers)), _arrays(answers))
    if "inputs" not in content:
        raise RequestError("Missing 'inputs' or 'instances' key")
    read = values.columns(content["inputs"], model.inputs, careful)
    return read, lambda _, answers: values.write("outputs", values.by_column(_arrays(answers)), _arrays(answers))


def _arrays(answers: list[tuple[OutputRequest, np.ndarray]]) -> Arrays:
    return {asked.name: array for asked, array in answers}


def _examples(model: ServedModel, body: bytes, method: str) -> tuple[Arrays, int]:
    content, _ = values.parse(body)
    _signature(content, method, "No signature was found with the name: {}")
    return tensorflow_examples.examples(content, model.inputs, method)


def classify(model: ServedModel, body: bytes) -> tuple[Arrays, Write]:
    """Reads a request to classify: the answer has the label and the score of each class, in the model's order.

    Scores are the model's only output of floats. Labels are its only output of strings, else those of the
    configuration, else empty.
    """
    scores = [n for n, p in model.outputs.items() if p.numpy_dtype.kind == "f"]
    classes = [n for n, p in model.outputs.items() if p.dtype == "string"]
    if len(scores) != 1 or len(classes) + len(scores) != len(model.outputs):
        raise RequestError(
            "Expected one or two output Tensors, scores of floats and perhaps classes of strings, found"
            f" {', '.join(f'{n} ({values.TYPES[p.dtype]})' for n, p in model.outputs.items())}"
        )
    inputs, count = _examples(model, body, "classify")

    def write(_: str, answers: list[tuple[OutputRequest, np.ndarray]]) -> bytes:
        arrays = _arrays(answers)
        for array in arrays.values():
            if array.ndim != 2 or array.shape != (count, arrays[scores[0]].shape[-1]):
                raise RequestError(
                    f"Expected Tensor shape: [batch_size num_classes] but got {values.listed(array.shape)}"
                )
        rows = arrays[scores[0]]
        if classes:
            names = values.writable("", arrays[classes[0]])
        else:
            labels = model.settings.labels.get(scores[0], ())
            names = [[labels[i] if i < len(labels) else "" for i in range(rows.shape[1])]] * count
        results = [[[n, v] for n, v in zip(*pair)] for pair in zip(names, rows)]
        return values.write("results", results, arrays)

    return inputs, write


def regress(model: ServedModel, body: bytes) -> tuple[Arrays, Write]:
    """Reads a request to regress: the answer has one value for each example."""
    if len(model.outputs) != 1:
        raise RequestError("Expected one output Tensor.")
    port = next(iter(model.outputs.values()))
    if port.numpy_dtype.kind != "f":
        raise RequestError(f"Expected output Tensor of DT_FLOAT.  Got: DT_{values.TYPES[port.dtype].upper()}")
    inputs, count = _examples(model, body, "regress")

    def write(_: str, answers: list[tuple[OutputRequest, np.ndarray]]) -> bytes:
        arrays = _arrays(answers)
        array = arrays[port.name]
        if array.ndim not in (1, 2) or array.shape[1:] not in ((), (1,)):
            raise RequestError(
                "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got"
                f" {values.listed(array.shape)}"
            )
        if len(array) != count:
            raise RequestError(f"Input batch size did not match output batch size: {count} vs. {len(array)}")
        return values.write("results", array.reshape(-1), arrays)

    return inputs, write
