"""Common parts of targets: the build's interface, progress, and the timing cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from pelton.logs import Logger
from pelton.codegen.template import Target
from pelton.engine.plan import EnginePlan
from pelton.errors import BuildError, Cancelled
from pelton.options import Options
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Placed
from pelton.system.cache import Cache, mark_used
from pelton.tuning import search
from pelton.tuning.timing_cache import TimingCache

log = Logger("pelton.build")

Choices = Mapping[int, search.Choice]


class Kind(Protocol):
    """The interface of the modules `cpu` and `cuda`, which build for one kind of target."""

    def check_requirements(self, options: Options) -> None:
        """Raises InputError for an unknown target, BuildError for a missing compiler; precedes the import."""

    def describe_target(self, options: Options) -> tuple[Target, Mapping[str, Any]]:
        """Returns (the target of code generation, the engines' record of where they run)."""

    def runs_here(self, options: Options) -> bool:
        """True if this machine runs engines of these options."""

    def precision(self, options: Options) -> frozenset[str]:
        """Returns the names of the passes of `pelton.passes.precision` to run."""

    def back_end(self, options: Options, weights: int, kept: Cache) -> AbstractContextManager[BackEnd]:
        """Opens a back end for a program with so many bytes of weights."""


class BackEnd(Protocol):
    """Times and compiles kernels for one target.

    `timing`: the timer of kernels, None if nothing is timed. `alternatives`: the number of further tactics that engines
    keep for a region. `meta`, `runs_on`: the engines' records of their tuning and of where they run.
    """

    target: Target
    timing: search.Timing | None
    alternatives: int
    meta: Mapping[str, Any]
    runs_on: Mapping[str, Any]

    def merge_launches(self, placed: Placed, choices: Choices) -> tuple[Placed, Choices, Sequence[str]]:
        """Merges tasks into one launch where that is faster; also returns a readable reason for each decision."""

    def generate_code(self, placed: Placed, choices: Choices) -> tuple[Choices, bytes]:
        """Compiles all kernels: returns the choices with compiled kernels, and the code."""

    def schedule(self, tasks: Sequence[ScheduledTask]) -> list[ScheduledTask]:
        """Decides which independent tasks run concurrently."""

    def check_kernels(self, plain: EnginePlan, placed: Placed, choices: Choices) -> EnginePlan:
        """Returns the engine without kernels whose results differ from their alternatives'; BuildError for a plugin
        kernel that does harm."""


def progress_reporter(options: Options) -> Callable[[str, int, int], None]:
    """Returns a function that reports to the options' progress callback; it raises Cancelled on False."""

    def tell(stage: str, done: int, total: int) -> None:
        if options.progress is not None and options.progress(stage, done, total) is False:
            raise Cancelled(f"the build was cancelled while in stage {stage!r} ({done} of {total})")

    return tell


@contextmanager
def open_timing_cache(options: Options, machine: str, kept: Cache) -> Iterator[TimingCache]:
    """Opens the timing cache of a machine and saves it in the end. BuildError for an unusable file named by the user; a
    failure of the common cache only costs time."""
    if options.timing_cache is not None:
        with named(options):
            cache = TimingCache(machine, options.timing_cache)
        yield cache
        with named(options):
            cache.save()
        return
    path = kept.path("times", hashlib.sha256(machine.encode()).hexdigest() + ".json")
    cache = _common(machine, path, kept)
    yield cache
    try:
        cache.save()
        if path is not None and cache.fresh:
            kept.added(path.stat().st_size)
    except OSError as e:
        kept.refused(e)


def _common(machine: str, path: Path | None, kept: Cache) -> TimingCache:
    """Reads the times in the common cache; none if it cannot be read or is damaged."""
    try:
        try:
            cache = TimingCache(machine, path)
        except BuildError as e:
            log.warning("times of kernels are taken anew: %s", e)
            os.unlink(path or "")
            return TimingCache(machine, path)
        if path is not None:
            mark_used(path)
        return cache
    except OSError as e:
        kept.refused(e)
        return TimingCache(machine)


@contextmanager
def named(options: Options) -> Iterator[None]:
    """Turns errors of the user's timing cache into BuildErrors with advice."""
    advice = "use another file with timing_cache="
    try:
        yield
    except BuildError as e:
        raise BuildError(f"{e}; {advice}") from None
    except OSError as e:
        raise BuildError(f"the timing cache {options.timing_cache} cannot be used: {e.strerror or e}; {advice}") from e


def create_timing(options: Options, target: Target, bench: search.Bench, times: TimingCache) -> search.Timing:
    return search.Timing(
        target,
        bench,
        times,
        rounds=search.ROUNDS[options.level],
        budget=options.budget,
        progress=progress_reporter(options),
    )
