"""Loads engines from files and bytes."""

from __future__ import annotations

import os
from typing import Any

from pelton.engine import file
from pelton.engine.plan import EnginePlan

from .engine import Engine


def load(
    source: str | os.PathLike[str] | bytes, verify: bool = False, device: int | None = 0, *, trust: Any = None
) -> Engine:
    """Loads the engine in a file, whose weights are mapped, or in bytes, and starts it.

    verify: True to check the hash of the weights, too. device: the number of the GPU for engines that need one. With
    None the engine does not start yet, for inspection on any machine.
    trust: Ed25519 public keys, one of which must have signed the engine (see `Engine.save`): paths of PEM files, their
    bytes, or keys of the package cryptography, one or a list of them. The whole file is then read and checked before
    any of it is used, and weights are in memory of this process, not mapped. Without it, signatures are ignored.

    While an engine is in use, its file may be replaced (as `save` and `mv` do) but not written into (as `cp` does):
    that would change weights during a run.

    Engines that were loaded from a file, without `trust`, are pickled as its path and hash: a process that receives one
    maps the file at that path, and raises EngineError if there is none or it has other contents. Engines from bytes,
    built, refitted or checked against `trust` are pickled with all weights.

    An engine contains machine code: load only files that you would run as a program. Raises EngineError, with the
    remedy, for data that is no engine, is damaged, is not signed as `trust` demands, or does not run on this machine,
    and InputError for invalid keys.
    """
    container, where = file.open_engine(source, trust)
    plain = file.read_in(container, where, verify)
    if isinstance(plain, EnginePlan):
        engine = Engine(plain)
    else:
        from .profiled import engine_of_script  # imported only for scripts

        engine = engine_of_script(plain)
    if trust is None and not isinstance(source, (bytes, bytearray, memoryview)):
        engine.source = os.path.abspath(os.fsdecode(source)), container.digest
    return engine if device is None else engine.start(device)
