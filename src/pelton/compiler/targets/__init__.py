"""What is different about building for CPUs and for NVIDIA GPUs: what code is made for, what it is timed on, and how kernels become an engine's code."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pelton.backends.cpu.machine import target as runs_on_cpu
from pelton.codegen.c.toolchain import compiler_id
from pelton.codegen.template import Target
from pelton.errors import BuildError
from pelton.ir.graph import Graph
from pelton.options import Options
from pelton.runtime.machine import check_runs_here
from pelton.system import files
from pelton.system.cache import opened
from pelton.tune import replay
from pelton.tune.timing_cache import TimingCache

from . import cpu, cuda
from .backend import BackEnd, named, teller

__all__ = ["adapted", "back_end", "describe_target", "ready", "teller"]


@contextmanager
def back_end(options: Options, weights: int) -> Iterator[BackEnd]:
    """What builds a program with so many bytes of weights for the target of these options. BuildError where a compiler is missing, or new times cannot be
    kept."""
    kept = opened(options)
    try:
        with cpu.back_end(options, weights, kept) if options.on_cpu else cuda.back_end(options, kept) as found:
            yield found
    finally:
        kept.settle()


def ready(options: Options) -> None:
    """Whatever can be known of a build before the model is read: InputError for a target that there is not, BuildError for a compiler that is missing, and for
    a file of times or tactics that cannot be used."""
    opened(options)
    if options.on_cpu:
        cpu.describe(options)
        if options.check:
            check_runs_here(options.target, "check")
        compiler_id(options.cc)
    else:
        from pelton.codegen.triton.toolchain import version  # only engines for GPUs need it

        cuda.architectures(options)
        version()
    if options.timing_cache is not None:
        with named(options):
            TimingCache("", options.timing_cache)
        why = files.refused(options.timing_cache) if not os.path.exists(options.timing_cache) and os.path.isdir(Path(options.timing_cache).parent) else None
        if why is not None and options.level:
            raise BuildError(f"the timing cache {options.timing_cache} cannot be written: {why}; give another file with --timing-cache")
    if options.load_tactics is not None:
        replay.read(options.load_tactics, cpu.describe(options)[0].isa)
    if options.save_tactics is not None:
        why = files.refused(options.save_tactics)
        if why is not None:
            raise BuildError(f"tactics cannot be recorded in {options.save_tactics}: {why}; "
                             "give another file with save_tactics=")


def describe_target(options: Options) -> tuple[Target, Mapping[str, Any]]:
    """What code is made for, and what engines say about where they run."""
    if options.on_cpu:
        target, _ = cpu.describe(options)
        return target, runs_on_cpu(target.isa)
    from pelton.backends.cuda.machine import target as runs_on_gpu  # only engines for GPUs need these
    from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates)

    archs, device = cuda.architectures(options)
    return cuda.target_for(archs, device, options.level, options.precision), runs_on_gpu(archs)


def adapted(graph: Graph, options: Options) -> Graph:
    """The program as kernels of the target want it: see `cuda.adapted`."""
    return graph if options.on_cpu else cuda.adapted(graph, options)
