"""A program on its way to an engine: the plain data that each stage of the compiler hands to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pelton.codegen.template import Target
from pelton.engine.model import EnginePlan
from pelton.ir.imported import Imported
from pelton.ir.graph import Graph
from pelton.options import Options
from pelton.passes.rewriting.report import Report
from pelton.plan.fuse import Fused
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import LayoutConstraints, Placed
from pelton.plan.region import Region
from pelton.tune.replay import Decisions
from pelton.tune.search import Choice, Timing

from .targets.backend import BackEnd


def filled_by(stage: str) -> Any:
    """A field that is None until this stage fills it."""
    return field(default=None, metadata={"stage": stage})


@dataclass(frozen=True)
class Lowered:
    """What the stage "lower" makes of tasks and choices.

    `placed`: the tasks as they run; on GPUs, several may have become one. `scheduled`: what runs each of them.
    `launches`: for people, what was decided about tasks that could be one launch. `code`: machine code of all kernels.
    """

    placed: Placed
    choices: Mapping[int, Choice]
    scheduled: Sequence[ScheduledTask]
    launches: Sequence[str]
    code: bytes


@dataclass(frozen=True)
class Compilation:
    """The state of a compilation; stages take one and return the next.

    Inputs:
        model: whatever importers read; None if the program is imported already
        back_end: times and compiles kernels; without it nothing is timed, and the last stage is "tune"
        observe: called with the name of each pass or stage that rewrites the program, and the program after it
        recorded: the decisions of an earlier build, to be taken again
    Results:
        done: the name of the last stage
        graph: the program after that stage; "decompose" is the last to change it
        report: what the passes of all stages did
        target: what code is generated for; filled by "precision" unless given
        templates: per region the template that decides the layouts of its operands
        layouts: for people, what other choices would have cost
        plain: the engine as plain data
    """

    options: Options
    model: Any = None
    back_end: BackEnd | None = None
    observe: Callable[[str, Graph], None] = lambda name, graph: None
    done: str = ""
    recorded: Decisions | None = None
    imported: Imported = filled_by("import")
    graph: Graph = filled_by("import")
    report: Report = field(default_factory=Report)
    target: Target = filled_by("precision")
    fused: Fused = filled_by("fuse")
    templates: Mapping[Region, LayoutConstraints] = filled_by("layout")
    layouts: Sequence[Mapping[str, Any]] = filled_by("layout")
    placed: Placed = filled_by("place")
    choices: Mapping[int, Choice] = filled_by("tune")
    lowered: Lowered = filled_by("lower")
    plain: EnginePlan = filled_by("link")

    @property
    def timing(self) -> Timing | None:
        """What times kernels; None if nothing is timed."""
        return self.back_end.timing if self.back_end is not None else None
