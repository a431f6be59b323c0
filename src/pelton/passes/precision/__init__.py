"""In which element types a program is computed and kept: passes in their order, of which a target names some."""

from __future__ import annotations

from collections.abc import Callable

from pelton.ir.graph import Graph
from pelton.ir.types import BF16, F16, DType
from pelton.ops.words import cast
from pelton.passes.decompose import Takes, decompose
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label

from . import halves, lower_precision, quantized, tf32, widen

NO_INTEGERS = "computes quantized ops in f32: no integer kernels yet"

PrecisionPass = Callable[[Graph, PassReport, Takes], Graph]


def quantized_in_f32(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Computes quantized ops in f32: no integer kernels yet."""
    for node in filter(quantized.converts, graph.nodes):
        report.fire(report.name, node_label(node))
    report.says = NO_INTEGERS if report.fired else ""
    return quantized.in_f32(graph)


def wide_halves(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Models in half precision in f32, from the first use of a value to the last."""
    return _told(graph, halves.in_f32(graph), report)


def kept(dtype: DType) -> PrecisionPass:
    """Weights and what lies between nodes as `dtype`, where they are f32 in the model."""
    return lambda graph, report, takes: _told(graph, lower_precision.lower_precision(graph, dtype), report, dtype)


def recurrent(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Recurrent layers as the product of all time steps and the recurrence, which kernels take in any precision."""
    return decompose(graph, lambda _, node: not node.op.recurrent, report)


def tf32_weights(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Constant factors of products as the nearest TF32."""
    return _told(graph, tf32.round_weights(graph), report)


def widen_nodes(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Nodes on narrow floats that no kernel takes as they are in f32, between two casts."""
    return _told(graph, widen.widen(graph, takes), report)


# Before all rules, which are about f32 then, as kernels are.
FIRST: tuple[tuple[str, PrecisionPass], ...] = (("quantized", quantized_in_f32), ("halves", wide_halves))

# After all rules, which may ask what a constant is exactly.
PASSES: tuple[tuple[str, PrecisionPass], ...] = (
    ("fp16", kept(F16)),
    ("bf16", kept(BF16)),
    ("recurrent", recurrent),  # layers are kept in one type, but round as products
    ("tf32", tf32_weights),
    ("widen", widen_nodes),  # last: of what has come to be narrow
)


def _told(before: Graph, after: Graph, report: PassReport, dtype: DType | None = None) -> Graph:
    """The program after a pass, with the nodes that it made in the report: all but casts, or those on a type."""
    there = set(before.nodes)
    for node in after.nodes if after is not before else ():
        of_type = dtype is None or any(v.type.dtype is dtype for v in (*node.inputs, *node.outputs))
        if node not in there and node.op is not cast and of_type:
            report.fire(report.name, node_label(node))
    return after
