"""The compiler's table of contents: the stages from a model to an engine, in their order, and the walk along them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from pelton import importers, preprocessing
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.template import Target
from pelton.ir.imported import Imported
from pelton.ir.graph import Graph, Node
from pelton.ir.types import STRING
from pelton.options import Options
from pelton.partition import partition
from pelton.passes import pipeline, precision
from pelton.passes.decompose import Takes, expansion
from pelton.passes.precision.widen import narrow
from pelton.plan import fuse, layout_search, lower, memory_limits, place, region
from pelton.tune import candidates, chains, layout_costs, replay, search

from . import about, targets
from .compilation import Compilation, Lowered

log = logging.getLogger("pelton.build")

MOST_NODES = 128  # of a region

Claim = Callable[[region.Region], str | None]


@dataclass(frozen=True)
class Stage:
    """One step of a compilation. `what`: what it is for; `rewrites`: whether it changes the program."""

    name: str
    what: str
    run: Callable[[Compilation], Compilation]
    rewrites: bool = False


def start(imported: Imported, options: Options, target: Target | None = None, done: str = "import") -> Compilation:
    """A compilation of a program that is there already, with all stages up to `done` behind it. target: what code is
    made for, where the options do not say."""
    c = Compilation(options, imported=imported, graph=imported.graph, done=done)
    return c if target is None else replace(c, target=target)


def run_stages(c: Compilation, to: str) -> Compilation:
    """The compilation after all stages that are still to be done, up to this one. KeyError for a stage that there is
    not, ModelError and InputError for what cannot be read (OnData where a script may do), BuildError for what cannot be
    built, Undecided where a size would have to be known."""
    for stage in STAGES[NUMBER[c.done] + 1 if c.done else 0 : NUMBER[to] + 1]:
        c = replace(stage.run(c), done=stage.name)
        if stage.rewrites:
            c.see(stage.name, c.graph)
    return c


def read_script(model: Any, options: Options) -> partition.Scripted:
    """A model as a script over several programs: instead of the stage "import", where that raises OnData."""
    return partition.scripted(importers.unread(model, **_asked(options)))


def _asked(o: Options) -> dict[str, Any]:
    return {"shapes": o.shapes, "outputs": o.outputs, "values": o.values, "optimum": o.optimum}


def _import(c: Compilation) -> Compilation:
    imported = importers.load(c.model, **_asked(c.options))
    return replace(c, imported=imported, graph=imported.graph)


def _optimize(c: Compilation) -> Compilation:
    """BuildError for what could not lie in memory."""
    memory_limits.check_tensors(c.graph, c.options.memory)
    if c.options.image is not None:
        for v in c.graph.inputs[:1]:
            preprocessing.parse(c.options.image).axis(v.type.shape)
    c = _types(c, precision.FIRST, lambda graph, node: False)  # no kernel is asked yet
    graph, report = pipeline.run(c.graph, c.options.strict, c.see)
    return replace(c, graph=graph, report=c.report.then(report))


def _precision(c: Compilation) -> Compilation:
    c = replace(c, target=c.target or targets.describe_target(c.options)[0])
    claims = _claims(c)

    def takes(graph: Graph, node: Node) -> bool:
        """Whether kernels take a node as a whole, or, where nothing of it is narrow, its parts."""
        if claims(graph, node):
            return True
        return not any(narrow(v.type.dtype) for v in (*node.inputs, *node.outputs)) and expansion(node) is not None

    return _types(c, precision.PASSES, takes)


def _types(c: Compilation, passes: Sequence[pipeline.Pass[Takes]], takes: Takes) -> Compilation:
    """The program after those of these passes that the target wants."""
    wanted = targets.target_kind(c.options).precision(c.options)
    graph, report = pipeline.apply([p for p in passes if p[0] in wanted], c.graph, takes, c.see)
    return replace(c, graph=graph, report=c.report.then(report))


def _decompose(c: Compilation) -> Compilation:
    graph, report = pipeline.apply(pipeline.DECOMPOSE, c.graph, _claims(c), c.see)
    return replace(c, graph=graph, report=c.report.then(report))


def _fuse(c: Compilation) -> Compilation:
    fused = fuse.fuse(c.graph, _claim(c))
    if c.before is not None:
        return replace(c, fused=c.before.joined(fused, c.target, c.options.strict))
    return replace(c, fused=chains.join(fused, c.clock, c.target, c.options.strict, search.MOST[c.options.level]))


def _layout(c: Compilation) -> Compilation:
    strict, most = c.options.strict, search.MOST[c.options.level]
    takers: replay.Takers = partial(candidates.accepting_templates, strict=strict, isa=c.target.isa)
    if c.before is not None:
        takers = c.before.takers(c.fused, takers)
    found = layout_search.explore(c.fused, takers, _preferred(c))
    cost, unit = layout_costs.costs(found.open(), c.clock, c.target, strict, most)
    templates, decisions = found.cheapest(cost)
    layouts = [
        {
            "region": d.region.title(),
            "layers": list(d.region.layers),
            "template": d.by,
            "more": dict(d.instead),
            "unit": unit,
        }
        for d in decisions
    ]
    return replace(c, templates=templates, layouts=layouts)


def _place(c: Compilation) -> Compilation:
    return replace(c, placed=place.place(c.fused, c.templates.__getitem__, _preferred(c)))


def _tune(c: Compilation) -> Compilation:
    alternatives = c.back.alternatives if c.back is not None else 0
    select = partial(search.select, c.placed, c.target, strict=c.options.strict, alternatives=alternatives)
    if c.before is not None:
        return replace(c, choices=select(None, most=max(search.MOST.values()), among=c.before.among))
    return replace(c, choices=select(c.clock, most=search.MOST[c.options.level]))


def _lower(c: Compilation) -> Compilation:
    assert c.back is not None, "nothing is there to compile kernels with"
    placed, choices, together = c.back.merge_launches(c.placed, c.choices)
    choices, code = c.back.generate_code(placed, choices)
    waves = lower.waves(placed)
    chosen = [about.schedule(task, choices.get(i), waves[i]) for i, task in enumerate(placed.tasks)]
    for name in about.host_steps(chosen):
        log.warning("%s runs as a host step by its reference: no kernel takes it", name)
    return replace(c, lowered=Lowered(placed, choices, chosen, together, code))


def _link(c: Compilation) -> Compilation:
    """BuildError for an engine that takes more memory than there may be."""
    assert c.back is not None
    graph, info = c.imported.graph, c.imported.info
    plain = lower.lower(
        c.lowered.placed,
        c.lowered.scheduled,
        c.lowered.code,
        name=graph.name,
        target=c.back.runs_on,
        meta=about.meta(c),
        output_names=[v.name for v in graph.outputs],
        file=info.called,
    )
    memory_limits.check_engine(plain, c.options.memory)
    return replace(c, plain=c.back.drop_wrong_kernels(plain))


def _claim(c: Compilation) -> Claim:
    """What says why no template takes a region; None where one does."""

    def rejection(r: region.Region) -> str | None:
        if any(v.type.dtype is STRING for v in (*r.body.inputs, *r.body.constants, *r.body.outputs)):
            return "strings are Python objects, which host steps alone may touch"
        if len(r.body.nodes) > MOST_NODES:
            return "it is long enough: compilers take more than their share of time for longer kernels"
        return candidates.rejection(r, c.options.strict, c.target.isa)

    return rejection


def _claims(c: Compilation) -> Takes:
    """Whether a node is a view, or a template takes it as it is."""
    claim = _claim(c)
    return lambda graph, node: fuse.is_view(node) or claim(region.cut(graph, (node,), (node,))) is None


def _preferred(c: Compilation) -> place.PreferredLayout:
    """Asks templates once for each value, however many ways lead to it."""
    return cache(partial(candidates.preferred_layout, c.fused.graph, c.target, c.options.strict))


STAGES = (
    Stage("import", "the model's file as a program; sizes that nobody gave stay open where they can", _import, True),
    Stage(
        "optimize",
        "rewrite rules and folding; before that, quantized ops become arithmetic in f32, and on CPUs "
        "models in half precision models in f32, which rules and kernels are made for",
        _optimize,
        True,
    ),
    Stage(
        "precision",
        "what values are kept in, how products round, and what is computed in f32 after all; on GPUs "
        "recurrent layers are decomposed here, so that their products round as others do",
        _precision,
        True,
    ),
    Stage(
        "decompose",
        "what no kernel takes as it is, in ops that say the same; parts in narrow floats may become f32",
        _decompose,
        True,
    ),
    Stage("fuse", "regions, each for one kernel; chains of them as one where that is faster", _fuse),
    Stage("layout", "which template of each region decides where its operands lie", _layout),
    Stage("place", "every value's place in memory: views, joins, and copies where nothing else will do", _place),
    Stage("tune", "a template and its tactic for every region, by the clock or guessed", _tune),
    Stage("lower", "the machine code of all kernels; before that, on GPUs, runs of small ones as one launch", _lower),
    Stage("link", "places, steps, constants and code as one engine", _link),
)
NUMBER: Mapping[str, int] = {stage.name: number for number, stage in enumerate(STAGES)}
