"""The work of a model's steps, from its fused, untimed plan: nothing is compiled, timed or run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pelton.codegen.template import Tactic, templates
from pelton.compiler import about
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages, start
from pelton.errors import InputError
from pelton.importers.onnx import READING
from pelton.importers.registry import format_of
from pelton.ir.dims import Dim
from pelton.ir.graph import Graph, symbols
from pelton.ir.imported import Imported, OnData
from pelton.options import Options
from pelton.plan import brief, lower
from pelton.plan.placed import Task
from pelton.plan.region import Region
from pelton.tuning.candidates import template_rejection
from pelton.tuning.packed_weights import packed_bytes
from pelton.tuning.search import Choice

BYTES_OF = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}  # of an element, by precision
# Templates of products in FP32 → those that run them in INT8. Winograd's tiles are not used for integers by default.
IN_INT8 = {
    **dict.fromkeys(("conv", "conv_planar", "winograd"), "conv_int8"),
    **{"depthwise": "depthwise_int8", "gemm": "gemm_int8", "few": "gemm_int8", "matmul": "matmul_int8"},
}

FASTER = "winograd"  # the template of an algorithm with fewer products


@dataclass(frozen=True)
class StepWork:
    """The work of one step of a plan.

    template: name of the kernel template, "host" for a step in Python. operations: by the algorithm that would run.
    weights, activations: bytes that it must read and write. launches: number of times that all threads start together
    (a kernel of several phases has several), 0 for a brief step, which one thread runs. precision: of its products, a
    key of the catalog's peaks. product: True for a convolution or matrix product with constant weights, which INT8 can
    replace; then `direct` are its operations by the direct algorithm, and `own` the bytes of the model's weights.
    rival: template of an algorithm with fewer products that tuning may take instead, "" without one.
    """

    name: str
    template: str
    precision: str
    operations: float
    weights: float
    activations: float
    launches: int = 1
    layers: tuple[str, ...] = ()
    product: bool = False
    direct: float = 0.0
    own: float = 0.0
    rival: str = ""

    @property
    def bytes(self) -> float:
        """Weights and activations."""
        return self.weights + self.activations


@dataclass(frozen=True)
class ModelWork:
    """The work of one run of a model: its steps, and the bytes of its weights, of its arena and ports, and of the
    caches that it keeps between runs. assumptions: sentences on what is not known from the plan."""

    name: str
    batch: int
    precision: str
    steps: tuple[StepWork, ...]
    weights: int
    arena: int
    kept: int
    assumptions: tuple[str, ...] = ()

    @property
    def operations(self) -> float:
        """Of all steps."""
        return sum(s.operations for s in self.steps)

    @property
    def memory(self) -> int:
        """Bytes that a run needs: weights, arena, inputs, outputs and caches."""
        return self.weights + self.arena + self.kept


@dataclass(frozen=True)
class ImportedBatch:
    """A model whose sizes are known. fixed: its own batch, which the plan has; figures for `batch` are scaled.
    assumptions: sentences on sizes that the user left open."""

    imported: Imported
    batch: int
    fixed: int
    assumptions: tuple[str, ...] = ()


def import_batches(model: Any, batches: Iterable[int] | None = None, **overrides: Any) -> list[ImportedBatch]:
    """Imports a model for each batch; other dynamic dimensions get their optimum. overrides: of `pelton.Options`.

    The batch is every dynamic dimension that is the first axis of an input. None: the one that the model has, or 1.
    Raises InputError for models that one engine cannot run, and the errors of an import.
    """
    options = Options(**overrides, optimum={})  # warnings on open sizes become assumptions
    model = parsed(model)
    try:
        first = run_stages(Compilation(options, model), "import").imported
    except OnData as e:
        raise InputError(f"{e}: the data decide the steps of this model, whose work is unknown before a run") from e
    varied, free = symbols(first.graph), batch_symbols(first.graph)
    if not varied:
        own = fixed_batch(first.graph)
        return [ImportedBatch(first, batch, own) for batch in batches or [own]]
    imports = []
    open_sizes = [s for s in varied if s.name not in free]
    texts = tuple(f"{s.name}, an open size, is taken as {s.optimum}; set it with --shapes" for s in open_sizes)
    for batch in batches or [1]:
        sizes = {s.name: batch if s.name in free else s.optimum for s in varied}
        shapes = {**(overrides.get("shapes") or {}), **{name: str(size) for name, size in sizes.items()}}
        sized = run_stages(Compilation(options.but(shapes=shapes), model), "import").imported
        imports.append(ImportedBatch(sized, batch, batch if free else fixed_batch(sized.graph), texts))
    return imports


def parsed(model: Any) -> Any:
    """Returns an ONNX file parsed once for all batches; other models as they are."""
    if not isinstance(model, (str, os.PathLike)) or format_of(model).name != "ONNX":
        return model
    with READING:
        from pelton.importers.onnx.file import read
    return read(model)


def input_bytes(size: ImportedBatch) -> float:
    """Returns the bytes of a batch's inputs, without the caches that a model keeps between runs."""
    states = set(size.imported.info.states or ())
    own = sum(float(v.type.bytes) for v in size.imported.graph.inputs if v.name not in states)
    return own * size.batch / size.fixed


