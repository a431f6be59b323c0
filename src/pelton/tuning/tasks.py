"""Tasks for the tuner: the key of their times, and their form at the sizes that they are tuned for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from pelton.codegen.c.templates.plugin import own_sources
from pelton.codegen.template import Kernel
from pelton.ir import dims
from pelton.ir.graph import Value
from pelton.plan.placed import Task
from pelton.plan.region import Region


def task_key(task: Task) -> str:
    """Returns the text of the region, the layouts of its operands and the sources of plugin kernels; tasks of equal
    keys share times."""
    return "\n".join(
        [task.region.key, ";".join(layout_texts(task)), *optimum_texts(task), *own_sources(task.region.anchor)]
    )


def layout_texts(task: Task) -> tuple[str, ...]:
    """Returns the layouts of a task's inputs, constants and outputs: strides, and a mark for zero padding."""
    body, layouts = task.region.body, task.layouts
    return tuple(
        ",".join(map(str, layouts[v])) + (" zero-padded" if v in layouts.zero_padded else "")
        for v in (*body.inputs, *body.constants, *body.outputs)
    )


def optimum_texts(task: Task) -> tuple[str, ...]:
    """Returns the optima of the dynamic dimensions that a task is tuned for."""
    return tuple(f"{name}={size}" for name, size in task.region.optimum_sizes(task.layouts).items())


def digest(task: Task) -> str:
    """Returns the key of a task in the timing cache."""
    return hashlib.sha256(task_key(task).encode()).hexdigest()[:32]


def at_optimum(task: Task, kernels: Sequence[Kernel]) -> tuple[Task, Sequence[Kernel]]:
    """Returns a task and its kernels at the optimum of dynamic dimensions."""
    return _at(task.region.optimum_sizes(task.layouts), task, kernels)


def at_several_sizes(task: Task, kernel: Kernel) -> Iterator[tuple[Task, Kernel]]:
    """Yields a task and its kernel at the optimum of dynamic dimensions, at their minimum, and at more than twice the
    optimum: the tiles and the memory of a kernel must fit each of them."""
    optimum, body = task.region.optimum_sizes(task.layouts), task.region.body
    bounds = [s for s in dims.symbols([list(v.type.shape) for v in (*body.inputs, *body.outputs)]) if s.name in optimum]
    for sizes in (
        optimum,
        optimum | {s.name: s.minimum for s in bounds},
        optimum | {s.name: min(2 * optimum[s.name] + 1, s.maximum) for s in bounds},
    ):
        sized, (known,) = _at(sizes, task, [kernel])
        yield sized, known


def _at(sizes: Mapping[str, int], task: Task, kernels: Sequence[Kernel]) -> tuple[Task, Sequence[Kernel]]:
    to = dict[Value, Value]()
    return (task.sized(sizes, to), [k.sized(sizes, to) for k in kernels]) if sizes else (task, kernels)


def is_of_plugin(task: Task) -> bool:
    """True if a task is a region of a plugin's node."""
    what = task.what
    return isinstance(what, Region) and what.anchor is not None and what.anchor.op.instance is not None
