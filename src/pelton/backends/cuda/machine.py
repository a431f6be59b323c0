"""GPUs as targets: what an engine says it is for, which of its cubins a GPU runs, and what GPU is here."""
from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pelton.errors import EngineError

from .bundle import Cubin


@dataclass(frozen=True)
class Usual:
    """A GPU that stands for its architecture: multiprocessors; bytes of each that blocks may share, and how many of them one block; bytes of L2."""

    name: str
    multiprocessors: int
    l1: int
    block: int
    l2: int


# What is built for where no such GPU is there to be asked. Multiprocessors and L2 are of NVIDIA's white papers ("Turing GPU Architecture", 2018, T4;
# "A100 Tensor Core GPU Architecture", 2020; "Ampere GA102 GPU Architecture", 2020, RTX 3090; "Ada GPU Architecture", 2022, RTX 4090; "H100 Tensor Core GPU
# Architecture", 2022, SXM5; "RTX Blackwell GPU Architecture", 2025, RTX 5090), shared memory of the CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability".
USUAL = {75: Usual("T4", 40, 64 << 10, 64 << 10, 4 << 20), 80: Usual("A100", 108, 164 << 10, 163 << 10, 40 << 20),
         86: Usual("RTX 3090", 82, 100 << 10, 99 << 10, 6 << 20), 89: Usual("RTX 4090", 128, 100 << 10, 99 << 10, 72 << 20),
         90: Usual("H100 SXM5", 132, 228 << 10, 227 << 10, 50 << 20), 120: Usual("RTX 5090", 170, 100 << 10, 99 << 10, 96 << 20)}

# Compute capabilities of the CUDA C++ Programming Guide that drivers of CUDA 13 run.
ARCHITECTURES = (75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)


def usual(arch: int) -> Usual:
    """What stands for an architecture: of those known, the newest that is no newer."""
    return USUAL[max((a for a in USUAL if a <= arch), default=min(USUAL))]


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
