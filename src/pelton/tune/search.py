"""Chooses a kernel for every task: from the timing cache, by measuring, or by the first guess."""
from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pelton.kernels.compile import Compiler
from pelton.kernels.template import TEMPLATES, Kernel, Tactic, Target, Template
from pelton.plan.place import Placed, Task
from pelton.plan.region import Region

from .cache import TimingCache
from .candidates import candidates
from .measure import Stopwatch

ROUNDS = {1: 3, 2: 4, 3: 7, 4: 12, 5: 25}              # level → rounds of timing
MOST = {0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 1000}        # level → tactics per template
MARGIN = 0.98                                          # a challenger must be this much faster than the one before it


@dataclass(frozen=True)
class Choice:
    """The kernel of a task, and what was measured for it (tactic name → ns; empty where nothing was)."""

    template: Template
    tactic: Tactic
    kernel: Kernel
    times: dict[str, int] = field(default_factory=dict)


def task_key(task: Task) -> str:
    """Text of what is computed and how its operands lie; equal keys share times."""
    region = task.what
    body = region.body
    lies = ";".join(",".join(map(str, task.layouts[v])) for v in (*body.inputs, *body.constants, *body.outputs))
    return f"{region.key}\n{lies}"


def select(placed: Placed, target: Target, compiler: Compiler, cache: TimingCache, *, level: int, strict: bool, budget: float | None,
           l3: int, progress: Callable[[str, int, int], None]) -> dict[int, Choice]:
    """Task number → choice, for every task that is a region."""
    deadline = None if budget is None else time.monotonic() + budget
    watch: Stopwatch | None = None
    known: dict[str, tuple[Template, Tactic, dict[str, int]]] = {}
    out: dict[int, Choice] = {}
    regions = [(i, t) for i, t in enumerate(placed.tasks) if isinstance(t.what, Region)]
    for done, (i, task) in enumerate(regions):
        progress("tune", done, len(regions))
        key = task_key(task)
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        if digest not in known:
            found = candidates(task.what, task.layouts, target, strict, MOST[level])
            if not found:
                raise AssertionError(f"no template runs {task.what.title()} in the layouts it was given")
            times = {name: ns for name, ns in cache.get(digest).items()}
            names = [t.name for _, t in found]
            late = deadline is not None and time.monotonic() > deadline
            missing = [n for n in names if n not in times]
            if level > 0 and len(found) > 1 and missing and not late:
                kernels = [t.emit(task.what, task.layouts, tactic, target) for t, tactic in found]
                code = compiler.link(compiler.objects({k.symbol: k.source for k in kernels}))
                watch = watch or Stopwatch(target.threads, l3)
                times = dict(zip(names, watch.time(task, placed, kernels, code, ROUNDS[level], deadline)))
                cache.put(digest, times)
            template, tactic = found[0]
            best = times.get(tactic.name)
            for t, c in found[1:]:
                ns = times.get(c.name)
                if best is not None and ns is not None and ns < best * MARGIN:
                    template, tactic, best = t, c, ns
            known[digest] = (template, tactic, {n: times[n] for n in names if n in times})
        template, tactic, times = known[digest]
        out[i] = Choice(template, tactic, template.emit(task.what, task.layouts, tactic, target), times)
    progress("tune", len(regions), len(regions))
    return out


def template_hash() -> str:
    """Stands for the kernel files and templates in cache keys."""
    import inspect

    from pelton.kernels.template import SOURCES
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    for name in sorted(TEMPLATES):
        digest.update(inspect.getsource(inspect.getmodule(type(TEMPLATES[name]))).encode())
    return digest.hexdigest()[:16]
