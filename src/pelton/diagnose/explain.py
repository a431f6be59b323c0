"""Explains a build: the program after every stage, the rejections with their reasons, and the error of every step."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pelton.compiler.accuracy import ExpectedOutputs, StepRecord, relative_error, resolve_sizes, run_stepwise
from pelton.builder.build import build_detailed
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import NUMBER, start, read_script, run_stages
from pelton.engine.plan import Step
from pelton.errors import Cancelled, InputError
from pelton.partition import partition
from pelton.ir.imported import Imported, OnData
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph
from pelton.codegen.template import Target, Template, templates
from pelton.options import Options
from pelton.passes.rewriting.report import Report
from pelton.passes.rewriting.rule import RULES
from pelton.plan.fuse import Fused
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region, cut
from pelton.runtime import Engine
from pelton.backends.arrays import random_inputs
from pelton.backends.cpu.check import check_runs_here
from pelton.tuning import chains
from pelton.tuning.candidates import candidates, template_rejection

from .states import KeptValue, kept_values

ALL = 1 << 20  # tactics per template: every one


@dataclass(frozen=True)
class Explanation:
    """The stages of a build. `stages`: name of the stage or pass → the program after it; `tactics`: for each task,
    template → its tactics."""

    imported: Imported
    stages: Mapping[str, Graph]
    report: Report
    fused: Fused
    placed: Placed
    layouts: Sequence[Mapping[str, Any]]
    tactics: tuple[Mapping[str, tuple[str, ...]], ...]
    target: Target
    strict: bool

    @property
    def states(self) -> list[KeptValue]:
        """The inputs that keep values between runs, each with its output."""
        return kept_values(self.placed, self.imported.info.states)

    def stage(self, name: str) -> Graph:
        """Returns the program after a stage or pass; InputError for an unknown name, or one without a program."""
        if hyphenated(name) not in self.stages:
            why = f"the stage {name!r} changes no program" if name in NUMBER else f"there is no stage {name!r}"
            raise InputError(f"{why}; the stages are {', '.join(self.stages)}")
        return self.stages[hyphenated(name)]

    def why_not(self, name: str) -> RuleOutcome:
        """Returns where a rule, pass or kernel template applied, and where it was rejected and why. Raises InputError
        for an unknown name."""
        fired, refused = self.report.fired(), self.report.rejected()
        known_templates = templates(self.target.isa)
        if name in known_templates:
            template = known_templates[name]
            reasons = self._rejections(template)
            regions = [t.what for t in self.placed.tasks if isinstance(t.what, Region)]
            left = {region_name(r): template_rejection(template, r) for r in self._left(template, regions)}
            return RuleOutcome(
                name,
                type(template).__doc__ or "",
                tuple(r for r, why in reasons.items() if why is None),
                {r: why for r, why in {**reasons, **left}.items() if why is not None},
            )
        known = {*RULES, *fired, *refused}
        if name not in known:
            near = difflib.get_close_matches(name, {*known, *known_templates}, 5, 0.4)
            raise InputError(
                f"there is no rule or kernel template {name!r}; "
                + (f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(known))}")
            )
        return RuleOutcome(
            name, RULES[name].doc if name in RULES else "", tuple(fired.get(name, ())), refused.get(name, {})
        )

    def _left(self, template: Template, regions: Sequence[Region]) -> Iterator[Region]:
        """Yields the nodes for a template that no region has: they became others, or are host steps."""
        graph, whole = self.stages["precision"], {(a.op, a.name) for r in regions for a in r.anchors}
        for n in graph.nodes:
            if n.op.name in template.anchors and (n.op, n.name) not in whole:
                yield cut(graph, (n,), (n,))

    def _rejections(self, template: Template) -> dict[str, str | None]:
        """Returns, for each region or chain that the template takes as one region, why the template does not run it."""
        reasons: dict[str, str | None] = {}
        of_chain: dict[Region, tuple[str, str]] = {}
        for chain, whole, reason in chains.apart(self.fused, self.target, self.strict):
            if template_rejection(template, whole) is None:
                of_chain |= dict.fromkeys(chain, (region_name(whole), reason))
        for task in self.placed.tasks:
            if isinstance(region := task.what, Region):
                name, why = of_chain.get(region) or (region_name(region), template_rejection(template, region))
                reasons[name] = why
        return reasons

    def json(self) -> dict[str, Any]:
        """Returns the data of `pelton explain --json`: the import, the changes and rejections of passes, the regions
        with their candidates, and the decisions on fusions and layouts."""
        graph, info = self.imported.graph, self.imported.info

        def step(task: Task, tactics: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
            if not isinstance(task.what, Region):
                return {"op": task.what.op.name, "layers": [task.what.name], "host": True, "types": [], "tactics": {}}
            types = [str(v.type) for v in task.what.body.outputs]
            named = {template: list(names) for template, names in tactics.items()}
            return {"op": task.what.title(), "layers": list(task.what.layers), "host": False, "types": types} | {
                "tactics": named
            }

        return {
            "nodes": len(graph.nodes),
            "constant_bytes": sum(v.type.bytes for v in graph.constants),
            "opsets": {domain or "ai.onnx": version for domain, version in info.opsets.items()},
            "producer": info.producer,
            "inputs": {v.name: str(v.type) for v in graph.inputs},
            "outputs": {v.name: str(v.type) for v in graph.outputs},
            "warnings": list(info.warnings),
            "passes": [{k: getattr(p, k) for k in ("name", "before", "after", "fired")} for p in self.report.passes],
            "rejected": self.report.rejected(),
            "steps": [step(task, tactics) for task, tactics in zip(self.placed.tasks, self.tactics)],
            "fusions_rejected": [{"node": note.node, "reason": note.reason} for note in self.fused.notes],
            "copies": list(self.placed.copies.values()),
            "layouts": [dict(d) for d in self.layouts],
            "states": [asdict(kept) for kept in self.states],
        }


@dataclass(frozen=True)
class RuleOutcome:
    """The nodes or regions to which a rule or template applies, and those that it rejects, with the reasons."""

    name: str
    doc: str
    applied: tuple[str, ...]
    rejected: Mapping[str, str]


@dataclass(frozen=True)
class StepError:
    """The error of a step against float64, relative to its largest expected value. `own`: on its actual inputs;
    `accumulated`: with the errors of all earlier steps. `inexact`: its arithmetic differs from the model's in more than
    the order of sums."""

    step: Step
    inexact: bool
    own: float
    accumulated: float


@dataclass(frozen=True)
class OutputError:
    """The error of an engine's output against the model in float64, and that of the optimized program with exact
    steps."""

    engine: float
    program: float


@dataclass(frozen=True)
class Errors:
    """An engine's errors on one set of inputs, steps in execution order."""

    engine: Engine
    inputs: Mapping[str, np.ndarray]
    steps: tuple[StepError, ...]
    outputs: Mapping[str, OutputError]

    def json(self) -> dict[str, Any]:
        """Returns the data of `pelton explain --error --json`; infinite errors as texts, which JSON lacks."""

        def number(error: float) -> float | str:
            return error if math.isfinite(error) else str(error)

        steps = [
            {
                "step": i,
                "own": number(s.own),
                "so_far": number(s.accumulated),
                "inexact": s.inexact,
                "tactic": "host" if s.step.host else s.step.info["tactic"],
                "op": s.step.info["op"],
                "layers": list(s.step.info["layers"]),
            }
            for i, s in enumerate(self.steps)
        ]
        outputs = {n: {"engine": number(o.engine), "program": number(o.program)} for n, o in self.outputs.items()}
        return {"inputs": {n: list(a.shape) for n, a in self.inputs.items()}, "steps": steps, "outputs": outputs}


