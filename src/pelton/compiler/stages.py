"""The compiler's table of contents: the stages from a model to an engine, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from pelton.logs import Logger
from pelton import importers, preprocessing
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.template import Target
from pelton.errors import InputError
from pelton.ir.dims import is_known
from pelton.ir.imported import Imported, OnData
from pelton.ir.graph import Graph, Node
from pelton.ir.types import STRING
from pelton.options import Options
from pelton.partition import partition
from pelton.passes import pipeline, precision
from pelton.passes.decompose import Takes, expansion
from pelton.passes.precision.widen import is_narrow
from pelton.plan import fuse, layout_search, lower, memory_limits, place, region
from pelton.tuning import candidates, chains, layout_costs, replay, search

from . import about, decisions, half_weights, targets
from .compilation import Compilation, Lowered
from .capacity import with_capacity
from .in_place import with_shared_memory
from .index_ranges import index_ranges
from .plugin_kernels import declare_kernels

log = Logger("pelton.build")

MAX_DECIDING = 64  # elements of an input whose value a build may fix
MAX_REGION_NODES = 128  # compilers take disproportionately long for longer kernels

Rejection = Callable[[region.Region], str | None]  # the reason why no template takes a region; None if one does


@dataclass(frozen=True)
class Stage:
    """One step of a compilation. `what`: a description for users; `rewrites`: True if it changes the program."""

    name: str
    what: str
    run: Callable[[Compilation], Compilation]
    rewrites: bool = False


def start(imported: Imported, options: Options, target: Target | None = None, done: str = "import") -> Compilation:
    """Starts a compilation after the stage `done`. target: of code generation, by default from the options."""
    c = Compilation(options, imported=imported, graph=imported.graph, done=done)
    return c if target is None else replace(c, target=target)


def run_stages(c: Compilation, to: str) -> Compilation:
    """Runs the stages after `c.done`, up to and including `to`.

    Raises KeyError for an unknown stage, ModelError and InputError for models that cannot be read (OnData for those
    that may become a script), BuildError for those that cannot be built, Undecided if an unknown size is needed.
    """
    first = NUMBER[c.done] + 1 if c.done else 0
    for stage in STAGES[first : NUMBER[to] + 1]:
        before, c = c, replace(stage.run(c), done=stage.name)
        decisions.tell(stage.name, before, c)
        if stage.rewrites:
            c.observe(stage.name, c.graph)
    return c


def read_script(model: Any, options: Options, reason: OnData) -> partition.UnbuiltScript:
    """Reads a model as a script over several programs, instead of the stage "import" that raised the reason."""
    if options.detections not in (None, False):
        raise InputError(
            f"{reason}: it is a script over several engines, whose outputs are not known to be boxes with scores; leave"
            " out detections="
        )
    if options.cache_capacity is not None:
        raise InputError(f"{reason}: it is a script over several engines; leave out cache_capacity=")
    if options.kv_cache is not None:
        raise InputError(
            f"{reason}: it is a script over several engines, whose caches have the types of the model; leave out"
            " kv_cache="
        )
    scripted = partition.partition_model(importers.unread(_source(model, options), **_import_options(options)))
    _check_pictures({v.name: v.type.shape for v in scripted.inputs}, options)
    advice = _advise(scripted, reason) if options.optimum is None else ()
    return replace(scripted, info=replace(scripted.info, warnings=(*scripted.info.warnings, *advice)))


def _advise(scripted: partition.UnbuiltScript, reason: OnData) -> tuple[str, ...]:
    """Advises how to get one engine from a model that became a script because small inputs decide its steps."""
    sizes = {v.name: v.type.size for v in scripted.inputs}
    small = {name for name, size in sizes.items() if is_known(size) and size <= MAX_DECIDING}
    if not reason.values or not small.issuperset(reason.values):
        return ()
    entries = ", ".join(f"{name!r}: ..." for name in reason.values)
    dynamic = "" if all(map(is_known, sizes.values())) else " and numbers for all unspecified sizes with shapes="
    return (
        f"the value of {' and '.join(reason.values)} determines the program: with values={{{entries}}}{dynamic}, one"
        f" engine may replace the script, and be faster ({scripted.info.label or scripted.name})",
    )


def _source(model: Any, options: Options) -> Any:
    """Returns a model with its weights file, if the options name one."""
    return model if options.weights is None else importers.ModelFiles(model, options.weights)


def _import_options(options: Options) -> dict[str, Any]:
    names = ("shapes", "outputs", "values", "optimum", "accept_conversion")
    return {name: getattr(options, name) for name in names}


def _import(c: Compilation) -> Compilation:
    if c.options.profiles:
        raise InputError("profiles= is for pelton.build; here, set the sizes of one of them with shapes=")
    imported = importers.load(_source(c.model, c.options), **_import_options(c.options))
    if c.options.detections not in (None, False):
        imported = importers.select_detections(imported, c.options.detections)
    if c.options.cache_capacity is not None:
        imported = with_capacity(imported, c.options.cache_capacity)
    if c.options.kv_cache is not None:
        imported = importers.store_caches(imported, c.options.kv_cache)
    _check_pictures({v.name: v.type.shape for v in imported.graph.inputs}, c.options)
    return replace(c, imported=imported, graph=imported.graph)


def _check_pictures(inputs: Mapping[str, Sequence[Any]], options: Options) -> None:
    """Raises InputError if pictures fit none of the inputs, by name with their shapes, or several."""
    if options.image is not None:
        preprocessing.parse(options.image).fitting(inputs)


def _optimize(c: Compilation) -> Compilation:
    """Runs the rewrite rules; BuildError for a tensor that cannot fit in memory."""
    if c.options.precision in ("int8", "best"):
        raise InputError(
            f"precision {c.options.precision!r} needs a complete build, which compiles the program several times:"
            " build an engine, and `pelton inspect` shows each layer"
        )
    memory_limits.check_tensors(c.graph, c.options.memory)
    c = _run_precision_passes(c, precision.FIRST, lambda graph, node: False)  # these do not ask for kernels
    graph, report = pipeline.run(c.graph, c.options.strict, c.observe)
    return replace(c, graph=graph, report=c.report.then(report))


def _precision(c: Compilation) -> Compilation:
    declare_kernels()
    c = replace(c, target=c.target or targets.describe_target(c.options)[0])
    takes_node = _node_predicate(c)

    def takes(graph: Graph, node: Node) -> bool:
        """True if kernels take the whole node, or its expansion, provided that no operand is narrow."""
        if takes_node(graph, node):
            return True
        narrow_operands = any(is_narrow(v.type.dtype) for v in (*node.inputs, *node.outputs))
        return not narrow_operands and expansion(node) is not None

    return _run_precision_passes(c, precision.PASSES, takes)


def _run_precision_passes(c: Compilation, passes: Sequence[pipeline.Pass[Takes]], takes: Takes) -> Compilation:
    """Runs the passes that the target names."""
    names = targets.target_kind(c.options).precision(c.options)
    graph, report = pipeline.apply([p for p in passes if p[0] in names], c.graph, takes, c.observe)
    return replace(c, graph=graph, report=c.report.then(report))


def _decompose(c: Compilation) -> Compilation:
    graph, report = pipeline.apply(pipeline.DECOMPOSE, c.graph, _node_predicate(c), c.observe)
    return replace(c, graph=graph, report=c.report.then(report))


def _fuse(c: Compilation) -> Compilation:
    fused = fuse.fuse(c.graph, _region_rejection(c))
    if c.recorded is not None:
        return replace(c, fused=c.recorded.restore_chains(fused, c.target, c.options.strict))
    max_tactics = search.MAX_TACTICS[c.options.level]
    return replace(c, fused=chains.join(fused, c.timing, c.target, c.options.strict, max_tactics))


def _layout(c: Compilation) -> Compilation:
    strict, max_tactics = c.options.strict, search.MAX_TACTICS[c.options.level]
    templates_of: replay.TemplatesOf = partial(candidates.accepting_templates, strict=strict, isa=c.target.isa)
    if c.recorded is not None:
        templates_of = c.recorded.restore_templates(c.fused, templates_of)
    explored = layout_search.explore(c.fused, templates_of, _preferred_layout(c))
    cost, unit = layout_costs.costs(explored.undecided_tasks(), c.timing, c.target, strict, max_tactics)
    templates, decisions = explored.cheapest(cost)
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
    return replace(c, placed=place.place(c.fused, c.templates.__getitem__, _preferred_layout(c)))


def _tune(c: Compilation) -> Compilation:
    alternatives = c.back_end.alternatives if c.back_end is not None else 0
    select = partial(search.select, c.placed, c.target, strict=c.options.strict, alternatives=alternatives)
    if c.recorded is not None:
        every_tactic = max(search.MAX_TACTICS.values())
        return replace(c, choices=select(None, max_tactics=every_tactic, among=c.recorded.among))
    among = half_weights.override(c.placed, c.options)
    return replace(c, choices=select(c.timing, max_tactics=search.MAX_TACTICS[c.options.level], among=among))


def _lower(c: Compilation) -> Compilation:
    assert c.back_end is not None, "kernels cannot be compiled without a back end"
    placed, choices, launches = c.back_end.merge_launches(c.placed, c.choices)
    choices, code = c.back_end.generate_code(placed, choices)
    waves = lower.waves(placed)
    scheduled = [
        about.schedule(task, choices.get(i), waves[i], c.target, placed) for i, task in enumerate(placed.tasks)
    ]
    scheduled = c.back_end.schedule(scheduled)
    return replace(c, lowered=Lowered(placed, choices, scheduled, launches, code))


def _link(c: Compilation) -> Compilation:
    """Links the engine; BuildError if it needs more memory than available."""
    assert c.back_end is not None
    graph, info = c.imported.graph, c.imported.info
    plain = lower.lower(
        c.lowered.placed,
        c.lowered.scheduled,
        c.lowered.code,
        name=graph.name,
        target=c.back_end.runs_on,
        meta=about.meta(c),
        output_names=[v.name for v in graph.outputs],
        file=info.label,
    )
    indices = index_ranges(graph)
    plain = replace(plain, inputs=tuple(replace(p, indices=indices.get(p.name)) for p in plain.inputs))
    plain = with_shared_memory(plain)
    memory_limits.check_engine(plain, c.options.memory)
    return replace(c, plain=c.back_end.check_kernels(plain, c.lowered.placed, c.lowered.choices))


def _region_rejection(c: Compilation) -> Rejection:
    def rejection(r: region.Region) -> str | None:
        if any(v.type.dtype is STRING for v in (*r.body.inputs, *r.body.constants, *r.body.outputs)):
            return "strings are Python objects, for host steps only"
        if len(r.body.nodes) > MAX_REGION_NODES:
            return f"a region may have at most {MAX_REGION_NODES} nodes"
        return candidates.rejection(r, c.options.strict, c.target.isa)

    return rejection


def _node_predicate(c: Compilation) -> Takes:
    """Returns a predicate: True for views, and for nodes that a template takes directly."""
    rejection = _region_rejection(c)
    return lambda graph, node: fuse.is_view(node) or rejection(region.cut(graph, (node,), (node,))) is None


def _preferred_layout(c: Compilation) -> place.PreferredLayout:
    """Returns the templates' preferred layouts, computed once per value."""
    return cache(partial(candidates.preferred_layout, c.fused.graph, c.target, c.options.strict))


