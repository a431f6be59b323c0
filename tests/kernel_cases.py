"""Cases of kernel templates: programs of one region, declared by the tests of each template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.template import TEMPLATES, Template
from pelton.ir import dims
from pelton.ir.builder import Builder
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Value
from pelton.ir.text import parse
from pelton.ir.types import DType, TensorType
from pelton.ops import get
from pelton.plan.fuse import is_view
from pelton.plan.layout import Order
from pelton.plan.region import Region, cut
from pelton.tuning.candidates import template_rejection


@dataclass(frozen=True)
class Case:
    """A program of one region for a template.

    orders: input → its axes in memory, outermost first. arrays: inputs that may not be drawn at random.
    """

    name: str
    graph: Graph
    orders: Mapping[str, Order] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    backwards: tuple[str, ...] = ()  # inputs with negative strides
    half: DType = DType.F32  # in which weights may be stored
    level: str = ""  # the instruction set that the template needs, if not any
    want: Mapping[str, np.ndarray] | None = None  # the expected outputs by name, where the reference does not give them


CASES: dict[str, list[Case]] = {}  # template → its cases


def program(*nodes, **inputs: str | np.ndarray) -> Graph:
    """A graph of nodes (result names, op, operand names, attrs) over inputs (types as text) and constants (arrays)."""
    b = Builder()
    env: dict[str, Value] = {
        name: b.input(TensorType.parse(v), name) if isinstance(v, str) else b.constant(v, name)
        for name, v in inputs.items()
    }
    for results, op, operands, *attrs in nodes:
        names = results.split()
        made = b.emit(get(op), [env[n] for n in operands.split()], *attrs, names=names)
        env.update(zip(names, made))
    ends = [name for results, *_ in nodes for name in results.split()]
    read = {n for _, _, operands, *_ in nodes for n in operands.split()}
    return b.graph([env[n] for n in ends if n not in read or n.startswith("out")])


def named(*parts) -> str:
    """The name of a case from what sets it apart; parts that are empty, False or None are left out."""
    given = [p for p in parts if p is not None and p is not False and p != "" and p != ()]
    return "-".join("x".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in given)


def region_of(graph: Graph) -> Region:
    return cut(graph, graph.nodes, tuple(n for n in graph.nodes if n.op.scalar is None and not is_view(n)))


def drawn(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a case."""
    rng = np.random.default_rng(seed)
    out = {}
    for v in case.graph.inputs:
        dtype, shape = v.type.dtype, v.type.shape
        if v.name in case.arrays:
            a = case.arrays[v.name]
        elif dtype is DType.BOOL:
            a = rng.random(shape) < 0.5
        elif dtype.is_integer:
            a = rng.integers(-5 if dtype.is_signed else 0, 6, shape)
        else:
            a = rng.standard_normal(shape)
        out[v.name] = np.asarray(a).astype(dtype.numpy).reshape(shape)
    return out


def settled(case: Case) -> Case:
    """A case whose program rounds on the way, with inputs by which nothing is so near a tie that it rounds otherwise in
    f32 than in float64."""
    for seed in range(100):
        inputs, rng = drawn(case, seed), np.random.default_rng(0)
        want = evaluate(case.graph, inputs, round=False)
        for _ in range(8):
            noisy = {k: a * (1 + 1e-6 * rng.standard_normal(a.shape)) for k, a in inputs.items()}
            got = evaluate(case.graph, noisy, round=False)
            if any(np.abs(got[k] - want[k]).max() > 1e-5 * np.abs(want[k]).max() for k in want):
                break
        else:
            return replace(case, arrays=inputs)
    raise AssertionError(f"all inputs of {case.name} lie near ties")


def walk(*names: str) -> list:
    """(template, case) for every case declared for these templates, as parameters of a test."""
    import pytest

    return [pytest.param(TEMPLATES[n], c, id=f"{n}-{c.name}") for n in names for c in CASES.get(n, [])]


def varying(
    inputs: str, *body: str, order: Order = (), arrays: Mapping[str, np.ndarray] | None = None, **constants: np.ndarray
) -> Case:
    """A case with dynamic dimensions n, m and long: tuned for 1, for 9 and, without a maximum, for 3."""
    returned = body[-1].partition("=")[0]
    text = "\n".join(
        [f"graph main[n: 1..1..64, m: 1..9..64, long: 1..3..]({inputs}) {{", *body, f"return {returned}", "}"]
    )
    return Case(
        named("varying", inputs, body[0].partition("= ")[2], order),
        parse(text, constants),
        dict(x=order) if order else {},
        arrays or {},
    )


def declare(template: str, *cases: Case) -> None:
    CASES.setdefault(template, []).extend(cases)


def symbolic(
    graph: Graph,
    template: Template | None = None,
    varies: Callable[[int], tuple[int, int, int]] = lambda d: (max(1, d - 2), d, 4096),
) -> Graph:
    """The program with every size of its inputs as a symbol, where program and template allow; equal sizes share one.

    varies: a size to the minimum, optimum and maximum of its symbol.
    """
    fixed: set[int] = {0, 1}
    for size in sorted({d for v in graph.inputs for d in v.type.shape} - fixed):
        try:
            varying = _with_symbols(graph, fixed | {d for v in graph.inputs for d in v.type.shape if d > size}, varies)
            if template is not None and template_rejection(template, region_of(varying)) is not None:
                fixed.add(size)
        except (ValueError, TypeError):
            fixed.add(size)
    return _with_symbols(graph, fixed, varies)


def _with_symbols(graph: Graph, fixed: set[int], varies: Callable[[int], tuple[int, int, int]]) -> Graph:
    b = Builder(graph.name)
    to = {
        v: b.input(
            v.type.with_shape(d if d in fixed else dims.symbol(f"s{d}", *varies(d)) for d in v.type.shape), v.name
        )
        for v in graph.inputs
    }
    to |= {v: b.constant(a, v.name) for v, a in graph.constants.items()}
    for n in graph.nodes:
        to |= zip(n.outputs, b.emit(n.op, [to[v] for v in n.inputs], n.attrs, names=[v.name for v in n.outputs]))
    return b.graph([to[v] for v in graph.outputs])
