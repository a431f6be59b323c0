"""A small ONNX model to damage, and the importer's messages of refusal."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from onnx_models import model

from pelton import importers
from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.partition import partition


def relu(*, inputs=("x",), outputs=("y",), name="act", **changes) -> onnx.ModelProto:
    return model([helper.make_node("Relu", list(inputs), list(outputs), name)], {"x": "f32[2, 3]"}, ["y"], **changes)


def script(source) -> partition.UnbuiltScript:
    """The model divided into a script and its programs."""
    return partition.partition_model(importers.unread(source))


def refusal(source, error=ModelError, **given) -> str:
    """The message of the error with which the importer refuses a model."""
    with pytest.raises(error) as found:
        load(source, **given)
    return str(found.value)
