"""The cubins of an engine for a GPU, and the facts about a GPU of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pelton.engine.cubin import Cubin
from pelton.errors import EngineError
from pelton.targets import fitting


def chosen(name: str, bundle: Mapping[int, Mapping[str, Cubin]], arch: int, gpu: str) -> Mapping[str, Cubin]:
    """Returns the cubins for a GPU; raises EngineError with the existing ones and the way to add one."""
    fits = fitting(bundle, arch)
    if fits is None:
        inside = ", ".join(f"sm_{a}" for a in sorted(bundle)) or "none"
        raise EngineError(
            f"engine {name!r} has code for {inside}; the GPU here, {gpu}, is sm_{arch}; "
            f"build it with --target cuda:{','.join(f'sm_{a}' for a in sorted({*bundle, arch}))}"
        )
    return bundle[fits]


def describe(ordinal: int = 0) -> dict[str, Any]:
    """Returns model (the marketing name), isa (sm_90), memory (bytes), multiprocessors and ordinal of an installed GPU;
    raises EngineError if there is none."""
    from .driver import device

    gpu = device(ordinal)
    return {
        "arch": "cuda",
        "model": gpu.name,
        "isa": f"sm_{gpu.arch}",
        "memory": gpu.memory,
        "multiprocessors": gpu.multiprocessors,
        "ordinal": gpu.ordinal,
    }
