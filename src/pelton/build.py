"""The compiler's table of contents: import → passes → fuse → chains → ways → place → tune → lower → Engine."""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pelton.importers import onnx as importer
from pelton.importers import onnx_script
from pelton.importers.imported import Imported, OnData
from pelton.backends import cpu
from pelton.backends.cpu.machine import target as runs_on
from pelton import pictures
from pelton.check import check
from pelton.engine import engine as plain_engine
from pelton.errors import BuildError, Cancelled, EngineError, ModelError
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import STRING, DType
from pelton.kernels import library  # noqa: F401  (declares the templates)
from pelton.kernels.compile import Compiler, compiler_id
from pelton.kernels.template import Packed, Target
from pelton.options import Options, cache_directory
from pelton.passes import pipeline
from pelton.passes.decompose import decompose, expansion
from pelton.passes.keep import keep
from pelton.passes.unroll import unroll
from pelton.passes.widen import narrow, widen
from pelton.plan import demand, fuse, lower, place, region, ways
from pelton.plan.script import assemble
from pelton.runtime import Engine, ScriptEngine
from pelton.tune import cache, candidates, chains, layouts, search
from pelton.tune.size import Packing

log = logging.getLogger("pelton.build")

MOST_NODES = 128               # of a region
KEPT = {"fp16": "f16", "bf16": "bf16"}                            # precision → what values are kept in; f32 as it is


@dataclass(frozen=True)
class Built:
    """An engine with what it was made from: `chosen` has what runs each of the placed tasks, in their order."""

    engine: Engine
    imported: Imported
    placed: place.Placed
    chosen: Sequence[lower.Chosen]


def build(model: Any, shapes: Mapping[str, str | Sequence[int]] | None = None, *, options: Options | None = None, **given: Any) -> Engine:
    """An engine for this machine from a model.

    model: path, bytes or onnx ModelProto. shapes: input name → sizes, (1, 3, 224, 224) or "1x3x224x224". options: an Options, whose fields the other
    keywords override: values=None (inputs that become constants of the engine: {"axes": np.array([1])}), level=3, budget=None, threads=None,
    strict=False, timing_cache=None, cache_dir=None, target="cpu", precision="fp32", outputs=None, progress=None and more (see Options).
    Raises ModelError for what is wrong with the model, InputError for options that do not fit, BuildError for the rest.
    """
    options = (options or Options()).but(**given, **({} if shapes is None else {"shapes": shapes}))
    _progress(options)("import", 0, 1)
    try:
        imported = _read(model, options)
    except OnData as e:
        return scripted(model, options, e)
    return _decided(imported, options).engine


def built(model: Any, options: Options) -> Built:
    """As `build`, for those who want to know more of the engine than it knows itself; of models that are one straight line."""
    _progress(options)("import", 0, 1)
    try:
        return _decided(_read(model, options), options)
    except OnData as e:
        raise ModelError(f"{e}: it becomes a script over several engines, of which no step-by-step errors are known") from None


def _read(model: Any, options: Options) -> Imported:
    return importer.load(model, shapes=options.shapes, outputs=options.outputs, values=options.values, usual=options.usual)


def scripted(model: Any, options: Options, reason: OnData) -> Engine:
    """A script over engines, for a model that cannot be one engine, for that reason."""
    found = onnx_script.load(model, shapes=options.shapes, outputs=options.outputs, values=options.values, usual=options.usual)
    log.info("%s; it is built as a script over %d engines", reason, len(found.programs))
    engines: list[plain_engine.Engine | Undecided] = []
    for program in found.programs:
        try:
            engines.append(compiled(program, options).engine.plain)
        except Undecided as e:
            engines.append(e)
    return ScriptEngine(assemble(found, engines, options, runs_on(describe_target(options)[0].isa)))


def _decided(imported: Imported, options: Options) -> Built:
    """An engine of a program; BuildError where it would have to know a size that a run decides."""
    try:
        return compiled(imported, options)
    except Undecided as e:
        raise BuildError(f"{imported.graph.name}: {e}; give the sizes that this depends on as numbers with shapes=") from e


