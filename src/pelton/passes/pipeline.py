"""The passes in their order, each in one line that says why it stands there."""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pelton.ir.graph import Graph

from .rules import merge, recognize, rotary, simplify, views  # noqa: F401  (they declare their rules)
from .fold import drop_dead, fold_constants, merge_equal
from pelton.passes.precision.halves import in_f32
from pelton.passes.rewriting.report import PassReport, Report
from pelton.passes.rewriting.rule import rewrite, rules
from .siblings import sibling_convolutions, sibling_matmuls

Pass = Callable[[Graph, PassReport, bool], Graph]                 # the bool is Options.strict


class Choices(Protocol):
    """What the passes want to know of the build's options."""

    @property
    def strict(self) -> bool: ...

    @property
    def on_cpu(self) -> bool: ...


def stage(*names: str) -> Pass:
    """The rules of these stages, together until none applies."""
    return lambda graph, report, strict: rewrite(graph, rules(*names), report, strict=strict)


PIPELINE: tuple[tuple[str, Pass], ...] = (
    ("dead", drop_dead),                                          # exporters leave things behind; no rule should have to look at them
    ("constant", fold_constants),                                 # rules ask whether something is constant: let it be one
    ("equal", merge_equal),                                       # patterns name a value twice where exporters compute it twice
    ("simplify", stage("simplify", "views")),                     # one spelling instead of many
    ("recognize", stage("simplify", "views", "recognize")),       # names for what is still spelled out, before its parts are folded away
    ("merge", stage("simplify", "views", "recognize", "merge")),  # constants around convolutions and products move into the weights
    ("sibling convolutions", sibling_convolutions),               # after folding: siblings differ in nothing but their weights then
    ("sibling matmuls", sibling_matmuls),
    ("rest", stage("simplify", "views", "recognize", "merge")),   # slices that came from merging meet joins and other slices
    ("rest constant", fold_constants),                            # what the rules made out of constants
    ("rest equal", merge_equal),
    ("rest dead", drop_dead),
)


def run(graph: Graph, options: Choices | None = None, observe: Callable[[str, Graph], None] | None = None) -> tuple[Graph, Report]:
    """The optimized graph and what was done to it; `observe` sees the graph after each pass. The meaning stays, names of inputs and outputs too."""
    report = Report()
    if options is not None and not options.strict and options.on_cpu:
        graph = in_f32(graph)                                     # first: rules and kernels of f32 serve all that follows
    for name, step in PIPELINE:
        done = PassReport(name, before=len(graph.nodes))
        graph = step(graph, done, options is not None and options.strict)
        done.after = len(graph.nodes)
        report.passes.append(done)
        if observe is not None:
            observe(name, graph)
    return graph, report
