"""Walks GPU templates on a program of one region, in dense and in gapped memory, under Triton's interpreter against the
float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import triton_interpreter
from compare import assert_close
from kernel_harness import Case, drawn, laid, region_of, sample, symbolic

from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Value, symbols, optimum_sizes
from pelton.ir.types import DType
from pelton.codegen.template import Kernel, Packed, Tactic, Target, Template
from pelton.codegen.triton.emit import computable
from pelton.codegen.triton.templates.library import GPU_TEMPLATES  # noqa: F401  (declares)
from pelton.plan.layout import Strides, dense, row_major, span
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace
from pelton.tuning.candidates import template_rejection

TARGET = Target(isa="sm_90", lanes=32, threads=4)
POISON = {"f": np.nan, "i": 77, "u": 77}
# what `triton_interpreter.run` is, by which kernels run unless another is given
Run = Callable[..., list[np.ndarray]]


class Memory:
    """A flat array, poisoned all around the elements of a value, and where its first one is."""

    def __init__(self, array: np.ndarray, strides: Strides, filled: bool):
        kind = {"bool": "uint8", "bfloat16": "uint16"}.get(array.dtype.name, array.dtype.name)
        self.name = {"bool": "uint8"}.get(array.dtype.name, array.dtype.name)
        if not computable(DType.of(array)):
            kind = self.name = f"uint{8 * array.dtype.itemsize}"
        around = max(8, 16 // array.itemsize)  # elements: a multiple of 16 bytes
        self.first = around + sum((d - 1) * -s for d, s in zip(array.shape, strides) if s < 0)
        size = span(array.shape, tuple(map(abs, strides)))
        poison = np.full(
            size + 2 * around, np.float32(POISON.get(np.dtype(kind).kind, 77)) if self.name != "bfloat16" else np.nan
        )
        flat = poison.astype(array.dtype if self.name == "bfloat16" else kind)
        self.array, self.shape, self.strides = flat.view(kind), array.shape, strides
        if filled:
            self.view(array.dtype)[...] = array
        self.before = self.array.copy()

    def view(self, dtype: np.dtype) -> np.ndarray:
        return np.lib.stride_tricks.as_strided(
            self.array.view(dtype)[self.first :], self.shape, [s * dtype.itemsize for s in self.strides]
        )

    def left_alone(self) -> bool:
        """Whether nothing but its elements was written."""
        own = np.zeros(self.array.size, bool)
        np.lib.stride_tricks.as_strided(own[self.first :], self.shape, self.strides)[...] = True
        return self.array[~own].tobytes() == self.before[~own].tobytes()


def interpreted(
    region: Region,
    kernel: Kernel,
    lay: Mapping[Value, Strides],
    inputs: Mapping[str, np.ndarray],
    about: str,
    run: Run = triton_interpreter.run,
) -> dict[Value, np.ndarray]:
    """The outputs of a kernel."""
    memory: dict[object, Memory] = {}
    for x in kernel.operands:
        if isinstance(x, Packed):
            a = np.zeros(x.shape, x.dtype.numpy)
            x.fill(a)
            memory[x] = Memory(a, dense(x.shape), True)
        elif isinstance(x, KernelWorkspace):
            memory[x] = Memory(np.zeros(x.shape, x.dtype.numpy), dense(x.shape), x.zero)
        elif x not in memory:
            written = x in region.body.outputs
            if written:
                a = np.zeros(x.type.shape, x.type.dtype.numpy)
            else:
                a = inputs[x.name] if x in region.body.inputs else region.body.constants[x]
            memory[x] = Memory(np.asarray(a), lay[x], not written)
    left = run(
        kernel.source,
        kernel.symbol,
        [(memory[x].array, memory[x].name, memory[x].first) for x in kernel.operands],
        kernel.dims,
        kernel.tiles,
        kernel.phases,
    )
    for x, array in zip(kernel.operands, left):
        memory[x].array = array
    for x, m in memory.items():
        if not isinstance(x, KernelWorkspace) and x not in region.body.outputs:
            assert m.array.tobytes() == m.before.tobytes(), f"{about} writes to what it should read"
    assert all(m.left_alone() for m in memory.values()), f"{about} writes where it should not"
    assert not any(
        memory[x].view(x.dtype.numpy).any() for x in kernel.operands if isinstance(x, KernelWorkspace) and x.zero
    ), f"{about} leaves counts behind"
    return {v: memory[v].view(v.type.dtype.numpy) for v in region.body.outputs}


def tried(
    template: Template, case: Case, most: int = 1, target: Target = TARGET
) -> Iterator[tuple[Kernel, Mapping[Value, Strides], str]]:
    """The kernels by which a case is checked, in dense and in gapped memory: so many tactics of a template, with their
    layouts, and in words."""
    region = region_of(case.graph)
    reason = template_rejection(template, region)
    assert reason is None, f"{template.name} refuses {case.name}: {reason}"
    for gap in (0, 5):
        lay = laid(template, region, case, gap)
        for tactic in sample(list(template.tactics(region, lay, target)), most, f"{case.name} {gap}"):
            assert template.family(tactic) is not None and Tactic.parse(tactic.name) == tactic
            yield template.emit(region, lay, tactic, target), lay, f"{case.name} by {tactic.name}, gap {gap}"


def check(
    template: Template,
    case: Case,
    most: int = 1,
    seed: int = 0,
    target: Target = TARGET,
    run: Run = triton_interpreter.run,
) -> list[Kernel]:
    """Runs a case by tactics of a template; AssertionError where one is wrong. Gives the kernels."""
    region, inputs, kernels = region_of(case.graph), drawn(case, seed), []
    want = case.want or evaluate(case.graph, inputs, round=False)
    for kernel, lay, about in tried(template, case, most, target):
        got = interpreted(region, kernel, lay, inputs, about, run)
        for v in region.body.outputs:
            assert_close(got[v], want[v.name].astype(v.type.dtype.numpy), about=f"{about} %{v.name}")
        kernels.append(kernel)
    return kernels


def check_dynamic(template: Template, case: Case) -> Kernel:
    """One kernel for sizes that a run decides, at the case's own and at some more; and, where sizes are usually one, at
    the case's own."""
    if not symbols(case.graph):
        small = symbolic(case.graph, template, lambda d: (1, 1, d))
        if optimum_sizes(small) and template_rejection(template, region_of(small)) is None:
            checked(template, replace(case, graph=small), {name: int(name[1:]) - 1 for name in optimum_sizes(small)})
    graph = case.graph if symbols(case.graph) else symbolic(case.graph, template)
    assert optimum_sizes(graph), f"{template.name} takes no varying sizes in {case.name}"
    return checked(
        template, replace(case, graph=graph), *({name: more for name in optimum_sizes(graph)} for more in (0, 3))
    )


