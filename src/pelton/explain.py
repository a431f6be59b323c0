"""What the compiler makes of a model, stage by stage, and what it refused to do and why; no kernel is compiled or timed for it."""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pelton.build import describe_target, plan
from pelton.errors import InputError
from pelton.importers import onnx as importer
from pelton.importers.imported import Imported
from pelton.ir.graph import Graph
from pelton.kernels.template import TEMPLATES
from pelton.options import Options
from pelton.passes import pipeline
from pelton.passes.report import Report
from pelton.passes.rewrite import RULES
from pelton.plan.fuse import Fused
from pelton.plan.place import Placed, Task
from pelton.plan.region import Region
from pelton.tune.candidates import candidates

ALL = 1 << 20                                     # tactics per template: every one


@dataclass(frozen=True)
class Explanation:
    """A model on its way to an engine. `stages`: name of the stage → the program after it; `tactics`: for each task, template → its tactics."""

    imported: Imported
    stages: Mapping[str, Graph]
    report: Report
    fused: Fused
    placed: Placed
    layouts: list[dict[str, Any]]
    tactics: tuple[Mapping[str, tuple[str, ...]], ...]

    def stage(self, name: str) -> Graph:
        """The program after a stage; InputError where there is no such stage."""
        if name not in self.stages:
            raise InputError(f"there is no stage {name!r}; the stages are {', '.join(self.stages)}")
        return self.stages[name]

    def why_not(self, name: str) -> Refusals:
        """Where a rule (or a pass, or a kernel template) applied and where it refused, with the reasons; InputError where there is nothing of that name."""
        fired, refused = self.report.fired(), self.report.refused()
        if name in TEMPLATES:
            regions = [t.what for t in self.placed.tasks if isinstance(t.what, Region)]
            reasons = {called(r): TEMPLATES[name].refuses(r) for r in regions}
            return Refusals(name, type(TEMPLATES[name]).__doc__ or "", tuple(r for r, why in reasons.items() if why is None),
                            {r: why for r, why in reasons.items() if why is not None})
        known = {*RULES, *fired, *refused}
        if name not in known:
            near = difflib.get_close_matches(name, {*known, *TEMPLATES}, 5, 0.4)
            raise InputError(f"there is no rule or kernel template {name!r}; "
                             + (f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"))
        return Refusals(name, RULES[name].doc if name in RULES else "", tuple(fired.get(name, ())), refused.get(name, {}))


@dataclass(frozen=True)
class Refusals:
    """One rule or template: the nodes or regions that it took, and those that it met and refused."""

    name: str
    says: str
    took: tuple[str, ...]
    refused: Mapping[str, str]


def explain(model, *, options: Options | None = None, **given) -> Explanation:
    """Takes a model through all stages but tuning. Arguments and errors are those of `pelton.build`."""
    options = (options or Options()).but(**given)
    imported = importer.load(model, shapes=options.shapes, outputs=options.outputs)
    stages = {"import": imported.graph}
    graph, report = pipeline.run(imported.graph, options, lambda name, g: stages.__setitem__(name.replace(" ", "-"), g))
    target, _ = describe_target(options)
    placed, fused, layouts = plan(graph, options, target)
    stages["decompose"] = fused.graph

    def tactics(task: Task) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        if isinstance(task.what, Region):
            for template, tactic in candidates(task.what, task.layouts, target, options.strict, ALL):
                found[template.name] = (*found.get(template.name, ()), tactic.name)
        return found
    return Explanation(imported, stages, report, fused, placed, layouts, tuple(map(tactics, placed.tasks)))


def called(region: Region) -> str:
    """What to call a region: the layers that it computes, else its ops."""
    return "+".join(region.layers) or region.title()
