"""Imports ONNX models and compares their results with the onnx package's."""

from __future__ import annotations

import numpy as np
import onnx
from compare import assert_close
from onnx.reference import ReferenceEvaluator
from onnx_models import draw

from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph
from pelton.ir.imported import Imported
from pelton.ir.text import parse, to_text
from pelton.ir.verify import verify
from pelton.passes import pipeline


def check(
    m: onnx.ModelProto, want: dict[str, np.ndarray] | None = None, feeds: dict[str, np.ndarray] | None = None
) -> Graph:
    """Imports and evaluates a model, and compares with `want`, by default what the onnx package computes; returns the
    graph."""
    feeds = feeds or draw(m)
    graph = load(m).graph
    verify(graph)
    outputs = [o.name for o in m.graph.output]
    assert [v.name for v in graph.inputs] == list(feeds) and [v.name for v in graph.outputs] == outputs
    if want is None:
        arrays = map(np.asarray, ReferenceEvaluator(m).run(None, feeds))
        want = dict(zip(outputs, (a.astype(object) if a.dtype.kind == "U" else a for a in arrays)))
    assert_close(evaluate(graph, feeds), want, about=m.graph.node[0].op_type)
    return graph


def sized(m: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """The model with numbers for the names of its dimensions, which may be expressions."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(m)
    for i in fixed.graph.input:
        for d in i.type.tensor_type.shape.dim:
            if d.dim_param:
                d.dim_value = eval(d.dim_param, {}, dict(sizes))
    return fixed


def check_dynamic(m: onnx.ModelProto, *runs: dict[str, int], shapes: dict | None = None) -> Imported:
    """Imports a model once, and compares its graph, before and after the passes, with the onnx package for each of
    these sizes."""
    found = load(m, shapes)
    verify(found.graph)
    text = to_text(found.graph, data=True)
    assert to_text(parse(text, {v.name: a for v, a in found.graph.constants.items()}), data=True) == text
    after, _ = pipeline.run(found.graph)
    verify(after)
    for seed, sizes in enumerate(runs):
        feeds = draw(sized(m, sizes), seed)
        want = dict(zip([o.name for o in m.graph.output], map(np.asarray, ReferenceEvaluator(m).run(None, feeds))))
        for graph in (found.graph, after):
            assert_close(evaluate(graph, feeds), want, about=f"{m.graph.node[-1].op_type} for {sizes}")
    return found


def op_names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]