def plan_work(size: ImportedBatch, precision: str = "fp32", target: str = "cpu") -> ModelWork:
    """Returns the work of a model, as planned for a target of `pelton.Options`. precision: fp32, fp16 or int8; on GPUs,
    steps between products in INT8 are FP16."""
    options = Options(target=target, level=0)
    halves = precision == "fp16" or (precision == "int8" and target != "cpu")
    c = run_stages(start(size.imported, options.but(precision="fp16") if halves else options), "tune")
    work = of_compilation(c, size.fixed, precision)
    work = scaled(replace(work, assumptions=(*size.assumptions, *work.assumptions)), size.batch)
    return in_int8(work) if precision == "int8" else work


def batch_symbols(graph: Graph) -> set[str]:
    """Returns the names of dynamic dimensions that are the first axis of an input."""
    names = {s.name for s in symbols(graph)}
    return {str(v.type.shape[0]) for v in graph.inputs if v.type.shape and isinstance(v.type.shape[0], Dim)} & names


def fixed_batch(graph: Graph) -> int:
    """Returns the first size of the first input with axes, 1 without any."""
    return next((int(v.type.shape[0]) for v in graph.inputs if v.type.shape), 1) or 1


def scaled(work: ModelWork, batch: int) -> ModelWork:
    """Returns the work for another batch than the model's fixed one; weights stay."""
    if batch == work.batch:
        return work
    factor = batch / work.batch
    steps = tuple(
        replace(s, operations=s.operations * factor, activations=s.activations * factor, direct=s.direct * factor)
        for s in work.steps
    )
    text = f"the model's batch is fixed at {work.batch}: figures for {batch} are scaled from it"
    kept, arena = int(work.kept * factor), int(work.arena * factor)
    return replace(work, batch=batch, steps=steps, arena=arena, kept=kept, assumptions=(*work.assumptions, text))


def in_int8(work: ModelWork) -> ModelWork:
    """Returns the work with all products in INT8: a byte for each number, and the direct algorithm."""
    steps, saved = [], 0.0
    for s in work.steps:
        if s.product and s.precision != "int8":
            size = BYTES_OF[s.precision]
            saved += s.weights - s.own / size
            s = replace(
                s,
                template=IN_INT8.get(s.template, s.template),
                precision="int8",
                operations=s.direct,
                weights=s.own / size,
                activations=s.activations / size,
                rival="",
            )
        steps.append(s)
    text = "INT8 in all convolutions and matrix products with constant weights; calibration may leave some in FP32"
    return replace(
        work,
        precision="int8",
        steps=tuple(steps),
        weights=max(int(work.weights - saved), 0),  # steps may share weights
        assumptions=(*work.assumptions, text),
    )