STAGES = (
    Stage(
        "import", "reads the model's file as a program; unspecified sizes stay dynamic where they can", _import, True
    ),
    Stage(
        "optimize",
        "applies rewrite rules and folds; first, quantized products use integers; the rest, and on CPUs halves, f32",
        _optimize,
        True,
    ),
    Stage(
        "precision",
        "chooses element types and how products round; on GPUs, recurrent layers are decomposed here",
        _precision,
        True,
    ),
    Stage(
        "decompose",
        "expands ops without a kernel into simpler ones; parts in narrow floats may become f32",
        _decompose,
        True,
    ),
    Stage(
        "fuse", "cuts the program into regions, one per kernel; chains of them become one where that is faster", _fuse
    ),
    Stage("layout", "chooses the template of each region that decides the layouts of its operands", _layout),
    Stage("place", "places every value in memory: as views, in concatenations, or by copies", _place),
    Stage("tune", "chooses a template and its tactic for every region, by timing or by a cost model", _tune),
    Stage(
        "lower",
        "generates the machine code of all kernels; on GPUs, runs of small ones become one launch first",
        _lower,
    ),
    Stage("link", "assembles placements, steps, constants and code as one engine", _link),
)
NUMBER: Mapping[str, int] = {stage.name: number for number, stage in enumerate(STAGES)}
