"""GPUs as targets: what an engine says it is for, which of its cubins a GPU runs, and what GPU is here."""
from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pelton.errors import EngineError

from .bundle import Cubin


def target(archs: Iterable[int]) -> dict[str, Any]:
    """What an engine with cubins for these architectures says about where it runs."""
    return {"os": sys.platform, "arch": "cuda", "isa": ",".join(f"sm_{a}" for a in sorted(archs)), "features": []}


def fitting(archs: Iterable[int], arch: int) -> int | None:
    """Which of the architectures with cubins a GPU runs, the newest of them. Cubins run on GPUs of the same generation that are no older; from sm_90 on
    they use what only the very architecture has."""
    return max((a for a in archs if a == arch or (a < 90 and a // 10 == arch // 10 and a <= arch)), default=None)


def chosen(name: str, bundle: Mapping[int, Mapping[str, Cubin]], arch: int, gpu: str) -> Mapping[str, Cubin]:
    """The cubins for a GPU; EngineError that says which there are and how to add one."""
    fits = fitting(bundle, arch)
    if fits is None:
        inside = ", ".join(f"sm_{a}" for a in sorted(bundle)) or "none"
        raise EngineError(f"engine {name!r} has code for {inside}; the GPU here, {gpu}, is sm_{arch}; "
                          f"build it with --target cuda:{','.join(f'sm_{a}' for a in sorted({*bundle, arch}))}")
    return bundle[fits]


def describe(ordinal: int = 0) -> dict[str, Any]:
    """model (the marketing name), isa (sm_90), memory (bytes), multiprocessors and ordinal of a GPU that is here; EngineError where there is none."""
    from .driver import device
    gpu = device(ordinal)
    return {"arch": "cuda", "model": gpu.name, "isa": f"sm_{gpu.arch}", "memory": gpu.memory, "multiprocessors": gpu.multiprocessors, "ordinal": gpu.ordinal}
