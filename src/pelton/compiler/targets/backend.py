"""What kinds of targets share: what a build asks of one, progress, and the times of kernels."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from pelton.codegen.template import Target
from pelton.engine.model import EnginePlan
from pelton.errors import BuildError, Cancelled
from pelton.options import Options
from pelton.plan.placed import Placed
from pelton.system.cache import Cache, used
from pelton.tune import search
from pelton.tune.timing_cache import TimingCache

log = logging.getLogger("pelton.build")

Choices = Mapping[int, search.Choice]


class Kind(Protocol):
    """What builds for one kind of target: the module `cpu`, or `cuda`."""

    def check_requirements(self, options: Options) -> None:
        """InputError for a target that there is not, BuildError for a missing compiler: before the model is read."""

    def describe_target(self, options: Options) -> tuple[Target, Mapping[str, Any]]:
        """(what code is made for, what engines say about where they run)"""

    def precision(self, options: Options) -> frozenset[str]:
        """The names of the passes of `pelton.passes.precision` that its kernels and these options ask for."""

    def back_end(self, options: Options, weights: int, kept: Cache) -> AbstractContextManager[BackEnd]:
        """What times and compiles kernels for a program with so many bytes of weights."""


class BackEnd(Protocol):
    """Times and compiles kernels for one target.

    `timing`: what times kernels, None if nothing is timed. `alternatives`: how many more tactics engines keep for a
    region. `meta`, `runs_on`: what engines record of how they were tuned, and of where they run.
    """

    target: Target
    timing: search.Timing | None
    alternatives: int
    meta: Mapping[str, Any]
    runs_on: Mapping[str, Any]

    def merge_launches(self, placed: Placed, choices: Choices) -> tuple[Placed, Choices, Sequence[str]]:
        """The same with some tasks as one; and what was decided of each."""

    def generate_code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        """The code of all kernels, and the choices that it has kernels for."""

    def drop_wrong_kernels(self, plain: EnginePlan) -> EnginePlan:
        """The engine without kernels that were seen to give something else than those which stand in for them."""


def progress_reporter(options: Options) -> Callable[[str, int, int], None]:
    """Tells of progress; Cancelled where whoever hears of it wants no more."""

    def tell(stage: str, done: int, total: int) -> None:
        if options.progress is not None and options.progress(stage, done, total) is False:
            raise Cancelled(f"the build was cancelled while in stage {stage!r} ({done} of {total})")

    return tell


@contextmanager
def open_timing_cache(options: Options, machine: str, kept: Cache) -> Iterator[TimingCache]:
    """The times of a machine, new ones kept in the end. Where the user named a file, a failure is an error; in the
    common cache it only costs time."""
    if options.timing_cache is not None:
        with named(options):
            found = TimingCache(machine, options.timing_cache)
        yield found
        with named(options):
            found.save()
        return
    path = kept.path("times", hashlib.sha256(machine.encode()).hexdigest() + ".json")
    found = _common(machine, path, kept)
    yield found
    try:
        found.save()
        if path is not None and found.fresh:
            kept.added(path.stat().st_size)
    except OSError as e:
        kept.refused(e)


def _common(machine: str, path: Path | None, kept: Cache) -> TimingCache:
    """The times in the common cache; none where it cannot be read, or is damaged."""
    try:
        try:
            found = TimingCache(machine, path)
        except BuildError as e:
            log.warning("times of kernels are taken anew: %s", e)
            os.unlink(path or "")
            return TimingCache(machine, path)
        if path is not None:
            used(path)
        return found
    except OSError as e:
        kept.refused(e)
        return TimingCache(machine)


@contextmanager
def named(options: Options) -> Iterator[None]:
    """BuildError where the file of times that the user named cannot be read or written."""
    try:
        yield
    except OSError as e:
        raise BuildError(
            f"the timing cache {options.timing_cache} cannot be used: {e.strerror or e}; give another file with"
            " --timing-cache"
        ) from e


def create_timing(options: Options, target: Target, bench: search.Bench, times: TimingCache) -> search.Timing:
    return search.Timing(
        target,
        bench,
        times,
        rounds=search.ROUNDS[options.level],
        budget=options.budget,
        progress=progress_reporter(options),
    )
