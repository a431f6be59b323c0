"""Emulation of other CPUs: the level that Pelton detects here, and code of higher levels.

With PELTON_TEST_CPU=x86_64_v3, or another level for builds, in the environment, the whole suite treats this CPU as one
of that level, as do the tests' child processes (imitation/imitate_cpu.py). If the level is above the CPU's, tests fail
whose engines run in processes without this folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from pelton.backends.cpu import machine
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.targets import BUILT, ISAS, LEVELS, best, fits, levels

TAKEN_FOR = os.environ.get("PELTON_TEST_CPU")  # a level, if any
real = getattr(machine.identity, "real", machine.identity)  # of the CPU that there is
HERE = tuple(level for level in BUILT if ISAS[level].arch == real()["arch"])
if TAKEN_FOR is not None and TAKEN_FOR not in HERE:
    raise ValueError(f"PELTON_TEST_CPU is {' or '.join(HERE)}, got {TAKEN_FOR!r}")


def of_level(level: str) -> Callable[[], Mapping[str, Any]]:
    """`machine.identity` of this CPU, had it what a level asks for and nothing more."""
    return lambda: {**real(), "arch": arch_of(level), "features": LEVELS[level]}


def without(level: str) -> Callable[[], Mapping[str, Any]]:
    """`machine.identity` of a CPU here that lacks what a level needs."""
    return lambda: {**real(), "features": sorted(set(real()["features"]) - {LEVELS[level][-1]})}


def arch_of(level: str) -> str:
    return next(arch for arch in ("x86_64", "aarch64", "riscv64", "wasm32", "thumb") if level in levels(arch))


def runs(level: str) -> bool:
    """Whether the CPU that there is runs code of a level."""
    return fits(level, real())


class Exact(ClangCompiler):
    """Kernels in the instructions of their level, whatever CPU there is: to be read, not to be run."""

    _command = getattr(ClangCompiler._command, "real", ClangCompiler._command)


class Imitating(ClangCompiler):
    """Kernels as a level has them, with its lanes and registers in mind, in instructions of the CPU that there is."""

    def _command(self) -> list[str]:
        return imitated(super()._command(), self.isa)


def imitated(command: list[str], isa: str) -> list[str]:
    """A command line that compiles for a level, for the CPU that there is where that does not run it: vectors of that
    many lanes are several of its own. For another architecture it stays as it is."""
    if runs(isa) or ISAS[isa].arch != real()["arch"]:
        return command
    here = ISAS[best(real())]
    rest = [word for word in command if word not in ISAS[isa].flags]
    return [*rest, f"-march={here.march}", *here.flags, f"-DVL={ISAS[isa].lanes}"]
