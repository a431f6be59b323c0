"""Scatters, determinants and decision trees: kernels with data-dependent accesses."""

import numpy as np
import pytest
from draw import operands
from emulator import here
from kernel_harness import TARGET, Case, check, declare, laid, named, program, region_of, varying, walk

from pelton.system.cache import Cache
from pelton.ir.types import TensorType
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.codegen.template import TEMPLATES
from pelton.ops import get
from pelton.plan.placed import Task
from pelton.tuning.canaries import Guard
from pelton.tuning.measure import CpuBench


def scattering(op, x, indices, updates, array=None, orders=None, **attrs):
    """Indices that may meet, also where they replace: as the reference, the last one counts."""
    shape, where = TensorType.parse(x).shape, TensorType.parse(indices).shape
    bound = np.array(shape[: where[-1]]) if op == "scatter_nd" else np.array(shape[attrs["axis"]])
    if array is None:
        array = np.random.default_rng(0).integers(-bound, bound, where)
    return Case(
        named(op, x, indices, *attrs.values(), *([tuple(orders)] if orders else [])),
        program(("y", op, "x i u", attrs), x=x, i=indices, u=updates),
        orders or {},
        dict(i=array),
    )


JOINS = ("none", "add", "mul", "min", "max")
declare(
    "scatter",
    *(scattering("scatter_nd", "f32[5, 7, 33]", "i64[9, 2]", "f32[9, 33]", reduction=join) for join in JOINS),
    *(
        scattering("scatter_elements", "f32[5, 19]", "i64[5, 23]", "f32[5, 23]", axis=1, reduction=join)
        for join in JOINS
    ),
    scattering("scatter_elements", "f32[6, 3, 20]", "i32[9, 2, 17]", "f32[9, 2, 17]", axis=0, reduction="add"),
    scattering(
        "scatter_elements",
        "f32[3, 6, 20]",
        "i64[3, 4, 20]",
        "f32[3, 4, 20]",
        axis=1,
        reduction="none",
        orders=dict(u=(1, 0, 2), i=(2, 0, 1)),
    ),
    scattering("scatter_nd", "f32[40]", "i64[60, 1]", "f32[60]", reduction="add"),
    # large enough to be shared out
    scattering("scatter_nd", "f32[700, 40]", "i64[30, 1]", "f32[30, 40]", reduction="none"),
    scattering("scatter_elements", "f32[40, 700]", "i64[20, 700]", "f32[20, 700]", axis=0, reduction="max"),
    scattering(
        "scatter_nd", "f32[3, 4, 5]", "i64[2, 3, 1]", "f32[2, 3, 4, 5]", reduction="add", orders=dict(u=(0, 1, 3, 2))
    ),
    scattering("scatter_nd", "i64[9, 5]", "i64[4, 1]", "i64[4, 5]", reduction="max"),
    scattering("scatter_nd", "f16[9, 5]", "i32[4, 1]", "f16[4, 5]", reduction="mul"),
    scattering("scatter_nd", "f8e4m3fn[9, 5]", "i32[4, 1]", "f8e4m3fn[4, 5]", reduction="none"),
    scattering("scatter_elements", "bool[9, 5]", "i32[4, 5]", "bool[4, 5]", axis=0, reduction="none"),
    scattering("scatter_nd", "f32[5, 7]", "i64[1, 2]", "f32[1]", reduction="none"),
    varying(
        "%x: f32[n, m], %i: i64[m, 1], %u: f32[m, m]",
        '%y = scatter_nd(%x, %i, %u) {reduction="add"}',
        arrays=dict(i=np.resize([0, -1], (9, 1))),
    ),
    varying(
        "%x: f32[m, n, m], %i: i64[m, n, m], %u: f32[m, n, m]",
        '%y = scatter_elements(%x, %i, %u) {axis=2, reduction="mul"}',
    ),
)

# What lies outside of the tensor is left out.
declare(
    "scatter",
    Case(
        "outside",
        program(("y", "scatter_nd", "x i u", dict(reduction="none")), x="f32[3, 5]", i="i64[3, 1]", u="f32[3, 5]"),
        arrays=dict(x=np.zeros((3, 5)), i=np.array([[7], [1], [-4]]), u=np.ones((3, 5))),
        want=dict(y=np.array([[0.0] * 5, [1.0] * 5, [0.0] * 5])),
    ),
)

declare(
    "det",
    *(
        Case(named("det", x, order), program(("y", "det", "x"), x=x), dict(x=order) if order else {})
        for x, order in (
            ("f32[5, 5]", ()),
            ("f32[2, 3, 7, 7]", (1, 0, 3, 2)),
            ("f64[4, 9, 9]", ()),
            ("f32[3, 1, 1]", ()),
        )
    ),
    Case(
        "singular",
        program(("y", "det", "x"), x="f32[2, 3, 3]"),
        arrays=dict(x=np.array([np.ones((3, 3)), [[0, 1, 2], [3, 4, 5], [6, 7, 9]]])),
    ),
    varying("%x: f32[m, n, n]", "%y = det(%x)"),
)

