"""Builds engines of ONNX models in text form, and compares them with the onnx package."""

from __future__ import annotations

import numpy as np
import onnx.parser
from compare import assert_close
from onnx.reference import ReferenceEvaluator

import pelton


def built(text: str, opset: int = 21, **options) -> tuple[onnx.ModelProto, pelton.Engine]:
    """The model of a graph in the text syntax of the onnx package, and its engine."""
    m = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    return m, pelton.build(m, level=0, **options)


def same(text: str, opset: int = 21, **feeds: np.ndarray) -> None:
    """Asserts that the engine computes what the onnx package does."""
    m, engine = built(text, opset)
    for name, want in zip((o.name for o in m.graph.output), ReferenceEvaluator(m).run(None, feeds)):
        assert_close(engine.run(feeds)[name], want)
