"""The notebook view of an engine: a table of its ports, and one of its slowest steps."""

from __future__ import annotations

from collections.abc import Sequence

from pelton import html
from pelton.engine.plan import EnginePlan, Port
from pelton.engine.sizes import at, optimum_sizes
from pelton.engine.times import recorded_time, shares

LONGEST = 10  # number of listed steps


def summary(name: str, inputs: Sequence[Port], outputs: Sequence[Port], plans: Sequence[EnginePlan]) -> str:
    """Returns HTML without scripts. plans: of the engine, or of those that a script runs. Times are those recorded in
    the plans, at the sizes that they are tuned for."""
    ports = [("input", p.name, str(p)) for p in inputs] + [("output", p.name, str(p)) for p in outputs]
    steps = [step for plan in plans for step in at(plan, optimum_sizes(plan)).steps]
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
    return html.table(("", "name", "type"), ports, f"engine {name}") + html.table(
        ("step", "layers", "does", "tactic", "share", "of time that is"), rows, f"steps: {len(steps)}{first}"
    )