declare(
    "coupled",
    *(
        Case(
            named("coupled", x, classes, order),
            program(("y", "coupled", "x", dict(classes=classes)), x=x),
            dict(x=order) if order else {},
            dict(x=np.random.default_rng(classes).uniform(0.02, 0.98, TensorType.parse(x).shape)),
        )
        for x, classes, order in (
            ("f32[37, 3]", 3, ()),
            ("f64[5, 1]", 2, ()),
            ("f32[9, 45]", 10, (1, 0)),
            ("f32[3, 7260]", 121, ()),
        )
    ),
    Case(
        "sure",
        program(("y", "coupled", "x", dict(classes=3)), x="f32[3, 3]"),
        arrays=dict(x=np.array([[0, 0, 1], [1, 1, 0.5], [0.3, np.nan, 0.2]])),
    ),
    varying("%x: f32[n, 6]", "%y = coupled(%x) {classes=4}"),
)


def forest(
    rows, features, trees, branches, targets, leaves=0, dtype="f32", nan=False, weights="f32", by_tree=False, **attrs
):
    """Trees of so many branches in all; each leaf holds one weight, or `leaves` of them are shared that hold several.
    by_tree: each tree has one target."""
    slots = trees + 2 * branches
    held = leaves or slots
    types = [
        f"{dtype}[{rows}, {features}]",
        f"{dtype}[{slots}]",
        f"i32[{slots}]",
        f"i32[{slots}]",
        f"i32[{trees}]",
        f"i32[{slots}]",
        f"i32[{held + 1}]",
        f"i32[{3 * held if leaves else held}]",
        f"{weights}[{3 * held if leaves else held}]",
    ]
    x, *tables = operands(get("trees"), tuple(map(TensorType.parse, types)), dict(targets=targets))
    if nan:
        x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    if by_tree:
        owner = np.arange(slots)
        branches = np.flatnonzero(tables[2] != owner - 1)
        for slot in branches[np.argsort(tables[2][branches])]:  # parents before their children
            owner[tables[2][slot] : tables[2][slot] + 2] = owner[slot]
        tables[4], tables[6] = np.arange(slots, dtype=np.int32), (owner % targets).astype(np.int32)
    names = ("threshold", "feature", "child", "depth", "leaf", "start", "target", "weight")
    if not nan:
        tables[1] = np.where(tables[1] < 0, ~tables[1], tables[1])
    graph = program(
        ("y", "trees", "x " + " ".join(names), dict(targets=targets, **attrs)), x=types[0], **dict(zip(names, tables))
    )
    told = named(
        "trees",
        (rows, features, trees, branches),
        targets,
        leaves,
        dtype,
        weights,
        nan and "nan",
        by_tree and "by_tree",
        *attrs.values(),
    )
    return Case(told, graph, arrays=dict(x=x))


declare(
    "trees",
    forest(1, 5, 3, 20, 1),
    forest(1, 5, 21, 300, 1),
    forest(37, 5, 9, 200, 1),
    forest(300, 9, 20, 400, 1),
    forest(3, 4, 1, 0, 1),
    forest(19, 5, 9, 100, 3, leaves=7),
    forest(19, 5, 9, 100, 4, leaves=9, join="max"),
    forest(8, 5, 4, 60, 1, join="min"),
    forest(21, 5, 9, 200, 1, nan=True),
    forest(21, 5, 9, 200, 2, dtype="f64", leaves=5),
    forest(1, 5, 37, 300, 1, parts=5),
    forest(19, 5, 23, 300, 3, leaves=9, join="max", parts=4),
    forest(3, 5, 4, 60, 1, weights="f64"),
    forest(3, 5, 4, 60, 2, leaves=5, weights="f64"),
    forest(3, 5, 4, 60, 1, dtype="f64"),
    forest(19, 5, 21, 300, 3, by_tree=True),
)


@pytest.mark.parametrize("template, case", walk("scatter", "coupled", "det", "trees"))
def test_against_the_reference(template, case):
    check(template, case)


@here
def test_trees_are_timed_with_their_own_nodes(tmp_path):
    """Other weights are any numbers while kernels race; walks down nodes that are any numbers would end outside of
    memory."""
    case, template = forest(3, 5, 21, 300, 1), TEMPLATES["trees"]
    region = region_of(case.graph)
    lay = laid(template, region, case, 0)
    kernel = template.emit(region, lay, next(iter(template.tactics(region, lay, TARGET))), TARGET)
    with ClangCompiler(TARGET.isa, Cache(tmp_path)) as compiler:
        bench = CpuBench(compiler, 1, 1 << 16, Guard(compiler, Cache(tmp_path)))
        with bench.ready({kernel.symbol: kernel.source}, lambda done: None) as loaded:
            (ns,) = bench.race([Task(region, lay)], [[kernel]], loaded, 2)
    assert ns > 0


@pytest.mark.parametrize(
    "table, place, wrong",
    [("child", 0, 4000), ("feature", 0, 9), ("leaf", 1, -1), ("target", 0, 1), ("start", 0, 5000)],
)
def test_trees_that_lead_out_of_their_tables_are_refused(table, place, wrong):
    case = forest(3, 5, 3, 20, 1)
    (v,) = (v for v in case.graph.constants if v.name == table)
    case.graph.constants[v][place] = wrong
    assert TEMPLATES["trees"].rejection(region_of(case.graph)) == "an index in its tables is out of bounds"
