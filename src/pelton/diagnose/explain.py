"""What the compiler makes of a model, stage by stage, what it refused to do and why, and how exact every step of the
engine is."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pelton.compiler.accuracy import ExpectedOutputs, StepRecord, relative_error, resolve_sizes, run_stepwise
from pelton.compiler.build import build_detailed
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import NUMBER, start, read_script, run_stages
from pelton.engine.model import Step
from pelton.errors import Cancelled, InputError
from pelton.partition import partition
from pelton.ir.imported import Imported, OnData
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph
from pelton.codegen.template import Tactic, templates
from pelton.options import Options
from pelton.passes.rewriting.report import Report
from pelton.passes.rewriting.rule import RULES
from pelton.plan.fuse import Fused
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region
from pelton.runtime import Engine
from pelton.backends.arrays import random_inputs
from pelton.backends.cpu.check import check_runs_here
from pelton.tune.candidates import candidates

ALL = 1 << 20  # tactics per template: every one


@dataclass(frozen=True)
class Explanation:
    """A model on its way to an engine. `stages`: name of the stage or pass → the program after it; `tactics`: for each
    task, template → its tactics."""

    imported: Imported
    stages: Mapping[str, Graph]
    report: Report
    fused: Fused
    placed: Placed
    layouts: Sequence[Mapping[str, Any]]
    tactics: tuple[Mapping[str, tuple[str, ...]], ...]
    isa: str

    def stage(self, name: str) -> Graph:
        """The program after a stage or pass; InputError where there is none of that name, or it changes no program."""
        if name not in self.stages:
            why = f"the stage {name!r} changes no program" if name in NUMBER else f"there is no stage {name!r}"
            raise InputError(f"{why}; the stages are {', '.join(self.stages)}")
        return self.stages[name]

    def why_not(self, name: str) -> Refusals:
        """Where a rule (or a pass, or a kernel template) applied and where it refused, with the reasons; InputError
        where there is nothing of that name."""
        fired, refused = self.report.fired(), self.report.rejected()
        known_templates = templates(self.isa)
        if name in known_templates:
            regions = [t.what for t in self.placed.tasks if isinstance(t.what, Region)]
            reasons = {called(r): known_templates[name].rejection(r) for r in regions}
            return Refusals(
                name,
                type(known_templates[name]).__doc__ or "",
                tuple(r for r, why in reasons.items() if why is None),
                {r: why for r, why in reasons.items() if why is not None},
            )
        known = {*RULES, *fired, *refused}
        if name not in known:
            near = difflib.get_close_matches(name, {*known, *known_templates}, 5, 0.4)
            raise InputError(
                f"there is no rule or kernel template {name!r}; "
                + (f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(known))}")
            )
        return Refusals(
            name, RULES[name].doc if name in RULES else "", tuple(fired.get(name, ())), refused.get(name, {})
        )


@dataclass(frozen=True)
class Refusals:
    """One rule or template: the nodes or regions that it took, and those that it met and refused."""

    name: str
    says: str
    took: tuple[str, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class StepError:
    """How far a step is from float64, in parts of the largest value that it should give. `own`: on the very inputs that
    it had; `sofar`: with all that came before it. `inexact`: its arithmetic is another than the model's, not only in
    the order of sums."""

    step: Step
    inexact: bool
    own: float
    sofar: float


@dataclass(frozen=True)
class OutputError:
    """How far an output of the engine is from the model in float64, and how far the optimized program would be, were
    every step of it exact."""

    engine: float
    program: float


@dataclass(frozen=True)
class Errors:
    """An engine's errors on one set of inputs, the steps in the order in which they run."""

    engine: Engine
    inputs: Mapping[str, np.ndarray]
    steps: tuple[StepError, ...]
    outputs: Mapping[str, OutputError]


@dataclass(frozen=True)
class ScriptExplanation:
    """A model that becomes a script over several engines, and why: its steps, and what becomes of each engine's
    program."""

    reason: str
    scripted: partition.Scripted
    parts: tuple[Explanation, ...]


def explain(model, *, options: Options | None = None, **given) -> Explanation | ScriptExplanation:
    """Takes a model through all stages but tuning, so that no kernel is compiled or timed. Arguments and errors are
    those of `pelton.build`."""
    options = (options or Options()).but(**given)
    try:
        imported = run_stages(Compilation(options, model), "import").imported
    except OnData as e:
        scripted = read_script(model, options)
        return ScriptExplanation(str(e), scripted, tuple(explained(program, options) for program in scripted.programs))
    return explained(imported, options)


def explained(imported: Imported, options: Options) -> Explanation:
    """The same for a program."""
    stages = {"import": imported.graph}

    def see(name: str, graph: Graph) -> None:
        stages.pop(name := name.replace(" ", "-"), None)  # a stage is later than its pass of the same name
        stages[name] = graph

    c = run_stages(replace(start(imported, options), observe=see), "place")

    def tactics(task: Task) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        if isinstance(task.what, Region):
            for template, tactic in candidates(task.what, task.layouts, c.target, options.strict, ALL):
                found[template.name] = (*found.get(template.name, ()), tactic.name)
        return found

    found = tuple(map(tactics, c.placed.tasks))
    return Explanation(imported, stages, c.report, c.fused, c.placed, c.layouts, found, c.target.isa)


def errors(
    model,
    inputs: Mapping[str, np.ndarray] | Callable[[Engine], Mapping[str, np.ndarray]] | None = None,
    *,
    options: Options | None = None,
    **given,
) -> Errors:
    """Builds an engine and runs it once, step by step, beside an evaluation in float64 (seconds to minutes).

    inputs: arrays by name, or what gives them for the engine; made up where there are none, of the sizes that the
    engine is tuned for. Options and errors are those of `pelton.build`; InputError for inputs that do not fit.
    """
    options = (options or Options()).but(**given)
    check_runs_here(options.target, "measuring errors")
    made = build_detailed(model, options)
    engine = made.engine
    if inputs is None:
        inputs = random_inputs([replace(p, shape=engine.shapes()[p.name]) for p in engine.inputs])
    elif callable(inputs):
        inputs = inputs(engine)
    placed, chosen = resolve_sizes(engine, made.placed, made.scheduled, inputs)
    wanted, found = ExpectedOutputs(placed, inputs), list[StepError]()

    def see(seen: StepRecord) -> None:
        tactic = None if seen.step.host else Tactic.parse(seen.step.info["tactic"])
        inexact = tactic is not None and not templates(tactic.isa)[tactic.template].is_exact(tactic)
        found.append(StepError(seen.step, inexact, seen.own_error(), seen.error(wanted.by(seen.task))))
        if options.progress is not None and options.progress("check", len(found), len(engine.steps)) is False:
            raise Cancelled(f"cancelled while in step {len(found)} of {len(engine.steps)}")

    results = run_stepwise(engine, chosen, inputs, see)
    want, graph = evaluate(made.imported.graph, inputs, round=False), placed.graph
    outputs = {
        p.name: OutputError(
            relative_error(v.type.dtype, results[p.name], want[p.name]),
            relative_error(v.type.dtype, wanted.exact.of(v), want[p.name]),
        )
        for p, v in zip(engine.outputs, graph.outputs)
    }
    return Errors(engine, inputs, tuple(found), outputs)


def called(region: Region) -> str:
    """What to call a region: the layers that it computes, else its ops."""
    return "+".join(region.layers) or region.title()
