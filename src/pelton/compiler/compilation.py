"""The state of a compilation: plain data that each stage of the compiler passes to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pelton.codegen.template import Target
from pelton.engine.plan import EnginePlan
from pelton.ir.imported import Imported
from pelton.ir.graph import Graph
from pelton.options import Options
from pelton.passes.rewriting.report import Report
from pelton.plan.fuse import Fused
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import LayoutConstraints, Placed
from pelton.plan.region import Region
from pelton.tuning.replay import Decisions
from pelton.tuning.search import Choice, Timing

from .targets.interface import BackEnd


def filled_by(stage: str) -> Any:
    """Declares a field that is None until this stage fills it."""
    return field(default=None, metadata={"stage": stage})


@dataclass(frozen=True)
class Lowered:
    """Result of the stage "lower".

    `placed`: the tasks as they run; on GPUs, several may be merged. `scheduled`: the kernel or host step of each task.
    `launches`: readable decisions about merged launches. `code`: machine code of all kernels.
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
        model: any input of an importer; None if the program is already imported
        back_end: times and compiles kernels; without it nothing is timed, and the last stage is "tune"
        observe: called with the name of each pass or stage that rewrites the program, and the program after it
        recorded: decisions of an earlier build to repeat
    Results:
        done: the name of the last stage
        graph: the program after that stage; "decompose" is the last to change it
        report: results of the passes of all stages
        target: the target of code generation; filled by "precision" unless set
        templates: per region the template that decides the layouts of its operands
        layouts: readable costs of the rejected layouts
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
        """The timer of kernels; None if nothing is timed."""
        return self.back_end.timing if self.back_end is not None else None
