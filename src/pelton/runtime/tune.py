"""An engine by the fastest of the kernels that it carries for each step, timed on the device that is here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pelton.backends.device import backend
from pelton.engine.program import Script

from .engine import Engine
from .loading import load
from .program import ScriptEngine


def tune(
    engine: Engine | str | os.PathLike[str],
    device: Any = 0,
    *,
    budget: float | None = None,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Engine:
    """The engine with the fastest of the kernels that it carries for each step, timed at its usual sizes on a GPU. The
    model and a compiler are not needed. What a step's kernels write is compared; those that differ from the others are
    left out, which is logged as a warning.

    engine: one for GPUs, or its file. device: the number of the GPU. budget: seconds; steps past that stay as they are.
    Raises EngineError where there is no such GPU or the engine has no code for it, InputError for engines of CPUs. The
    engine given is left as it was.
    """
    engine = engine if isinstance(engine, Engine) else load(engine, device=None)
    deadline = None if budget is None else time.monotonic() + budget
    plain: Any = engine.plain
    tuned = backend(plain.target).tune(engine.called, [part.plain for part in engine.parts], device, deadline, progress)
    if isinstance(plain, Script):
        # the constants of all are the script's, and so they stay
        return ScriptEngine(
            replace(plain, engines=tuple(replace(t, constants=e.constants) for t, e in zip(tuned, plain.engines)))
        )
    return Engine(tuned[0])