def compiled(imported: Imported, options: Options) -> Built:
    """An engine of a program."""
    progress = _progress(options)
    demand.check_tensors(imported.graph, options.memory)
    if options.image is not None:
        for v in imported.graph.inputs[:1]:
            pictures.parse(options.image).axis(v.type.shape)
    progress("optimize", 0, 1)
    graph, report = pipeline.run(imported.graph, options)
    planned = (_for_cpu if options.target == "cpu" else _for_gpu)(graph, options)
    target, placed, fused, choices = planned.target, planned.placed, planned.fused, planned.choices
    waves = lower.waves(placed)
    chosen = [lower.Chosen(t, choices[i].kernel if i in choices else None, waves[i], _info(t, choices.get(i))) for i, t in enumerate(placed.tasks)]
    host = [c.info["name"] for c in chosen if c.kernel is None]
    for name in host:
        log.warning("%s runs as a host step by its reference: no kernel takes it", name)
    checked: list[tuple[str, float]] = []
    meta = {"threads": target.threads, "level": options.level, "strict": options.strict, "precision": options.precision,
            "report": {"fired": report.fired(), "refused": report.refused()},
            "fusion_refusals": [f"{n.node}: {n.reason}" for n in fused.notes], "copies": placed.copies, "layouts": planned.decided,
            "chains": list(fused.chains), "host_steps": host, "weights": _weights([c.packing for c in choices.values()]),
            "model": {k: v for k, v in asdict(imported.info).items() if k != "path"},
            "forms": imported.forms, "checked": checked, "image": options.image, "labels": list(options.labels) if options.labels else None}
    plain = lower.lower(placed, chosen, planned.code, name=imported.graph.name, target=planned.runs_on, meta=meta,
                        output_names=[v.name for v in imported.graph.outputs])
    demand.check_engine(plain, options.memory)
    engine = Engine(plain)
    if options.check:
        checked += check(engine, placed, chosen)
    progress("done", 1, 1)
    return Built(engine, imported, placed, chosen)


@dataclass(frozen=True)
class Planned:
    """A program made ready for a target: where everything lies, what runs each task, and the code."""

    target: Target
    placed: place.Placed
    fused: fuse.Fused
    decided: list[dict[str, Any]]
    choices: Mapping[int, search.Choice]
    code: bytes
    runs_on: Mapping[str, Any]


def _for_cpu(graph: Graph, options: Options) -> Planned:
    target, machine = describe_target(options)
    progress, cache_dir = _progress(options), cache_directory(options)
    timing = cache.TimingCache(machine_key(machine, target, options), options.timing_cache or (cache_dir / "timing.json" if cache_dir else None))
    with Compiler(target.isa, cache_dir / "objects" if cache_dir else None, options.cc, jobs=cpu.default_threads()) as compiler:
        clock = search.Timing(target, compiler, timing, rounds=search.ROUNDS[options.level], budget=options.budget, l3=target.l3,
                              progress=progress) if options.level else None
        placed, fused, decided = plan(graph, options, target, clock)
        choices = search.select(placed, target, clock, strict=options.strict, most=search.MOST[options.level])
        progress("link", 0, 1)
        code = compiler.link(compiler.objects({c.kernel.symbol: c.kernel.source for c in choices.values()}))
    save_timing(timing, options)
    return Planned(target, placed, fused, decided, choices, code, runs_on(target.isa))


def _for_gpu(graph: Graph, options: Options) -> Planned:
    """Tactics are first guesses, by a model of the oldest of the architectures; nothing is timed."""
    from pelton.backends.cuda.bundle import pack  # only engines for GPUs need these
    from pelton.backends.cuda.machine import target as runs_on_gpu
    from pelton.kernels.triton import emit
    from pelton.kernels.triton.compile import Compiler as Cubins

    archs, progress, cache_dir = options.architectures or _architectures_here(), _progress(options), cache_directory(options)
    graph, target = for_gpu(graph, options, archs)
    placed, fused, decided = plan(graph, options, target)
    choices = search.select(placed, target, None, strict=options.strict, most=1)

    def begins(x: Value | Packed) -> bool:
        """Whether an operand begins where kernels expect it; buffers do."""
        at = 0 if isinstance(x, Packed) else placed.places[x].offset * x.type.dtype.size
        return at // emit.ALIGNED * emit.ALIGNED == at
    choices = {i: replace(c, kernel=emit.lying(c.kernel, [begins(x) for x in c.kernel.operands])) for i, c in choices.items()}
    sources = {c.kernel.symbol: c.kernel.source for c in choices.values()}
    made = Cubins(archs, cache_dir / "cubins" if cache_dir else None, cpu.default_threads()).cubins(
        sources, lambda done: progress("compile", done, len(sources) * len(archs)))
    return Planned(target, placed, fused, decided, choices, pack(m.cubin for m in made.values()), runs_on_gpu(archs))


def for_target(graph: Graph, options: Options) -> tuple[Graph, Target]:
    """What is planned for the target that the options name: the program in the form that it likes best, and what tactics are guessed for."""
    return (graph, describe_target(options)[0]) if options.target == "cpu" else for_gpu(graph, options, options.architectures or _architectures_here())


def for_gpu(graph: Graph, options: Options, archs: Sequence[int]) -> tuple[Graph, Target]:
    """The same for GPUs: the program in the element types that its precision asks for, recurrent layers step by step where that is faster."""
    from pelton.kernels.triton import library as gpu_library  # noqa: F401  (declares the templates, which only engines for GPUs need)
    from pelton.kernels.triton.recurrent import one_by_one

    return unroll(keep(graph, DType(KEPT[options.precision])) if options.precision in KEPT else graph, one_by_one), gpu_target(archs)


