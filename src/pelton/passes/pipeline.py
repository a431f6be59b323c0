"""The passes in their order, each in one line that says why it stands there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pelton.ir.graph import Graph

from . import rules as _  # noqa: F401  (declares all rules)
from .decompose import Takes, decompose
from .fold import drop_dead, fold_constants, merge_equal
from pelton.passes.precision import widen_nodes
from pelton.passes.rewriting.report import PassReport, Report
from pelton.passes.rewriting.rule import rewrite, rules
from .siblings import sibling_convolutions, sibling_matmuls

T = TypeVar("T")
Observer = Callable[[str, Graph], None]  # gets the name of a pass and the program after it
Pass = tuple[str, Callable[[Graph, PassReport, T], Graph]]  # its name, and what it does, knowing a T besides


def stage(*names: str) -> Callable[[Graph, PassReport, bool], Graph]:
    """The rules of these stages, together until none applies."""
    return lambda graph, report, strict: rewrite(graph, rules(*names), report, strict=strict)


# What they have to know is `Options.strict`.
PIPELINE: tuple[Pass[bool], ...] = (
    # exporters leave things behind; no rule should have to look at them
    ("dead", drop_dead),
    # rules ask whether something is constant: let it be one
    ("constant", fold_constants),
    # patterns name a value twice where exporters compute it twice
    ("equal", merge_equal),
    ("simplify", stage("simplify", "views")),  # one spelling instead of many
    # names for what is still spelled out, before its parts are folded away
    ("recognize", stage("simplify", "views", "recognize")),
    # constants around convolutions and products move into the weights
    ("merge", stage("simplify", "views", "recognize", "merge")),
    # after folding: siblings differ in nothing but their weights then
    ("sibling convolutions", sibling_convolutions),
    ("sibling matmuls", sibling_matmuls),
    # slices that came from merging meet joins and other slices
    ("rest", stage("simplify", "views", "recognize", "merge")),
    ("rest constant", fold_constants),  # what the rules made out of constants
    ("rest equal", merge_equal),
    ("rest dead", drop_dead),
)

# What they have to know is which nodes kernels take as they are.
DECOMPOSE: tuple[Pass[Takes], ...] = (
    ("decompose", lambda graph, report, takes: decompose(graph, takes, report)),
    ("widen parts", widen_nodes),  # what no kernel takes narrow, one may take in f32
)


def run(graph: Graph, strict: bool = False, observe: Observer | None = None) -> tuple[Graph, Report]:
    """Runs all passes: the optimized graph, of the same meaning and the same inputs and outputs, and what they did."""
    return apply(PIPELINE, graph, strict, observe)


def apply(passes: Iterable[Pass[T]], graph: Graph, known: T, observe: Observer | None = None) -> tuple[Graph, Report]:
    """Runs passes in order: the graph, and what they did. known: an argument of every pass."""
    report = Report()
    for name, step in passes:
        done = PassReport(name, before=len(graph.nodes))
        graph = step(graph, done, known)
        done.after = len(graph.nodes)
        report.passes.append(done)
        if observe is not None:
            observe(name, graph)
    return graph, report
