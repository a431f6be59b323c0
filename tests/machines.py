"""Other CPUs than the one here: what Pelton takes this one for, and code of levels above its own.

With PELTON_TEST_CPU=x86_64_v3, or another level that builds choose, in the environment the whole suite takes this CPU
for one of that level. Processes that tests start do not: three tests of commands, in which such a process runs an
engine of this one, fail where the level is above the CPU's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from pelton.backends.cpu import machine
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.targets import BUILT, ISAS, LEVELS, best, fits

TAKEN_FOR = os.environ.get("PELTON_TEST_CPU")  # a level, if any
real = machine.identity  # of the CPU that there is


def of_level(level: str) -> Callable[[], Mapping[str, Any]]:
    """`machine.identity` of this CPU, had it what a level asks for and nothing more."""
    return lambda: {**real(), "features": LEVELS[level]}


def runs(level: str) -> bool:
    """Whether the CPU that there is runs code of a level."""
    return fits(level, real()["features"])


class Imitating(ClangCompiler):
    """Kernels as a level has them, with its lanes and registers in mind, in instructions of the CPU that there is."""

    def _command(self) -> list[str]:
        return imitated(super()._command(), self.isa)


def imitated(command: list[str], isa: str) -> list[str]:
    """A command line that compiles for a level, for the CPU that there is where that does not run it: vectors of that
    many lanes are several of its own."""
    if runs(isa):
        return command
    here = ISAS[best(real()["features"])]
    rest = [word for word in command if word not in ISAS[isa].flags]
    return [*rest, f"-march={here.march}", *here.flags, f"-DVL={ISAS[isa].lanes}"]


def take_for(level: str) -> None:
    """Takes this CPU for one of a level, for as long as the process lives."""
    if level not in BUILT:
        raise ValueError(f"PELTON_TEST_CPU is {' or '.join(BUILT)}, got {level!r}")
    command, key = ClangCompiler._command, ClangCompiler.key
    machine.identity = of_level(level)  # type: ignore[assignment]
    ClangCompiler._command = lambda self: imitated(command(self), self.isa)  # type: ignore[method-assign]
    ClangCompiler.key = (  # type: ignore[method-assign]
        lambda self, text: key(self, f"{text}\n// imitated: {not runs(self.isa)}")
    )
