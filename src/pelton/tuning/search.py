"""Chooses a kernel for every task: by cached times, by measurement, or by the first guess."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from pelton.logs import Logger
from pelton.engine.library import LIBRARIES
from pelton.errors import BuildError
from pelton.ir.graph import Value
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region

from . import packed_weights
from .timing_cache import TimingCache
from .candidates import candidates
from .tasks import at_optimum, digest

log = Logger("pelton.build")

ROUNDS = {1: 3, 2: 4, 3: 7, 4: 12, 5: 25}  # level → rounds of timing
MAX_TACTICS = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 1000}  # level → tactics of each family of a template
MARGIN = 0.98  # maximum time of a challenger relative to the one before it
NEAR = 1.1  # limit relative to the best first tactic, within which a family is timed completely

Found = list[tuple[Template, Tactic]]


@dataclass(frozen=True)
class Choice:
    """The kernel of a task and the bytes of its packed weights; times: tactic name → ns, as far as measured;
    alternatives: further kernels, which read the same constants."""

    template: Template
    tactic: Tactic
    kernel: Kernel
    packing: packed_weights.Packing
    times: dict[str, int] = field(default_factory=dict)
    alternatives: tuple[tuple[Tactic, Kernel], ...] = ()

    def with_kernels(self, change: Callable[[Kernel], Kernel]) -> Choice:
        """Returns a copy with every kernel changed."""
        return replace(
            self, kernel=change(self.kernel), alternatives=tuple((t, change(k)) for t, k in self.alternatives)
        )

    def without(self, failed: Mapping[str, BuildError]) -> Choice:
        """Drops the kernels that could not be compiled (symbol → error); an alternative may replace the chosen one.

        Raises the error if no kernel is left.
        """
        left = [(t, k) for t, k in ((self.tactic, self.kernel), *self.alternatives) if k.symbol not in failed]
        if all(k.symbol in LIBRARIES for _, k in left):
            raise next(
                why
                for symbol, why in failed.items()
                if symbol in {k.symbol for k in (self.kernel, *(k for _, k in self.alternatives))}
            )
        # library kernels come last: untimed, they are no guess
        left.sort(key=lambda pair: pair[1].symbol in LIBRARIES and pair[1] is not self.kernel)
        if left[0][1] is not self.kernel:
            log.warning("%s instead of %s: %s", left[0][0].name, self.tactic.name, failed[self.kernel.symbol])
        return replace(self, tactic=left[0][0], kernel=left[0][1], alternatives=tuple(left[1:]))


def _digest_among(task: Task, pool: Found, found: Mapping[str, Found]) -> str:
    """Returns the key of a task; another one if an equal task has other candidates, as weights may decide."""
    d = first = digest(task)
    while d in found and found[d] != pool:
        d = hashlib.sha256(f"{first} {d}".encode()).hexdigest()[:32]
    return d


def select(
    placed: Placed,
    target: Target,
    timing: Timing | None,
    *,
    strict: bool,
    max_tactics: int,
    alternatives: int = 0,
    among: Callable[[Task, Found], Found] = lambda task, found: found,
) -> dict[int, Choice]:
    """Maps task numbers to choices, for every task that is a region, from `max_tactics` tactics per template family.

    Equal tasks are searched once; without a clock the first guess wins. alternatives: the number of further kernels of
    each choice. among: filters the candidates of a task.
    """
    digests, tasks, found = dict[int, str](), dict[str, Task](), dict[str, Found]()
    for i, task in enumerate(placed.tasks):
        if not isinstance(task.what, Region):
            continue
        pool = among(task, candidates(task.region, task.layouts, target, strict, max_tactics))
        if not pool and task.region.title() == "copy":
            raise BuildError(
                f"{task.region.output.type} needs a copy to another layout, for which there is no kernel; cast it"
                " to another element type"
            )
        if not pool:
            raise AssertionError(f"no template runs {task.region.title()} in these layouts")
        d = digests[i] = _digest_among(task, pool, found)
        tasks[d], found[d] = task, pool
    if timing is not None:
        timing.tune(tasks, found)
    times: dict[str, dict[str, int]] = {d: timing.cache.get(d) if timing is not None else {} for d in found}
    best = {d: best_of(f, times[d]) for d, f in found.items()}
    chosen = _small_enough(best, found, tasks, digests, placed, target, times)
    out, counted = dict[int, Choice](), set[frozenset[Value]]()
    for i, d in digests.items():
        (template, tactic, packing), task = chosen[d], placed.tasks[i]
        weights = frozenset(task.region.body.constants)
        if weights in counted:  # counted with another task already
            packing = packed_weights.Packing(0, 0, 0.0)
        counted.add(weights)
        kernel = template.emit(task.region, task.layouts, tactic, target)
        others = ranked(found[d], times[d], tactic)
        generated = islice(
            _with_same_constants(task, kernel, [pair for pair in others if not pair[0].timed_only], target),
            max(alternatives, template.timed_only),
        )
        # these take no space in the file; keep all
        by_library = [pair for pair in others if pair[0].timed_only] if alternatives else []
        out[i] = Choice(
            template,
            tactic,
            kernel,
            packing,
            best[d][2],
            (*generated, *_with_same_constants(task, kernel, by_library, target)),
        )
    return out


def ranked(found: Found, times: Mapping[str, int], but: Tactic) -> Found:
    """Ranks all other tactics: timed ones by time, then the first of every template, of every family, then the rest."""
    timed = sorted((pair for pair in found if pair[1].name in times), key=lambda pair: times[pair[1].name])
    firsts = {t.name: (t, c) for t, c in reversed(found)}
    order = dict.fromkeys([*timed, *reversed(firsts.values()), *first_few(found), *found])
    return [pair for pair in order if pair[1] != but]


def _with_same_constants(task: Task, kernel: Kernel, others: Found, target: Target) -> Iterator[tuple[Tactic, Kernel]]:
    """Yields the kernels that need no constants besides those of this kernel.

    Alternatives to a library kernel, which reads no bias of zeros, may read all constants of the region unpacked.
    """
    held = task.region.body.constants

    def constants(kernel: Kernel) -> set[Hashable]:
        return {
            (x.sources, x.form) if isinstance(x, Packed) else x
            for x in kernel.operands
            if isinstance(x, Packed) or x in held
        }

    available = constants(kernel) | (set(held) if kernel.symbol in LIBRARIES else set())
    for template, tactic in others:
        other = template.emit(task.region, task.layouts, tactic, target)
        if constants(other) <= available:
            yield tactic, other


def first_few(found: Found) -> Found:
    """Returns the first tactic of every family of every template."""
    firsts: dict[tuple, tuple[Template, Tactic]] = {}
    for t, c in found:
        firsts.setdefault((t.name, t.family(c)), (t, c))
    return list(firsts.values())


def near_best(found: Found, times: Mapping[str, int]) -> Found:
    """Returns all tactics of the families whose first one was close to the best, none if none was timed. A lone family
    counts as close: its first tactic had no rival."""
    firsts = first_few(found)
    if len(firsts) == 1:
        return found
    first = {(t.name, t.family(c)): times[c.name] for t, c in firsts if c.name in times}
    limit = min(first.values(), default=0) * NEAR
    return [(t, c) for t, c in found if first.get((t.name, t.family(c)), limit + 1) <= limit]


def worth(found: Found, times: Mapping[str, int]) -> Found:
    """Drops timed tactics that do not beat the fastest one of a smaller margin by their own margin."""
    fastest: dict[float, int] = {}  # by margin
    for t, c in found:
        if c.name in times:
            fastest[t.margin(c)] = min(times[c.name], fastest.get(t.margin(c), times[c.name]))
    return [
        (t, c)
        for t, c in found
        if all(times.get(c.name, 0) < ns * (1 - t.margin(c)) for m, ns in fastest.items() if m < t.margin(c))
    ]


def best_of(found: Found, times: Mapping[str, int]) -> tuple[Template, Tactic, dict[str, int]]:
    """Returns the fastest tactic by known times, the earlier of nearly equal ones; the first guess if none is known."""
    template, tactic = found[0]
    best: int | None = None
    for t, c in worth(found, times):
        ns = times.get(c.name)
        if ns is not None and (best is None or ns < best * MARGIN):
            template, tactic, best = t, c, ns
    return template, tactic, {c.name: times[c.name] for _, c in found if c.name in times}


Best = dict[str, tuple[Template, Tactic, dict[str, int]]]


def _small_enough(
    best: Best,
    found: Mapping[str, Found],
    tasks: Mapping[str, Task],
    digests: Mapping[int, str],
    placed: Placed,
    target: Target,
    times: Mapping[str, Mapping[str, int]],
) -> dict[str, tuple[Template, Tactic, packed_weights.Packing]]:
    """Chooses with all packed weights together at most `Target.max_packed` times the model's own.

    Untimed candidates count as fast as the first guess, so the largest weights among them are dropped first.
    """
    weights = {digest: {v: a.nbytes for v, a in tasks[digest].region.body.constants.items()} for digest in best}
    limit = target.max_packed * sum(a.nbytes for i in digests for a in placed.tasks[i].region.body.constants.values())
    shared = {d: sum(e == d for e in digests.values()) for d in best}
    if not any(times.values()):  # the first guesses stay if they fit
        packed = {
            d: packed_weights.packed_bytes(t.emit(tasks[d].region, tasks[d].layouts, c, target), weights[d])
            for d, (t, c, _) in best.items()
        }
        if sum(packed[d] * shared[d] for d in best) <= limit:
            return {
                d: (t, c, packed_weights.Packing(sum(weights[d].values()), packed[d], 0.0))
                for d, (t, c, _) in best.items()
            }
    candidates_of: dict[str, list[packed_weights.PackedCandidate]] = {}
    first: dict[str, int] = {}
    for d, (template, tactic, _) in best.items():
        task = tasks[d]
        pool = (
            [(t, c) for t, c in worth(found[d], times[d]) if c.name in times[d] or not (times[d] or t.timed_only)]
            if sum(weights[d].values())
            else []
        )
        exact = template.is_exact(tactic)  # accuracy is never traded for size
        pool = list(dict.fromkeys([(template, tactic), *((t, c) for t, c in pool if t.is_exact(c) or not exact)]))
        first[d] = 0
        candidates_of[d] = [
            packed_weights.PackedCandidate(
                t,
                c,
                float(times[d].get(c.name, 0)),
                packed_weights.packed_bytes(t.emit(task.region, task.layouts, c, target), weights[d]),
            )
            for t, c in pool
        ]
    chosen = packed_weights.limit_packed_weights(candidates_of, first, shared, limit)
    return {
        d: (
            candidates_of[d][k].template,
            candidates_of[d][k].tactic,
            packed_weights.packing(candidates_of[d], k, sum(weights[d].values())),
        )
        for d, k in chosen.items()
    }


class Bench(Protocol):
    """Runs kernels and times them."""

    def ready(self, sources: Mapping[str, str], progress: Callable[[int], None]) -> AbstractContextManager[Any]:
        """Compiles kernels (symbol → source) for `race`, for the duration of the context; `progress` receives the
        number compiled so far."""

    def race(
        self,
        tasks: Sequence[Task],
        programs: Sequence[Sequence[Kernel]],
        loaded: Any,
        rounds: int,
        deadline: float | None = None,
    ) -> Sequence[int | None]:
        """Times each program, a sequence of kernels, in ns; None for those that do not run. Kernels of a program may
        read outputs of earlier ones."""


class Timing:
    """Times kernels outside the cache, within the budget: compiles all kernels first, then times them undisturbed."""

    def __init__(
        self,
        target: Target,
        bench: Bench,
        cache: TimingCache,
        *,
        rounds: int,
        budget: float | None,
        progress: Callable[[str, int, int], None],
    ):
        self.target, self.bench, self.cache, self.rounds, self.progress = target, bench, cache, rounds, progress
        self.budget, self.deadline = budget, None if budget is None else time.monotonic() + budget
        self._warned = not budget  # True once the budget's end was reported; a budget of 0 is never reported

    def tune(self, tasks: Mapping[str, Task], found: Mapping[str, Found], alone: bool = False) -> None:
        """Times tasks by digest: one tactic of every family, then all of the families near the best.

        alone: also times tasks with a single candidate, for choices among chains and layouts in the stage "layout".
        """
        self.measure(tasks, {d: first_few(f) for d, f in found.items()}, "tune", alone)
        self.measure(tasks, {d: near_best(f, self.cache.get(d)) for d, f in found.items()}, "refine", alone)

    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _warn_once(self, stage: str, count: int, of: int) -> None:
        """Warns, once, that the budget is exhausted."""
        if not self._warned:
            self._warned = True
            log.warning(
                "the budget of %g s is over in stage %s, with kernels of %d of %d layers untimed: these use the best"
                " guess or the fastest so far; the times are kept for the next build",
                self.budget,
                stage,
                count,
                of,
            )

    def measure(
        self, tasks: Mapping[str, Task], candidates: Mapping[str, Found], stage: str, alone: bool = False
    ) -> None:
        kernels: dict[str, list[tuple[str, Kernel]]] = {}
        for d, pool in candidates.items():
            missing = [
                (t, c)
                for t, c in pool
                if c.name not in self.cache.get(d) and (not t.timed_only or self.target.version(t.name))
            ]
            if missing and (alone or len(pool) > 1):
                task = tasks[d]
                kernels[d] = [(c.name, t.emit(task.region, task.layouts, c, self.target)) for t, c in missing]
        if not kernels:
            return
        if self.is_over():
            self._warn_once(stage, len(kernels), len(kernels))
            return
        sources = {k.symbol: k.source for ks in kernels.values() for _, k in ks}
        compiling, timing = ("layout", "layout") if alone else ("compile", stage)
        with self.bench.ready(sources, lambda done: self.progress(compiling, done, len(sources))) as loaded:
            for done, (d, ks) in enumerate(kernels.items()):
                self.progress(timing, done, len(kernels))
                if self.is_over():
                    self._warn_once(stage, len(kernels) - done, len(kernels))
                    break
                task, timed = at_optimum(tasks[d], [k for _, k in ks])
                times = self.bench.race((task,), [(k,) for k in timed], loaded, self.rounds, self.deadline)
                self._put(d, [n for n, _ in ks], times)
        self.progress(timing, len(kernels), len(kernels))

    def race(self, digest: str, tasks: Sequence[Task], programs: Mapping[str, Sequence[Kernel]]) -> dict[str, int]:
        """Times programs (sequences of kernels) for the same tasks: name → ns; only cached ones if the budget is over.

        Times are cached under a digest like those of a task.
        """
        if any(name not in self.cache.get(digest) for name in programs) and not self.is_over():
            sources = {k.symbol: k.source for kernels in programs.values() for k in kernels}
            sizes, to = (
                {name: n for t in tasks for name, n in t.region.optimum_sizes(t.layouts).items()},
                dict[Value, Value](),
            )
            sized = [t.sized(sizes, to) for t in tasks]
            timed = [[k.sized(sizes, to) for k in kernels] for kernels in programs.values()]
            with self.bench.ready(sources, lambda done: None) as loaded:
                self._put(digest, list(programs), self.bench.race(sized, timed, loaded, self.rounds, self.deadline))
        known = self.cache.get(digest)
        return {name: known[name] for name in programs if name in known}

    def _put(self, digest: str, names: Sequence[str], times: Sequence[int | None]) -> None:
        self.cache.put(digest, {name: ns for name, ns in zip(names, times) if ns is not None})
