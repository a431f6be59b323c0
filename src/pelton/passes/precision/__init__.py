"""Precision passes, in order: they choose the element types for computing and storing."""

from __future__ import annotations

from collections.abc import Callable

from pelton.ir.graph import Graph
from pelton.ir.types import BF16, F16, DType
from pelton.ops.words import cast
from pelton.passes.decompose import Takes, decompose
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label, rewrite, rules

from . import halves, lower_precision, quantized, tf32, widen

IN_F32 = "computes products of quantized values in f32"

PrecisionPass = Callable[[Graph, PassReport, Takes], Graph]


def in_integers(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Computes products of quantized operands in integers, also of the inputs of layers whose states are rounded to
    bytes, with bytes between them."""
    graph = decompose(graph, lambda _, node: not (node.op.recurrent and node.attrs.get("round_state")), report)
    return rewrite(graph, rules("integers", "few_bits", "quantized_moves"), report)


def computed_in_integers(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Computes products of two quantized non-constant operands in integers."""
    return rewrite(graph, rules("computed_integers"), report)


def in_bytes(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Converts weights of these products to i8, where some exceed it."""
    return rewrite(graph, rules("narrow_weights"), report)


def in_float8(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Computes FP8 products as such."""
    return rewrite(graph, rules("float8"), report)


def quantized_in_f32(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Expands conversions to and from few bits into f32 arithmetic, and with them products between these."""
    wide = {v for n in graph.nodes if n.op.dequantizes for v in n.outputs}
    report.says = IN_F32 if any(n.op.product and not wide.isdisjoint(n.inputs) for n in graph.nodes) else ""
    return quantized.in_f32(graph, report)


def wide_halves(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Computes models in half precision in f32, from the first use of a value to the last."""
    return _report_new_nodes(graph, halves.in_f32(graph), report)


def store_as(dtype: DType) -> PrecisionPass:
    """Stores weights and intermediate values as `dtype` where they are f32 in the model."""
    return lambda graph, report, takes: _report_new_nodes(
        graph, lower_precision.lower_precision(graph, dtype), report, dtype
    )


def recurrent(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Decomposes recurrent layers into one product of all time steps and the recurrence, for any precision."""
    return decompose(graph, lambda _, node: not node.op.recurrent, report)


def tf32_weights(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Rounds constant factors of products to the nearest TF32."""
    return _report_new_nodes(graph, tf32.round_weights(graph), report)


def widen_nodes(graph: Graph, report: PassReport, takes: Takes) -> Graph:
    """Computes nodes on narrow floats that no kernel takes in f32, between two casts."""
    return _report_new_nodes(graph, widen.widen(graph, takes), report)


# Before all other rules, which then see f32 and sums of integers.
FIRST: tuple[tuple[str, PrecisionPass], ...] = (
    ("integers", in_integers),
    ("computed", computed_in_integers),
    ("bytes", in_bytes),
    ("float8", in_float8),
    ("quantized", quantized_in_f32),
    ("halves", wide_halves),
)

# After all rules, which may depend on exact constants.
PASSES: tuple[tuple[str, PrecisionPass], ...] = (
    ("fp16", store_as(F16)),
    ("bf16", store_as(BF16)),
    ("recurrent", recurrent),  # after storage types: layers have one, but round like products
    ("tf32", tf32_weights),
    ("widen", widen_nodes),  # last: applies to everything narrow by now
)


def _report_new_nodes(before: Graph, after: Graph, report: PassReport, dtype: DType | None = None) -> Graph:
    """Reports the new nodes of a pass, except casts (given a type, only those on it); returns the program."""
    existing = set(before.nodes)
    for node in after.nodes if after is not before else ():
        of_type = dtype is None or any(v.type.dtype is dtype for v in (*node.inputs, *node.outputs))
        if node not in existing and node.op is not cast and of_type:
            report.fire(report.name, node_label(node))
    return after