def check_empty(template: Template, case: Case) -> int:
    """One kernel for sizes that may be none, each of them none for once, but for those of given arrays. Returns how
    many runs there were."""
    graph = symbolic(case.graph, template, lambda d: (0, d, 4096))
    kept = {str(d) for v in graph.inputs if v.name in case.arrays for d in v.type.shape}
    usual = optimum_sizes(graph)
    ways = [{name: -size if name == none else 0 for name, size in usual.items()} for none in usual if none not in kept]
    checked(template, replace(case, graph=graph), *ways)
    return len(ways)


def checked(template: Template, case: Case, *ways: Mapping[str, int]) -> Kernel:
    """One kernel for sizes that a run decides, at so much more than the usual ones."""
    graph = case.graph
    region, usual = region_of(graph), optimum_sizes(graph)
    lay = laid(template, region, case, 0)
    to: dict[Value, Value] = {}
    tactic = next(iter(template.tactics(region.sized(usual, to), lay.sized(usual, to), TARGET)))
    kernel = template.emit(region, lay, tactic, TARGET)
    for more in ways:
        sizes, to = {name: size + more[name] for name, size in usual.items()}, {}
        now, about = region.sized(sizes, to), f"{case.name} by {tactic.name} for {usual} + {more}"
        inputs = drawn(replace(case, graph=now.body), abs(sum(more.values())))
        want = evaluate(now.body, inputs, round=False)
        got = interpreted(now, kernel.sized(sizes, to), lay.sized(sizes, to), inputs, about)
        for v in now.body.outputs:
            assert_close(got[v], want[v.name].astype(v.type.dtype.numpy), about=f"{about} %{v.name}")
    return kernel


def nhwc(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


__all__ = ["Case", "TARGET", "check", "check_dynamic", "check_empty", "nhwc", "row_major"]
