"""Time and work of the steps of a script, over all their runs."""

from __future__ import annotations

from dataclasses import replace

from pelton.engine.plan import Step


class StepRuns:
    """Time and work of the runs of a step."""

    def __init__(self, step: Step):
        self.step, self.ns = step, 0
        self.done = {name: 0 for name in ("flops", "bytes") if name in step.info}

    def add(self, step: Step, ns: int) -> None:
        """Adds a run, at the sizes of `step`."""
        self.ns += ns
        self.done = {name: done + step.info.get(name, 0) for name, done in self.done.items()}

    def all(self) -> tuple[Step, int]:
        return replace(self.step, info={**self.step.info, **self.done}), self.ns
