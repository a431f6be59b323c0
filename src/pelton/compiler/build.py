"""The compiler's table of contents: import → passes → fuse → chains → ways → place → tune → lower → Engine."""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pelton.importers.onnx import load as importer
from pelton.partition import partition
from pelton.importers.imported import Imported, OnData
from pelton import preprocessing
from .accuracy import check_accuracy
from pelton.engine import model as plain_engine
from pelton.errors import BuildError, InputError, ModelError
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node
from pelton.ir.types import STRING
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.template import Target
from pelton.options import Options
from pelton.passes import pipeline
from pelton.passes.decompose import decompose, expansion
from pelton.passes.rewriting.report import Report
from pelton.passes.precision.widen import narrow, widen
from pelton.plan import memory_limits, fuse, lower, place, region, layout_search
from .assemble import assemble
from pelton.runtime import Engine
from pelton.runtime.program import ScriptEngine
from .targets import adapted, back_end, describe_target, ready, teller
from pelton.tune import candidates, chains, layout_costs, replay, search
from pelton.tune.size import Packing

log = logging.getLogger("pelton.build")

MOST_NODES = 128               # of a region


@dataclass(frozen=True)
class Built:
    """An engine with what it was made from: `chosen` has what runs each of the placed tasks, in their order; `decisions`
    is None unless they are to be recorded."""

    engine: Engine
    imported: Imported
    placed: place.Placed
    chosen: Sequence[lower.Chosen]
    decisions: replay.Decisions | None = None


def build(model: Any, shapes: Mapping[str, str | Sequence[int]] | None = None, *, options: Options | None = None, **given: Any) -> Engine:
    """What `pelton.build` is where the compiler is installed."""
    options = (options or Options()).but(**given, **({} if shapes is None else {"shapes": shapes}))
    ready(options)
    teller(options)("import", 0, 1)
    try:
        imported = _read(model, options)
    except OnData as e:
        return scripted(model, options, e)
    return _decided(imported, options).engine


def built(model: Any, options: Options) -> Built:
    """As `build`, for those who want to know more of the engine than it knows itself; of models that are one straight line."""
    ready(options)
    teller(options)("import", 0, 1)
    try:
        return _decided(_read(model, options), options)
    except OnData as e:
        raise ModelError(f"{e}: it becomes a script over several engines, of which no step-by-step errors are known") from None


def _read(model: Any, options: Options) -> Imported:
    return importer.load(model, shapes=options.shapes, outputs=options.outputs, values=options.values, usual=options.usual)


def scripted(model: Any, options: Options, reason: OnData) -> Engine:
    """A script over engines, for a model that cannot be one engine, for that reason."""
    found = partition.load(model, shapes=options.shapes, outputs=options.outputs, values=options.values, usual=options.usual)
    log.info("%s; it is built as a script over %d engines", reason, len(found.programs))
    engines: list[plain_engine.Engine | Undecided] = []
    decided: list[replay.Decisions | None] = []
    for program, before in zip(found.programs, _before(options, len(found.programs))):
        try:
            made = _by(before, program, options)
            engines.append(made.engine.plain)
            decided.append(made.decisions)
        except Undecided as e:
            engines.append(e)
            decided.append(None)
    script = assemble(found, engines, options, describe_target(options)[1])
    _record(options, decided)
    return ScriptEngine(script)


def _decided(imported: Imported, options: Options) -> Built:
    """An engine of a program; BuildError where it would have to know a size that a run decides."""
    _check_labels(imported.graph, options)
    try:
        return alone(imported, options)
    except Undecided as e:
        raise BuildError(undecided(imported, e)) from e


def alone(imported: Imported, options: Options) -> Built:
    """An engine of a model that is one program; Undecided where it would have to know a size that a run decides."""
    before, = _before(options, 1)
    made = _by(before, imported, options)
    _record(options, [made.decisions])
    return made


