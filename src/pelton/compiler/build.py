"""`pelton.build`: prepares a compilation, walks the stages and hands out the engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pelton.engine import model as plain_engine
from pelton.errors import BuildError, InputError, ModelError
from pelton.ir.imported import Imported, OnData
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph
from pelton.options import Options
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Placed
from pelton.runtime import Engine
from pelton.runtime.program import ScriptEngine
from pelton.tune import replay

from .accuracy import check_accuracy
from .assemble import assemble
from .compilation import Compilation
from .stages import start, read_script, run_stages
from .targets import back_end, check_requirements, describe_target, progress_reporter

log = logging.getLogger("pelton.build")


@dataclass(frozen=True)
class BuildResult:
    """An engine with what it was made from: `chosen` has what runs each of the placed tasks, in their order;
    `decisions` is None unless they are to be recorded."""

    engine: Engine
    imported: Imported
    placed: Placed
    scheduled: Sequence[ScheduledTask]
    decisions: replay.Decisions | None = None


def build(
    model: Any, shapes: Mapping[str, str | Sequence[int]] | None = None, *, options: Options | None = None, **given: Any
) -> Engine:
    """What `pelton.build` is where the compiler is installed."""
    options = (options or Options()).but(**given, **({} if shapes is None else {"shapes": shapes}))
    try:
        imported = _imported(model, options)
    except OnData as e:
        return build_script(model, options, e)
    return _decided(imported, options).engine


def build_detailed(model: Any, options: Options) -> BuildResult:
    """As `build`, for those who want to know more of the engine than it knows itself; of models that are one straight
    line."""
    try:
        imported = _imported(model, options)
    except OnData as e:
        raise ModelError(
            f"{e}: it becomes a script over several engines, of which no step-by-step errors are known"
        ) from None
    return _decided(imported, options)


def _imported(model: Any, options: Options) -> Imported:
    """The model as a program, once all is there that a build needs; OnData where it cannot be one."""
    check_requirements(options)
    progress_reporter(options)("import", 0, 1)
    return run_stages(Compilation(options, model), "import").imported


def build_script(model: Any, options: Options, reason: OnData) -> Engine:
    """A script over engines, for a model that cannot be one engine, for that reason."""
    found = read_script(model, options)
    log.info("%s; it is built as a script over %d engines", reason, len(found.programs))
    engines: list[plain_engine.EnginePlan | Undecided] = []
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


def _decided(imported: Imported, options: Options) -> BuildResult:
    """An engine of a program; BuildError where it would have to know a size that a run decides."""
    _check_labels(imported.graph, options)
    try:
        return build_program(imported, options)
    except Undecided as e:
        raise BuildError(explain_undecided(imported, e)) from e


def build_program(imported: Imported, options: Options) -> BuildResult:
    """An engine of a model that is one program; Undecided where it would have to know a size that a run decides."""
    (before,) = _before(options, 1)
    made = _by(before, imported, options)
    _record(options, [made.decisions])
    return made


def _before(options: Options, count: int) -> list[replay.Decisions | None]:
    """What was decided before for each of so many programs, where the options name a file of it."""
    if options.load_tactics is None:
        return [None] * count
    return replay.read(options.load_tactics, describe_target(options)[0].isa, count)


def _by(before: replay.Decisions | None, imported: Imported, options: Options) -> BuildResult:
    """An engine of a program, by what was decided before. BuildError where that was to have none."""
    made = compile_graph(imported, options, before)
    if before is None and options.load_tactics is not None:
        raise BuildError(
            f"{options.load_tactics} says that {imported.graph.name} became no engine, here it does; {replay.AGAIN}"
        )
    return made


def _record(options: Options, found: Sequence[replay.Decisions | None]) -> None:
    if options.save_tactics is not None:
        replay.write(options.save_tactics, describe_target(options)[0].isa, found)


def explain_undecided(imported: Imported, e: Undecided) -> str:
    """Why there is no engine of a program that would have to know a size."""
    return (
        f"{imported.info.called or imported.graph.name}: {e}; give the sizes that this depends on as numbers with"
        " shapes="
    )


def compile_graph(imported: Imported, options: Options, before: replay.Decisions | None = None) -> BuildResult:
    """An engine of a program, by what was decided before where that is given; Undecided where it would have to know a
    size that a run decides."""
    progress = progress_reporter(options)
    progress("optimize", 0, 1)
    c = run_stages(replace(start(imported, options), before=before), "optimize")
    with back_end(options, sum(a.nbytes for a in c.graph.constants.values())) as back:
        c = run_stages(replace(c, back=back, target=back.target), "lower")
    c = run_stages(c, "link")
    engine = Engine(c.plain)
    if options.check:
        c.plain.meta["checked"].extend(check_accuracy(engine, c.lowered.placed, c.lowered.scheduled))
    progress("done", 1, 1)
    decisions = replay.recorded(c.fused, c.placed, c.choices) if options.save_tactics is not None else None
    return BuildResult(engine, imported, c.lowered.placed, c.lowered.scheduled, decisions)


def _check_labels(graph: Graph, options: Options) -> None:
    """InputError unless there are as many labels as classes: the last axis of the first output, but for axes of one, as
    `pelton run --top` reads it."""
    if options.labels is None or not graph.outputs:
        return
    found = graph.outputs[0]
    shape = list(found.type.shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    if shape and isinstance(shape[-1], int) and shape[-1] != len(options.labels):
        raise InputError(
            f"labels name {len(options.labels)} classes, output {found.name!r} {found.type} has {shape[-1]} along its"
            " last axis; give one name for each class, in their order"
        )
