"""Compiles an imported program: runs the stages after the import and opens the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pelton.logs import Logger
from pelton.ir.imported import Imported
from pelton.options import Options
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Placed
from pelton.runtime import Engine
from pelton.tuning import replay

from .accuracy import check_accuracy
from .stages import run_stages, start
from .targets import back_end, progress_reporter


log = Logger("pelton.build")


@dataclass(frozen=True)
class BuildResult:
    """An engine with the program and tasks of its build.

    `scheduled`: the kernel or host step of each task of `placed`, in order. `decisions`: for `save_tactics`, or None.
    """

    engine: Engine
    imported: Imported
    placed: Placed
    scheduled: Sequence[ScheduledTask]
    decisions: replay.Decisions | None = None


def compile_graph(
    imported: Imported, options: Options, recorded: replay.Decisions | None = None, done: str = "import"
) -> BuildResult:
    """Runs all stages after `done`, "import" or "optimize", with the recorded decisions if there are any.

    Undecided if the program depends on a size known only at run time.
    """
    progress = progress_reporter(options)
    progress("optimize", 0, 1)
    c = run_stages(replace(start(imported, options, done=done), recorded=recorded), "optimize")
    weights = sum(a.nbytes for a in c.graph.constants.values())
    with back_end(options, weights) as compiler:
        c = run_stages(replace(c, back_end=compiler, target=compiler.target), "lower")
    for step in c.lowered.scheduled:
        if step.kernel is None:
            why = f"; {step.info['reason']}" if "reason" in step.info else ""
            log.warning("%s runs in numpy: no kernel supports it%s", step.info["name"], why)
    c = run_stages(c, "link")
    engine = Engine(c.plain)
    if options.check:
        c.plain.meta["checked"].extend(check_accuracy(engine, c.lowered.placed, c.lowered.scheduled))
    progress("done", 1, 1)
    decisions = replay.record(c.fused, c.placed, c.choices) if options.save_tactics or options.refittable else None
    return BuildResult(engine, imported, c.lowered.placed, c.lowered.scheduled, decisions)