def _before(options: Options, count: int) -> list[replay.Decisions | None]:
    """What was decided before for each of so many programs, where the options name a file of it."""
    if options.load_tactics is None:
        return [None] * count
    return replay.read(options.load_tactics, describe_target(options)[0].isa, count)


def _by(before: replay.Decisions | None, imported: Imported, options: Options) -> Built:
    """An engine of a program, by what was decided before. BuildError where that was to have none."""
    made = compiled(imported, options, before)
    if before is None and options.load_tactics is not None:
        raise BuildError(f"{options.load_tactics} says that {imported.graph.name} became no engine, here it does; "
                         f"{replay.AGAIN}")
    return made


def _record(options: Options, found: Sequence[replay.Decisions | None]) -> None:
    if options.save_tactics is not None:
        replay.write(options.save_tactics, describe_target(options)[0].isa, found)


def undecided(imported: Imported, e: Undecided) -> str:
    """Why there is no engine of a program that would have to know a size."""
    return f"{imported.info.called or imported.graph.name}: {e}; give the sizes that this depends on as numbers with shapes="


def _check_labels(graph: Graph, options: Options) -> None:
    """InputError unless there are as many labels as classes: the last axis of the first output, but for axes of one, as `pelton run --top` reads it."""
    if options.labels is None or not graph.outputs:
        return
    found = graph.outputs[0]
    shape = list(found.type.shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    if shape and isinstance(shape[-1], int) and shape[-1] != len(options.labels):
        raise InputError(f"labels name {len(options.labels)} classes, output {found.name!r} {found.type} has {shape[-1]} along its last axis; "
                         "give one name for each class, in their order")


def compiled(imported: Imported, options: Options, before: replay.Decisions | None = None) -> Built:
    """An engine of a program, by what was decided before where that is given."""
    progress = teller(options)
    progress("optimize", 0, 1)
    graph, report = optimized(imported, options)
    with back_end(options, sum(a.nbytes for a in graph.constants.values())) as back:
        placed, fused, decided = plan(adapted(graph, options), options, back.target, back.clock, before)
        choices: Mapping[int, search.Choice]
        if before is None:
            choices = search.select(placed, back.target, back.clock, strict=options.strict,
                                    most=search.MOST[options.level], spares=back.spares)
        else:
            choices = search.select(placed, back.target, None, strict=options.strict, most=max(search.MOST.values()),
                                    among=before.among)
        decisions = replay.recorded(fused, placed, choices) if options.save_tactics is not None else None
        placed, choices, together = back.together(placed, choices)
        choices, code = back.code(placed, choices)
    chosen = [_chosen(task, choices.get(i), wave) for i, (task, wave) in enumerate(zip(placed.tasks, lower.waves(placed)))]
    host = [c.info["name"] for c in chosen if c.kernel is None]
    for name in host:
        log.warning("%s runs as a host step by its reference: no kernel takes it", name)
    checked: list[tuple[str, float]] = []
    meta = {**back.meta, "level": options.level, "strict": options.strict, "precision": options.precision,
            "report": {"fired": report.fired(), "refused": report.refused()},
            "fusion_refusals": [f"{n.node}: {n.reason}" for n in fused.notes], "copies": placed.copies, "layouts": decided,
            "chains": [*fused.chains, *together], "host_steps": host, "weights": _weights([c.packing for c in choices.values()]),
            "model": {k: v for k, v in asdict(imported.info).items() if k != "path"},
            "forms": imported.forms, "checked": checked, "image": options.image, "labels": list(options.labels) if options.labels else None}
    plain = lower.lower(placed, chosen, code, name=imported.graph.name, target=back.runs_on, meta=meta,
                        output_names=[v.name for v in imported.graph.outputs], file=imported.info.called)
    memory_limits.check_engine(plain, options.memory)
    engine = Engine(back.agreed(plain))
    if options.check:
        checked += check_accuracy(engine, placed, chosen)
    progress("done", 1, 1)
    return Built(engine, imported, placed, chosen, decisions)


def optimized(imported: Imported, options: Options, see: Callable[[str, Graph], None] | None = None) -> tuple[Graph, Report]:
    """A program after all rules, and what they did; `see` gets it after each pass. BuildError for what could not lie in memory."""
    memory_limits.check_tensors(imported.graph, options.memory)
    if options.image is not None:
        for v in imported.graph.inputs[:1]:
            preprocessing.parse(options.image).axis(v.type.shape)
    return pipeline.run(imported.graph, options, see)


def plan(graph: Graph, options: Options, target: Target, clock: search.Timing | None = None,
         before: replay.Decisions | None = None) -> tuple[place.Placed, fuse.Fused, list[dict[str, Any]]]:
    """A graph cut into regions that templates take; every value with its place; and where templates would have had it otherwise, what that would cost.
    All as it was decided before, where that is given."""
    def claim(r: region.Region) -> str | None:
        if any(v.type.dtype is STRING for v in (*r.body.inputs, *r.body.constants, *r.body.outputs)):
            return "strings are Python objects, which host steps alone may touch"
        if len(r.body.nodes) > MOST_NODES:
            return "it is long enough: compilers take more than their share of time for longer kernels"
        return candidates.claim(r, options.strict, target.isa)

    graph = spelled(graph, claim)
    fused = fuse.fuse(graph, claim)
    takers: replay.Takers = partial(candidates.takers, strict=options.strict, isa=target.isa)
    if before is None:
        fused = chains.join(fused, clock, target, options.strict, search.MOST[options.level])
    else:
        fused, takers = before.joined(fused, target, options.strict)
    amid = partial(candidates.amid, fused.graph, target, options.strict)
    found = layout_search.explore(fused, takers, amid)
    cost, unit = layout_costs.costs(found.open(), clock, target, options.strict, search.MOST[options.level])
    chosen, decisions = found.cheapest(cost)
    decided = [{"region": d.region.title(), "layers": list(d.region.layers), "template": d.by, "more": dict(d.instead), "unit": unit} for d in decisions]
    return place.place(fused, chosen.__getitem__, amid), fused, decided


def spelled(graph: Graph, claim: Callable[[region.Region], str | None]) -> Graph:
    """The program in words that templates take, as far as there are such; `claim` says of a region why none of them does."""
    def claimed(graph: Graph, node: Node) -> bool:
        return fuse.is_view(node) or claim(region.cut(graph, (node,), (node,))) is None

    def takes(graph: Graph, node: Node) -> bool:
        return claimed(graph, node) or not any(narrow(v.type.dtype) for v in (*node.inputs, *node.outputs)) and expansion(node) is not None
    graph = widen(graph, takes)                                   # first what kernels take as a whole, or all parts of it
    return widen(decompose(graph, claimed), claimed)


def _weights(packings: Sequence[Packing]) -> dict[str, float]:
    """What the weights that kernels read take in the model and packed, in bytes, and what time the larger ones save, in nanoseconds."""
    return {"own": sum(p.own for p in packings), "packed": sum(p.packed for p in packings), "saved_ns": sum(p.saved for p in packings)}


def _chosen(task: place.Task, choice: search.Choice | None, wave: int) -> lower.Chosen:
    return lower.Chosen(task, choice.kernel if choice else None, wave, _info(task, choice), tuple((t.name, k) for t, k in choice.spares) if choice else ())


def _info(task: place.Task, choice: search.Choice | None) -> dict:
    if choice is None:
        return {"name": task.node.name or task.node.op.name, "op": task.node.op.name, "tactic": "host", "layers": [task.node.name]}
    r = task.region
    return {"name": "+".join(r.layers[:3]) + ("+…" if len(r.layers) > 3 else "") or r.title(), "op": r.title(), "tactic": choice.tactic.name,
            "layers": list(r.layers), "flops": r.flops(), "bytes": choice.kernel.traffic(r, task.layouts), "times_ns": dict(sorted(choice.times.items()))}
