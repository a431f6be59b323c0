"""Checks that this CPU can run an engine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pelton.logs import Logger
from pelton.errors import EngineError, InputError
from pelton.targets import BUILT, ISAS, LEVELS, fits, lowest

from ..device import AGAIN, check_here
from .machine import describe

log = Logger("pelton.runtime")


def check_machine(name: str, target: Mapping[str, Any]) -> None:
    """Raises EngineError if the engine is for another system or needs missing instructions; logs a warning if it was
    tuned on another CPU model."""
    arch = describe()["arch"]
    check_here(name, target, os=sys.platform, arch=arch)
    isa = target.get("isa", arch)
    if isa not in LEVELS:
        raise EngineError(
            f"engine {name!r} is for instruction set level {isa}, this Pelton knows {', '.join(LEVELS)}; install a"
            f" newer Pelton or {AGAIN}"
        )
    lacking = lacks(isa, target.get("features", ()))
    if lacking:
        raise EngineError(f"engine {name!r} needs {lacking}; {instead()}")
    model = describe()["model"]
    if target.get("cpu", model) != model:
        log.warning(
            "engine %r was tuned on %s, this is %s: it runs, a build on this machine may be faster",
            name,
            target["cpu"],
            model,
        )


def lacks(isa: str, features: Iterable[str] = ()) -> str | None:
    """Returns the features that this CPU lacks for a level and these features, as text after "it needs", or None."""
    machine = describe()
    if isa in ISAS and ISAS[isa].arch != machine["arch"]:
        return f"a CPU of {ISAS[isa].arch} (level {isa}), this one ({machine['model']}) is of {machine['arch']}"
    missing = sorted({*LEVELS[isa], *features} - set(machine["features"]))
    return (
        f"a CPU with {', '.join(missing)} (level {isa}), this one ({machine['model']}) has level {machine['isa']}"
        if missing
        else None
    )


def check_runs_here(target: str, what: str) -> None:
    """Raises InputError, before a build, if this CPU does not run engines for a target (as in `Options.target`).

    what: the caller, for the message.
    """
    kind, _, level = target.partition(":")
    # without a level, the target is the best of this CPU, at least the lowest
    level = level or lowest(describe()["arch"])
    lacking = lacks(level) if kind == "cpu" and level in ISAS else None
    if lacking:
        raise InputError(f"{what} runs the engine on this machine and needs {lacking}; {instead()}")


def instead() -> str:
    """Returns the build target whose engines run on this CPU."""
    machine = describe()
    *_, advice = (
        f"Pelton's kernels need {lowest(machine['arch'])} at least",
        *(f"build it for the target cpu:{level}" for level in BUILT if fits(level, machine)),
    )
    return advice