@dataclass(frozen=True)
class ScriptExplanation:
    """A model that becomes a script over several engines: the reason, its steps, and the explanation of each engine."""

    reason: str
    scripted: partition.UnbuiltScript
    parts: tuple[Explanation, ...]


def explain(model, *, options: Options | None = None, **overrides) -> Explanation | ScriptExplanation:
    """Runs all stages but tuning, without compiling or timing kernels. Arguments and errors are those of
    `pelton.build`."""
    options = (options or Options()).but(**overrides)
    try:
        imported = run_stages(Compilation(options, model), "import").imported
    except OnData as e:
        scripted = read_script(model, options, e)
        return ScriptExplanation(
            str(e), scripted, tuple(explain_program(program, options) for program in scripted.programs)
        )
    return explain_program(imported, options)


def explain_program(imported: Imported, options: Options) -> Explanation:
    """Explains one program."""
    stages = {"import": imported.graph}

    def see(name: str, graph: Graph) -> None:
        stages.pop(name := hyphenated(name), None)  # a stage runs after its pass of the same name
        stages[name] = graph

    c = run_stages(replace(start(imported, options), observe=see), "place")

    def tactics(task: Task) -> dict[str, tuple[str, ...]]:
        choices: dict[str, tuple[str, ...]] = {}
        if isinstance(task.what, Region):
            for template, tactic in candidates(task.what, task.layouts, c.target, options.strict, ALL):
                choices[template.name] = (*choices.get(template.name, ()), tactic.name)
        return choices

    choices = tuple(map(tactics, c.placed.tasks))
    return Explanation(imported, stages, c.report, c.fused, c.placed, c.layouts, choices, c.target, options.strict)


def errors(
    model,
    inputs: Mapping[str, np.ndarray] | Callable[[Engine], Mapping[str, np.ndarray]] | None = None,
    *,
    options: Options | None = None,
    **overrides,
) -> Errors:
    """Builds an engine and runs it once, step by step, beside an evaluation in float64 (seconds to minutes).

    inputs: arrays by name, or a function that returns them for the engine (default: random ones of the optimum sizes).
    Options and errors are those of `pelton.build`; raises InputError for inputs that do not fit.
    """
    options = (options or Options()).but(**overrides)
    check_runs_here(options.target, "measuring errors")
    result = build_detailed(model, options)
    engine = result.engine
    if inputs is None:
        inputs = random_inputs([replace(p, shape=engine.shapes()[p.name]) for p in engine.inputs])
    elif callable(inputs):
        inputs = inputs(engine)
    placed, chosen = resolve_sizes(engine, result.placed, result.scheduled, inputs)
    expected, steps = ExpectedOutputs(placed, inputs), list[StepError]()

    def see(seen: StepRecord) -> None:
        steps.append(StepError(seen.step, seen.inexact, seen.own_error(), seen.error(expected.by(seen.task))))
        if options.progress is not None and options.progress("check", len(steps), len(engine.steps)) is False:
            raise Cancelled(f"cancelled while in step {len(steps)} of {len(engine.steps)}")

    results = run_stepwise(engine, chosen, inputs, see)
    exact, graph = evaluate(result.imported.graph, inputs, round=False), placed.graph
    outputs = {
        p.name: OutputError(
            relative_error(v.type.dtype, results[p.name], exact[p.name]),
            relative_error(v.type.dtype, expected.exact.of(v), exact[p.name]),
        )
        for p, v in zip(engine.outputs, graph.outputs)
    }
    return Errors(engine, inputs, tuple(steps), outputs)


def hyphenated(stage: str) -> str:
    """Returns the name of a stage or pass as one word."""
    return stage.replace(" ", "-")


def region_name(region: Region) -> str:
    """Returns the name of a region: its layers, else its ops."""
    return "+".join(region.layers) or region.title()
