"""Random graphs as GPU engines, without a GPU: interpreted on a fake device, or compiled for an architecture."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache as once
from pathlib import Path

import numpy as np

from pelton.builder.build import build
from pelton.options import Options

from .cases import Run

OPTIONS = Options(target="cuda:sm_90", level=0, memory=1 << 31)
ARCHITECTURES, PRECISIONS = ("sm_80", "sm_90"), ("fp32", "tf32", "fp16", "bf16")

_sources: dict[str, str] = {}  # of the kernels of the engine at work


@once
def _prepare() -> None:
    """From now on, this process interprets all of Triton, compiles nothing, and has a GPU that is none."""
    import triton_interpreter

    from pelton.codegen.triton.toolchain import TritonCompiler, Cubin, CompiledCubin, read_phased
    from pelton.backends.cuda import backend

    def cubins(self, sources, progress=None, failed=None, archs=None):
        _sources.update(sources)
        return {
            (s, arch): CompiledCubin(
                Cubin(symbol=s, arch=arch, image=b"none", shared=0, warps=4, phased=read_phased(text)), None, 0
            )
            for s, text in sources.items()
            for arch in archs or self.archs
        }

    TritonCompiler.cubins = cubins  # type: ignore[method-assign]
    backend.gpu = lambda ordinal=0: triton_interpreter.device(_sources)  # type: ignore[assignment]
    triton_interpreter.prepare()


def interpreted() -> Run:
    def run(data: bytes, feeds: Mapping[str, np.ndarray], seed: int) -> Mapping[str, np.ndarray]:
        _prepare()
        _sources.clear()
        return build(data, options=OPTIONS.but(strict=True)).run(feeds)

    return run


def compiled(cache: Path) -> Run:
    """All kernels, for an architecture and in a precision that the seed draws."""

    def run(data: bytes, feeds: Mapping[str, np.ndarray], seed: int) -> None:
        rng = random.Random(seed)
        build(
            data,
            options=OPTIONS.but(
                target=f"cuda:{rng.choice(ARCHITECTURES)}", precision=rng.choice(PRECISIONS), cache_dir=cache
            ),
        )

    return run
