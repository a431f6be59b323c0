"""Builds engines whose regions run by reference instead of kernels, for the device `backends/reference`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from pelton.engine.plan import EnginePlan
from pelton.plan.lower import ScheduledTask, lower
from pelton.plan.placed import Placed


def by_reference(plain: EnginePlan, placed: Placed, chosen: Sequence[ScheduledTask]) -> EnginePlan:
    """Returns the engine of these tasks, in the same layouts, with every body as a host step and no kernels."""
    steps = [replace(c, kernel=None, alternatives=()) for c in chosen]
    target = {"os": sys.platform, "arch": "reference", "isa": "", "features": []}
    return lower(
        placed,
        steps,
        b"",
        name=plain.name,
        target=target,
        meta=plain.meta,
        output_names=[p.name for p in plain.outputs],
        file=plain.file,
    )
