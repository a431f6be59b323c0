"""Plans as stored in files: tables are decoded on demand."""

from __future__ import annotations

from typing import Any

from pelton.errors import EngineError
from pelton.targets import is_gpu

from .constants import length
from .container import as_text
from .plan import EnginePlan
from .plan_rows import PlanRows
from .plan_tables import Tables
from .validate import validate, validate_front

ROWS, INFOS = "_rows", "_infos"  # attributes of a plan besides its fields


def check(engine: EnginePlan) -> None:
    """Raises EngineError as `validate` does, for plans not validated before."""
    if ROWS not in vars(engine):
        validate(engine)


def plan_rows(engine: EnginePlan) -> PlanRows:
    """Returns the tables of an engine: those of its file, else encoded from it. Raises EngineError if they are
    inconsistent."""
    state = vars(engine)
    if ROWS not in state:
        try:
            state[ROWS] = PlanRows(Tables(engine).encode(), length(engine.constants))
        except ValueError as e:
            validate(engine)  # raises a more detailed error
            raise EngineError(f"engine {engine.label!r} is damaged: {e}; build it again") from None
    return state[ROWS]


def stored_plan(rows: PlanRows, dims: Any, infos: Any, target: dict[str, Any], **fields: Any) -> EnginePlan:
    """Builds a plan from these tables. dims: the names of dimensions, for each input and output; infos: `Step.info` of
    each step and alternative; target: its fields that are not in the tables; fields: the others of `EnginePlan`. Raises
    ValueError, TypeError or KeyError if they do not match."""
    if not isinstance(infos, list) or len(infos) != len(rows.rows["steps"]):
        raise ValueError(f"it describes {len(infos)} of {len(rows.rows['steps'])} steps")
    if not all(isinstance(info, dict) for info in infos):
        raise TypeError("a step is not described by an object")
    names = [tuple(None if d is None else as_text(d) for d in of) for of in dims]
    ports = rows.ports(names)
    plan = EnginePlan.__new__(EnginePlan)
    vars(plan).update(
        fields,
        name=rows.name,
        inputs=ports[: rows.head["inputs"]],
        outputs=ports[rows.head["inputs"] :],
        symbols=rows.symbols(),
        arena=rows.head["arena"],
        target={**target, **rows.target},
    )
    vars(plan).update({ROWS: rows, INFOS: infos})
    validate_front(plan)
    if not plan.code and rows.has_kernels:
        raise ValueError("it has kernels but no machine code")
    if rows.is_hosted or is_gpu(plan.target):
        validate(plan)
    return plan
