"""Targets (CPUs, NVIDIA GPUs): their description, and the timing and compiling of kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pelton.codegen.template import Target
from pelton.errors import BuildError
from pelton.options import Options
from pelton.system import files
from pelton.system.cache import open_cache
from pelton.tuning import replay
from pelton.tuning.timing_cache import TimingCache

from . import cpu, cuda
from .interface import BackEnd, Kind, named, progress_reporter

__all__ = ["back_end", "check_requirements", "describe_target", "progress_reporter", "target_kind"]


def target_kind(options: Options) -> Kind:
    """Returns the module that builds for the target of these options."""
    return cpu if options.on_cpu else cuda


@contextmanager
def back_end(options: Options, weights: int) -> Iterator[BackEnd]:
    """Opens the back end for a program with `weights` bytes of constants.

    BuildError if a compiler is missing or new times cannot be stored.
    """
    kept = open_cache(options)
    try:
        with target_kind(options).back_end(options, weights, kept) as compiler:
            yield compiler
    finally:
        kept.settle()


def check_requirements(options: Options) -> None:
    """Checks the requirements of a build before a model is read.

    InputError for an unknown target, BuildError for a missing compiler and for unusable files of times or tactics.
    """
    open_cache(options)
    target_kind(options).check_requirements(options)
    if options.timing_cache is not None:
        with named(options):
            TimingCache("", options.timing_cache)
        why = (
            files.rejection(options.timing_cache)
            if not os.path.exists(options.timing_cache) and os.path.isdir(Path(options.timing_cache).parent)
            else None
        )
        if why is not None and options.level:
            raise BuildError(
                f"cannot write the timing cache {options.timing_cache}: {why}; use another file with --timing-cache"
            )
    if options.load_tactics is not None:
        replay.read(options.load_tactics, cpu.describe(options)[0].isa)
    if options.save_tactics is not None:
        why = files.rejection(options.save_tactics)
        if why is not None:
            raise BuildError(
                f"cannot write tactics to {options.save_tactics}: {why}; use another file with save_tactics="
            )


def describe_target(options: Options) -> tuple[Target, Mapping[str, Any]]:
    """Returns (the target of code generation, the engines' record of where they run)."""
    return target_kind(options).describe_target(options)
