"""Engines out of files and bytes."""

from __future__ import annotations

import os

from pelton.engine import file
from pelton.engine.model import EnginePlan

from .engine import Engine


def load(source: str | os.PathLike[str] | bytes, verify: bool = False, device: int | None = 0) -> Engine:
    """The engine in a file (whose weights are mapped, not read) or in bytes, started; those for GPUs on the one with
    the number `device`. With None it does not start yet, so that it can be looked at on machines that do not run it.
    `verify` checks the weights, too.

    While an engine is in use its file may be replaced (as `save` and `mv` do), but not be written into (as `cp` does):
    weights would change under a run.

    An engine holds machine code: load only what you would run as a program. Raises EngineError, saying what to do, for
    what is no engine, is damaged, or does not run on this machine.
    """
    plain = file.read(source, verify)
    if isinstance(plain, EnginePlan):
        engine = Engine(plain)
    else:
        from .program import ScriptEngine  # only scripts need it

        engine = ScriptEngine(plain)
    return engine if device is None else engine.start(device)
