"""Selects the fastest of the alternative kernels that an engine carries, timed on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pelton.backends import backend
from pelton.engine.script import Script

from .engine import Engine
from .loading import load
from .profiled import engine_of_script


def tune(
    engine: Engine | str | os.PathLike[str],
    device: Any = 0,
    *,
    budget: float | None = None,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Engine:
    """Selects the fastest alternative kernel of each step, timed at the optimum sizes; returns a new engine.

    This needs neither the model nor a compiler. On GPUs the results of a step's kernels are compared; kernels with
    different results are dropped with a warning in the log.

    engine: an engine for GPUs, or one built for a CPU other than the building one, or its file; it stays unchanged.
    device: the number of the GPU. budget: seconds; later steps stay as they are. progress: called with a stage, the
    work done, and the total.
    Raises EngineError if there is no such GPU or CPU or the engine has no code for it, InputError for engines that
    carry no alternatives.
    """
    engine = engine if isinstance(engine, Engine) else load(engine, device=None)
    deadline = None if budget is None else time.monotonic() + budget
    plain: Any = engine.plain
    tuned = backend(plain.target).tune(engine.label, [part.plain for part in engine.parts], device, deadline, progress)
    if isinstance(plain, Script):
        # the engines share the constants of the script
        return engine_of_script(
            replace(plain, engines=tuple(replace(t, constants=e.constants) for t, e in zip(tuned, plain.engines)))
        )
    return Engine(tuned[0])
