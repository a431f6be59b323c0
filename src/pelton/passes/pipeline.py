"""The passes in order, each with one line that gives the reason for its position."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pelton.ir.graph import Graph

from .caches import attention_of_caches
from . import rules as _  # noqa: F401  (declares all rules)
from .decompose import Takes, decompose
from .fold import drop_dead, fold_constants, merge_equal
from pelton.passes.precision import widen_nodes
from pelton.passes.rewriting.report import PassReport, Report
from pelton.passes.rewriting.rule import rewrite, rules
from .siblings import sibling_convolutions, sibling_linears, sibling_matmuls
from .tables import untied_tables

T = TypeVar("T")
Observer = Callable[[str, Graph], None]  # receives the name of a pass and the program after it
Pass = tuple[str, Callable[[Graph, PassReport, T], Graph]]  # its name and function; T is a further argument


def stage(*names: str) -> Callable[[Graph, PassReport, bool], Graph]:
    """Returns a pass that applies the rules of these stages until none matches."""
    return lambda graph, report, strict: rewrite(graph, rules(*names), report, strict=strict)


# Their argument is `Options.strict`.
PIPELINE: tuple[Pass[bool], ...] = (
    # exporters leave dead nodes; no rule should have to consider them
    ("dead", drop_dead),
    # rules ask for constants: fold these first
    ("constant", fold_constants),
    # patterns name a value twice where exporters compute it twice
    ("equal", merge_equal),
    ("simplify", stage("simplify", "views")),  # one form instead of many
    # name the composites before their parts are folded away
    ("recognize", stage("simplify", "views", "recognize")),
    # constants around convolutions and products move into the weights
    ("merge", stage("simplify", "views", "recognize", "merge")),
    # after folding: siblings differ only in their weights then
    ("sibling convolutions", sibling_convolutions),
    ("sibling matmuls", sibling_matmuls),
    ("sibling linears", sibling_linears),
    # products have their last constants by now; the parts of expansions meet the rules below
    ("tables", untied_tables),
    # slices from merging meet joins and other slices
    ("rest", stage("simplify", "views", "recognize", "merge")),
    # after all views have one form
    ("caches", attention_of_caches),
    ("rest constant", fold_constants),  # results of the rules
    ("rest equal", merge_equal),
    ("rest dead", drop_dead),
)

# Their argument is the predicate of nodes that kernels take directly.
DECOMPOSE: tuple[Pass[Takes], ...] = (
    ("decompose", lambda graph, report, takes: decompose(graph, takes, report)),
    ("widen parts", widen_nodes),  # without a narrow kernel, one in f32 may do
)


def run(graph: Graph, strict: bool = False, observe: Observer | None = None) -> tuple[Graph, Report]:
    """Runs all passes; returns the optimized graph, with the same meaning, inputs and outputs, and the report."""
    return apply(PIPELINE, graph, strict, observe)


def apply(passes: Iterable[Pass[T]], graph: Graph, known: T, observe: Observer | None = None) -> tuple[Graph, Report]:
    """Runs passes in order; returns the graph and the report. known: an argument of every pass."""
    report = Report()
    for name, step in passes:
        done = PassReport(name, before=len(graph.nodes))
        graph = step(graph, done, known)
        done.after = len(graph.nodes)
        report.passes.append(done)
        if observe is not None:
            observe(name, graph)
    return graph, report
