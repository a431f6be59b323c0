"""The parts of an engine that all devices share: constants in memory, tables, resolved sizes and host steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from pelton.logs import Logger
from pelton.engine import plan as plain_engine
from pelton.engine import sizes
from pelton.engine.constants import DeferredConstants
from pelton.engine.plan import SIZES, Step, numpy_dtype, strings_in
from pelton.engine.shape_plan import ResolvedPlan, PlanTemplate
from pelton.system.memory import aligned, populate

from .host import HostStep

log = Logger("pelton.runtime")


class Plan:
    """The device-independent parts of an engine. Raises EngineError if a package for its host steps is missing.

    texts: buffers of this kind, by number. computed: the numbers of those computed for each set of sizes.
    template: all numbers of the plan, with gaps that sizes fill. host: the host steps for the optimum sizes.
    """

    _populated = False

    def __init__(self, plain: plain_engine.EnginePlan):
        self.plain = plain
        self._constants = None if isinstance(plain.constants, DeferredConstants) else aligned(plain.constants)
        self.template = PlanTemplate(plain)
        rows = self.template.rows
        self.texts = {i: strings_in(self.constants[o : o + n]) for i, (o, n) in rows.places("text").items()}
        self.computed = self.template.of_kind("strings", "sizes", "iota")
        optimum = sizes.optimum_sizes(plain)
        self.host = self.host_steps(sizes.at(plain, optimum), optimum) if rows.is_hosted else {}
        if self.host:
            log.warning(
                "engine %r runs %d of its %d steps in numpy, without a kernel: %s",
                self.label,
                len(self.host),
                len(plain.steps),
                ", ".join(plain.steps[i].name for i in self.host),
            )

    @property
    def label(self) -> str:
        """The engine's name in messages: the file that it was loaded from, else its own name."""
        return self.plain.label

    @property
    def constants(self) -> np.ndarray:
        """The bytes of all constants, u8[n], computed on first use."""
        return self.plain.constants.read() if self._constants is None else self._constants

    def populate(self) -> None:
        """Reads the constants into memory, once: runs of a context read all of them."""
        if not self._populated:
            self._populated = True
            populate(self.constants)

    def host_steps(self, plain: plain_engine.EnginePlan, values: Mapping[str, int]) -> dict[int, HostStep]:
        """Returns the host steps for these values of the symbols, for which the engine is `plain`."""
        return {i: HostStep(s, values) for i, s in enumerate(plain.steps) if s.host}

    def computed_buffers(self, resolved: ResolvedPlan) -> dict[int, np.ndarray]:
        """Returns buffer → contents for a set of sizes: i64 of "sizes", 0, 1, … of "iota", empty texts of "strings"."""
        contents: dict[int, np.ndarray] = {}
        for i in self.computed:
            b, size = self.plain.buffers[i], int(resolved.bytes[i])
            if b.kind == "strings":
                contents[i] = empty_strings(size)
            elif b.kind == "sizes":
                contents[i] = resolved.values[i]
            else:
                contents[i] = np.arange(size // SIZES[b.dtype]).astype(numpy_dtype(b.dtype))
        return contents

    def with_steps(self, steps: Sequence[Step]) -> Plan:
        """Returns the same with other kernels for its steps."""
        other = copy(self)
        other.plain = replace(self.plain, steps=tuple(steps))
        other.template = PlanTemplate(other.plain)
        return other


def empty_strings(size: int) -> np.ndarray:
    """Returns the initial contents of a buffer of strings of this many bytes."""
    return np.full(size // SIZES["string"], "", object)
