"""Whether an engine can run on this machine."""
from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from pelton.backends.cpu import LEVELS, describe
from pelton.errors import EngineError

log = logging.getLogger("pelton.runtime")


def check_machine(name: str, target: Mapping[str, Any]) -> None:
    """EngineError where the engine is for another system or needs instructions that this CPU lacks; a warning where it was tuned on another model."""
    again = "build it on, or for, this machine"
    on_gpu = target.get("arch") == "cuda"
    for key, here in (("os", sys.platform), ("arch", target.get("arch") if on_gpu else platform.machine())):
        if target.get(key, here) != here:
            raise EngineError(f"engine {name!r} is for {target[key]}, this machine runs {here}; {again}")
    if on_gpu:
        return                                                   # whether there is one, and which code it runs, shows when the engine starts
    features, isa = target.get("features", []), target.get("isa", "x86_64")
    if not isinstance(isa, str) or not isinstance(features, (list, tuple)) or not all(isinstance(f, str) for f in features):
        raise EngineError(f"engine {name!r} is damaged: it does not say what it needs of a CPU; build it again")
    if isa not in LEVELS:
        raise EngineError(f"engine {name!r} is for instruction set level {isa}, this Pelton knows {', '.join(LEVELS)}; install a newer Pelton or {again}")
    machine = describe()
    missing = sorted({*LEVELS[isa], *features} - set(machine["features"]))
    if missing:
        raise EngineError(f"engine {name!r} needs a CPU with {', '.join(missing)} (level {isa}); this one ({machine['model']}) has level {machine['isa']}; "
                          f"{again}")
    if target.get("cpu", machine["model"]) != machine["model"]:
        log.warning("engine %r was tuned on %s, this is %s: it runs, a build on this machine may be faster", name, target["cpu"], machine["model"])


def memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(name: str, arena: int, scratch: int, threads: int) -> None:
    """EngineError where one context takes more memory than there is."""
    need, have = arena + scratch * threads, memory()
    if need > have:
        raise EngineError(f"engine {name!r} needs {need / 1e9:.1f} GB for a context of {threads} threads, this machine has {have / 1e9:.1f} GB; "
                          "use fewer threads or a smaller input")
