"""A program on its way to an engine, as plain data: what each stage of the compiler hands to the next."""

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
    """A field that a stage fills; None before."""
    return field(default=None, metadata={"stage": stage})


@dataclass(frozen=True)
class Lowered:
    """The tasks as they run, with their kernels and the machine code of these. `together`: what was decided about tasks
    that could be one launch."""

    placed: Placed
    choices: Mapping[int, Choice]
    scheduled: Sequence[ScheduledTask]
    together: Sequence[str]
    code: bytes


@dataclass(frozen=True)
class Compilation:
    """`model`: anything that importers read, None where the program is there already. `back`: what times and compiles
    kernels; without it nothing is timed, and the walk ends before the stage "lower". `see` gets every program by the
    name of the pass or stage that it comes from. `done`: the last stage. `before`: what an earlier build decided, which
    is decided again.

    `graph`: the program after the stages done; "decompose" is the last that changes it. `report`: what the passes of
    all stages did. `target`: what code is made for, filled by "precision" unless it was given. `templates`: the
    template of each region that decides where its operands lie; `layouts`: what others would have cost.
    """

    options: Options
    model: Any = None
    back: BackEnd | None = None
    see: Callable[[str, Graph], None] = lambda name, graph: None
    done: str = ""
    before: Decisions | None = None
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
    def clock(self) -> Timing | None:
        """What times kernels; None where nothing is timed."""
        return self.back.clock if self.back is not None else None