def gpu_target(archs: Sequence[int]) -> Target:
    """What tactics are guessed for. `threads` are multiprocessors, `lanes` the threads of a warp; the A100 and the H100 stand for their generations."""
    isa = ",".join(f"sm_{a}" for a in archs)
    if archs[0] >= 90:
        return Target(isa=isa, lanes=32, l1=228 << 10, l2=50 << 20, l3=50 << 20, threads=132)
    return Target(isa=isa, lanes=32, l1=164 << 10, l2=40 << 20, l3=40 << 20, threads=108)


def _architectures_here() -> tuple[int, ...]:
    """That of the GPU here; where none is, the generations that are common."""
    from pelton.backends.cuda.machine import describe  # only engines for GPUs need it

    try:
        return (int(describe()["isa"][3:]),)
    except EngineError as e:
        log.info("no GPU to build for here (%s): the engine is for sm_80 and sm_90", e)
        return 80, 90


def plan(graph: Graph, options: Options, target: Target, clock: search.Timing | None = None) -> tuple[place.Placed, fuse.Fused, list[dict[str, Any]]]:
    """A graph cut into regions that templates take; every value with its place; and where templates would have had it otherwise, what that would cost."""
    def claim(r: region.Region) -> str | None:
        if any(v.type.dtype is STRING for v in (*r.body.inputs, *r.body.constants, *r.body.outputs)):
            return "strings are Python objects, which host steps alone may touch"
        if len(r.body.nodes) > MOST_NODES:
            return "it is long enough: compilers take more than their share of time for longer kernels"
        return candidates.claim(r, options.strict, target.isa)

    graph = spelled(graph, claim)
    fused = chains.join(fuse.fuse(graph, claim), clock, target, options.strict, search.MOST[options.level])
    found = ways.explore(fused, lambda r: candidates.takers(r, options.strict, target.isa))
    cost, unit = layouts.costs(found.open(), clock, target, options.strict, search.MOST[options.level])
    chosen, decisions = found.cheapest(cost)
    decided = [{"region": d.region.title(), "layers": list(d.region.layers), "template": d.by, "more": dict(d.instead), "unit": unit} for d in decisions]
    return place.place(fused, chosen.__getitem__), fused, decided


def spelled(graph: Graph, claim: Callable[[region.Region], str | None]) -> Graph:
    """The program in words that templates take, as far as there are such; `claim` says of a region why none of them does."""
    def claimed(graph: Graph, node: Node) -> bool:
        return fuse.is_view(node) or claim(region.cut(graph, (node,), (node,))) is None

    def takes(graph: Graph, node: Node) -> bool:
        return claimed(graph, node) or not any(narrow(v.type.dtype) for v in (*node.inputs, *node.outputs)) and expansion(node) is not None
    graph = widen(graph, takes)                                   # first what kernels take as a whole, or all parts of it
    return widen(decompose(graph, claimed), claimed)


def describe_target(options: Options) -> tuple[Target, Mapping]:
    """What code is made for, from the machine at hand: (Target, description of the CPU)."""
    machine = cpu.describe()
    caches = machine["caches"]
    threads = options.threads or cpu.default_threads()
    sizes = {name: caches.get(key, usual) for name, key, usual in (("l1", "l1d", 32 << 10), ("l2", "l2", 512 << 10), ("l3", "l3", 32 << 20))}
    return Target(isa="x86_64_v3", lanes=8, threads=threads, **sizes), machine


def machine_key(machine: Mapping, target: Target, options: Options) -> str:
    """What times depend on besides the region: the CPU, the threads, the compiler and the templates."""
    return "|".join(map(str, (machine["vendor"], machine["family"], machine["cpu_model"], machine["stepping"], target.isa, target.l1, target.l2, target.l3,
                              target.threads, compiler_id(options.cc), search.template_hash())))


def save_timing(timing: cache.TimingCache, options: Options) -> None:
    """Keeps the times: where the user named a file a failure is an error, in the common cache only a warning."""
    try:
        timing.save()
    except BuildError as e:
        if options.timing_cache is not None:
            raise
        log.warning("%s", e)


def _progress(options: Options) -> Callable[[str, int, int], None]:
    def tell(stage: str, done: int, total: int) -> None:
        if options.progress is not None and options.progress(stage, done, total) is False:
            raise Cancelled(f"the build was cancelled while in stage {stage!r} ({done} of {total})")
    return tell


def _weights(packings: Sequence[Packing]) -> dict[str, float]:
    """What the weights that kernels read take in the model and packed, in bytes, and what time the larger ones save, in nanoseconds."""
    return {"own": sum(p.own for p in packings), "packed": sum(p.packed for p in packings), "saved_ns": sum(p.saved for p in packings)}


def _info(task: place.Task, choice: search.Choice | None) -> dict:
    if choice is None:
        return {"name": task.node.name or task.node.op.name, "op": task.node.op.name, "tactic": "host", "layers": [task.node.name]}
    r = task.region
    return {"name": "+".join(r.layers[:3]) + ("+…" if len(r.layers) > 3 else "") or r.title(), "op": r.title(), "tactic": choice.tactic.name,
            "layers": list(r.layers), "flops": r.flops(), "bytes": choice.kernel.traffic(r, task.layouts), "times_ns": dict(sorted(choice.times.items()))}