def of_compilation(c: Compilation, batch: int, precision: str) -> ModelWork:
    """Returns the work of a compilation whose tactics are chosen."""
    placed, waves = c.placed, lower.waves(c.placed)
    scheduled = [
        about.schedule(task, c.choices.get(i), waves[i], c.target, placed) for i, task in enumerate(placed.tasks)
    ]
    on_cpu = not c.target.isa.startswith("sm_")
    if on_cpu:
        scheduled = brief.serialized(scheduled)
    plain = lower.lower(
        placed,
        scheduled,
        b"",
        name=c.imported.graph.name,
        target={},
        meta={},
        output_names=[v.name for v in c.imported.graph.outputs],
    )
    states = set(c.imported.info.states or ())
    kept = sum(p.nbytes for p in plain.inputs if p.name in states)
    ports = sum(p.nbytes for p in (*plain.inputs, *plain.outputs)) - kept
    steps = tuple(step_work(s, c.choices.get(i), c.target.isa) for i, s in enumerate(scheduled))
    return ModelWork(
        plain.name, batch, precision, steps, len(plain.constants), plain.arena + ports, kept, _caveats(steps)
    )


def _caveats(steps: Sequence[StepWork]) -> tuple[str, ...]:
    host = sum(s.template == "host" for s in steps)
    return (f"{host} steps run in Python; their time is the least certain",) if host else ()


def step_work(scheduled: lower.ScheduledTask, choice: Choice | None, isa: str) -> StepWork:
    """Returns the work of a scheduled task with its choice, None for a host step."""
    task, kernel = scheduled.task, scheduled.kernel
    if choice is None or kernel is None:
        moved = sum(v.type.bytes for v in (*task.reads, *task.writes))
        node = task.node
        return StepWork(node.name or str(node.op), "host", "fp32", 0.0, 0.0, float(moved), layers=(node.name,))
    region = task.region
    constants = {v: a.nbytes for v, a in region.body.constants.items()}
    traffic = float(choice.kernel.traffic(region, task.layouts))
    weights = min(float(packed_bytes(choice.kernel, constants)), traffic)
    anchor = region.anchor
    product = anchor is not None and anchor.op.product and any(v in constants for v in anchor.inputs[1:2])
    direct = float(region.flops())
    return StepWork(
        "+".join(region.layers[:3]) or region.title(),
        choice.template.name,
        precision_of(task),
        direct * fewer(choice.tactic),
        weights,
        traffic - weights,
        0 if kernel.grain >= int(kernel.tiles) else int(kernel.phases),
        tuple(region.layers),
        product,
        direct,
        float(sum(constants.values())),
        rival(region, choice, isa),
    )


def rival(region: Region, choice: Choice, isa: str) -> str:
    """Returns the template of a faster algorithm that takes the region as well, "" without one."""
    other = templates(isa).get(FASTER)
    takes = other is not None and choice.template.name != FASTER and template_rejection(other, region) is None
    return FASTER if takes else ""


def precision_of(task: Task) -> str:
    """Returns the precision of a region's products, or of its first input: a key of the catalog's peaks."""
    region = task.region
    values = region.anchor.inputs if region.anchor is not None else (*region.body.inputs, *region.body.constants)
    kinds = [v.type.dtype.value for v in values[:1]]
    names: Mapping[str, str] = {"f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8", "f64": "fp64"}
    return names.get(kinds[0], "fp32") if kinds else "fp32"


def fewer(tactic: Tactic) -> float:
    """Returns the products of the tactic's algorithm relative to the direct one: (F+2)² for 9·F² in Winograd's F(F×F)
    of 3×3 filters (Lavin and Gray 2016), 1 for others. The transforms' additions do not count."""
    f = dict(tactic.params).get("F", 0)
    return (f + 2) ** 2 / (9 * f * f) if tactic.template.startswith("winograd") and f else 1.0
