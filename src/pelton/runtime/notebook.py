"""What notebooks show of an engine: a table of its ports, and one of the steps that take longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton import html
from pelton.engine.sizes import at, optimum_sizes
from pelton.engine.times import recorded_time, shares

if TYPE_CHECKING:
    from .engine import Engine

LONGEST = 10  # steps that are listed


def summary(engine: Engine) -> str:
    """HTML without scripts. Times are those that the engine records, at the sizes that it is tuned for."""
    ports = [("input", p.name, str(p)) for p in engine.inputs] + [("output", p.name, str(p)) for p in engine.outputs]
    plans = [at(part.plain, optimum_sizes(part.plain)) for part in engine.parts]
    steps = [step for plan in plans for step in plan.steps]
    times = [recorded_time(step) for step in steps]
    of = shares(times)
    rows = [
        (
            f"{i}",
            html.shortened(steps[i].name),
            str(steps[i].info.get("op", "")),
            "host" if steps[i].host else str(steps[i].info.get("tactic", "")).partition("@")[0],
            f"{100 * of[i]:.1f} %",
            times[i].source,
        )
        for i in sorted(range(len(steps)), key=lambda i: -of[i])[:LONGEST]
    ]
    first = "" if len(steps) <= LONGEST else f", the longest {LONGEST}"
    return html.table(("", "name", "type"), ports, f"engine {engine.name}") + html.table(
        ("step", "layers", "does", "tactic", "share", "of time that is"), rows, f"steps: {len(steps)}{first}"
    )
