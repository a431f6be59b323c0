"""Matrix products, convolutions, pointwise loops and copies; for all kernels: coverage by walks, compiling files, and
detection of wrong ones."""

import importlib
from pathlib import Path

import machines
import numpy as np
import pytest
from kernel_harness import (
    CASES,
    TARGET,
    TARGETS,
    Case,
    check,
    check_dynamic,
    check_on,
    compiler,
    declare,
    longs,
    named,
    picks,
    program,
    region_of,
    varying,
    walk,
)

from pelton.ir.dims import is_known
from pelton.ir.graph import Node, Value
from pelton.ir.types import DType
import pelton.native
from pelton.codegen.template import SOURCES, TEMPLATES, Kernel, Template
from pelton.ops import get

NATIVE = Path(pelton.native.__file__).parent
LAST = dict(x=(0, 2, 3, 1), z=(0, 2, 3, 1))


def pieces(of, axis, *sizes):
    """Slices of a value that lie side by side."""
    ends = np.cumsum(sizes).tolist()
    return [
        (f"out{e}", "slice", of, dict(starts=(e - n,), ends=(e,), axes=(axis,), steps=(1,)))
        for n, e in zip(sizes, ends)
    ]


RESIDUAL = [("s", "add", "y z"), ("out", "relu", "s")]


def conv(shape, channels, kernel, strides=(1, 1), pads=None, dilations=(1, 1), group=1, tail=(), **more):
    rng = np.random.default_rng(0)
    w = (
        rng.standard_normal((channels, shape[1] // group, *kernel)) / np.sqrt(shape[1] // group * np.prod(kernel))
    ).astype(np.float32)
    b = rng.standard_normal(channels).astype(np.float32)
    attrs = dict(
        strides=strides,
        pads=pads if pads is not None else tuple(k // 2 for k in kernel) * 2,
        dilations=dilations,
        group=group,
    )
    graph = program(("y", "convolution", "x w b", attrs), *tail, x=f"f32{list(shape)}", w=w, b=b, **more)
    return Case(
        named(shape, channels, kernel, strides, dilations, group, tail and "tail"),
        graph,
        LAST if len(kernel) == 2 else dict(x=(0, 2, 1)),
    )


def fed(case, *, bias=True, order=None):
    """The same with filters, and perhaps a bias, that are inputs."""
    graph, named_ = case.graph, {v.name: v for v in case.graph.constants}
    inputs = [named_[n] for n in ("w", "b") if n == "w" or bias]
    graph = graph.replace(
        inputs=(*graph.inputs, *inputs), constants={v: a for v, a in graph.constants.items() if v not in inputs}
    )
    return Case(case.name + "-fed", graph, {**case.orders, **({"w": order} if order else {})})


def product(name, a, b, tail=(), orders=None, **more):
    rng = np.random.default_rng(0)
    b = rng.standard_normal(b).astype(np.float32) if isinstance(b, tuple) else b
    return Case(name, program(("y", "matmul", "a b", {}), *tail, a=a, b=b, **more), orders or {})


THREES = [
    conv((1, 13, 14, 15), 19, (3, 3)),
    conv((2, 16, 9, 7), 35, (3, 3), tail=RESIDUAL, z="f32[2, 35, 9, 7]"),
    conv((1, 8, 5, 21), 9, (3, 3), pads=(0, 2, 1, 0)),
    conv((1, 9, 7, 8), 27, (3, 3), tail=[("s", "relu", "y"), *pieces("s", 1, 5, 3, 19)]),
]
declare("winograd", *THREES)
declare(
    "conv",
    *THREES,
    conv((1, 3, 23, 21), 13, (7, 7), (2, 2)),
    conv((2, 5, 9, 7), 19, (3, 3), (2, 1), (0, 1, 2, 0), (2, 2)),
    conv((1, 12, 9, 11), 24, (5, 2), group=3, pads=(2, 0, 1, 1)),
    conv((1, 6, 8, 7), 27, (3, 3), (2, 2), group=3, tail=pieces("y", 1, 5, 3, 19)),
    conv((2, 5, 31), 7, (4,), (3,), (2, 1), (1,)),
    fed(conv((2, 5, 31), 7, (4,), (3,), (2, 1), (1,))),
    fed(conv((2, 13, 9, 7), 19, (1, 1), tail=[("s", "relu", "y"), *pieces("s", 1, 5, 14)]), order=(2, 0, 1, 3)),
    fed(conv((2, 12, 9, 11), 38, (5, 2), group=2, pads=(2, 0, 1, 1)), bias=False),
)
declare(
    "conv_planar",
    *(
        Case(c.name, c.graph)
        for c in (  # images in row-major order
            conv((2, 3, 23, 21), 13, (7, 7), (2, 2)),
            conv((1, 3, 12, 33), 35, (3, 3), tail=RESIDUAL, z="f32[1, 35, 12, 33]"),
            conv((1, 4, 9, 8), 27, (3, 2), (2, 3), (0, 1, 2, 2), tail=[("s", "relu", "y"), *pieces("s", 1, 5, 3, 19)]),
            conv((1, 2, 11, 13), 7, (3, 3), (1, 2), (3, 0, 3, 4), (3, 2)),
            conv((1, 3, 48, 33), 40, (16, 16), (16, 16), (0, 0, 0, 0)),
            conv((2, 1, 19, 5), 8, (5, 5), (1, 1), (7, 6, 0, 0)),
            conv((1, 3, 11, 1), 9, (3, 1), pads=(1, 0, 1, 0)),
        )
    ),
)
declare(
    "depthwise",
    conv((1, 35, 13, 12), 35, (3, 3), group=35, tail=RESIDUAL, z="f32[1, 35, 13, 12]"),
    conv((2, 13, 9, 11), 13, (5, 5), (2, 2), group=13),
    # blocks that reach over either edge, and over both
    conv((1, 21, 3, 14), 21, (3, 11), group=21, pads=(1, 5, 1, 4)),
    conv((1, 18, 5, 4), 18, (3, 7), group=18),
    conv((1, 24, 9, 9), 24, (3, 3), group=24, pads=(2, 2, 2, 2), dilations=(2, 2), tail=pieces("y", 1, 16, 8)),
)
declare(
    "gemm",
    conv((2, 24, 9, 7), 19, (1, 1), tail=RESIDUAL, z="f32[2, 19, 9, 7]"),
    conv((2, 24, 7, 7), 27, (1, 1), tail=[("out", "add", "y z"), *pieces("out", 1, 5, 3, 19)], z="f32[2, 27, 7, 7]"),
    conv((1, 24, 9, 7), 64, (1, 1), tail=[("s", "relu", "y"), *pieces("s", 1, 24, 40)]),
    product("pieces", "f32[2, 7, 19]", (19, 27), pieces("y", 2, 1, 7, 19)),
    product("packed", "f32[2, 3, 7, 500]", (500, 37), [("s", "add", "y c"), ("out", "gelu", "s")], c="f32[37]"),
    product("rows", "f32[1, 64]", (64, 10)),
    product("batched", "f32[2, 3, 7, 19]", "f32[3, 19, 13]"),
    product("shared", "f32[2, 3, 7, 19]", "f32[19, 13]"),
    product("stacked-weights", "f32[3, 7, 19]", (3, 19, 33)),
    product("turned", "f32[2, 13, 19]", "f32[2, 19, 21]", orders=dict(b=(0, 2, 1))),
)
declare(
    "gemm",
    Case(
        "left-constant",
        program(("y", "matmul", "a b"), a=np.arange(133, dtype=np.float32).reshape(7, 19) / 99, b="f32[2, 19, 37]"),
    ),
)
declare(
    "few",
    product("one", "f32[1, 64]", "f32[64, 170]", [("s", "add", "y c"), ("out", "gelu", "s")], c="f32[170]"),
    product("vector", "f32[1, 64]", "f32[64, 1]"),
    product("four", "f32[4, 19]", "f32[19, 37]"),
    product("batched", "f32[2, 3, 3, 19]", "f32[3, 19, 13]", [("z", "relu", "y")]),
    product("turned", "f32[2, 3, 37]", "f32[2, 37, 21]", orders=dict(b=(0, 2, 1))),
    product("turned-wide", "f32[1, 130]", "f32[130, 700]", orders=dict(b=(1, 0))),
    product("wide", "f32[2, 130]", "f32[130, 1500]"),
    product("pieces", "f32[3, 19]", "f32[19, 27]", pieces("y", 1, 1, 7, 19)),
    varying("%a: f32[2, m], %b: f32[m, n]", "%y = matmul(%a, %b)"),
    varying("%a: f32[n, 1, m], %b: f32[n, m, m]", "%y = matmul(%a, %b)"),
)
declare(
    "pointwise",
    Case("scale", program(("s", "mul", "x y"), ("out", "sigmoid", "s"), x="f32[2, 5, 7, 9]", y="f32[5, 1, 1]"), LAST),
    Case(
        "types",
        program(
            ("c", "less", "x y"),
            ("d", "cast", "c", dict(to=DType.I64)),
            ("e", "where", "c x y"),
            x="f32[3, 37]",
            y="f32[37]",
        ),
    ),
    Case(
        "integers",
        program(("s", "div", "x y"), ("out", "mod", "s y"), x="i64[5, 13]", y="i64[5, 13]"),
        arrays=dict(y=np.arange(1, 66)),
    ),
    Case("half", program(("s", "add", "x y"), ("out", "exp", "s"), x="f16[5, 13]", y="f16[13]")),
    Case("turned-operand", program(("out", "add", "x y"), x="f32[5, 13]", y="f32[5, 13]"), dict(y=(1, 0))),
    *(
        Case(f"backwards-{type}", program(("y", "copy", "x"), x=type), dict(x=order), backwards=("x",))
        for type, order in (("f32[3, 5, 19]", (0, 1, 2)), ("bool[3, 19]", (0, 1)), ("i64[3, 19]", (1, 0)))
    ),
)
declare(
    "transpose",
    *(
        Case(named(type, order), program(("y", "copy", "x"), x=type), dict(x=order))
        for type, order in (
            ("f32[2, 33, 7, 9]", (0, 2, 3, 1)),
            ("f32[13, 27, 9]", (2, 0, 1)),
            ("i64[19, 5]", (1, 0)),
            ("u8[3, 19, 5]", (0, 2, 1)),
        )
    ),
)


@pytest.mark.parametrize(
    "template, case", walk("winograd", "conv", "conv_planar", "depthwise", "gemm", "few", "pointwise")
)
def test_kernel(template, case):
    check(template, case)


@pytest.mark.parametrize(
    "template, case",
    [
        ("gemm", product("rows", "f32[24, 19]", (19, 37))),
        ("gemm", product("middle", "f32[2, 7, 250]", "f32[2, 250, 16]")),
        ("conv", conv((1, 5, 1, 24), 21, (3, 3))),
        ("conv", conv((1, 70, 1, 24), 7, (1, 5))),
        ("depthwise", conv((1, 11, 3, 24), 11, (3, 3), group=11)),
        ("depthwise", conv((1, 8, 9, 4), 8, (5, 5), group=8)),
        ("conv_planar", conv((1, 3, 1, 4), 9, (3, 3))),
        ("winograd", conv((1, 8, 13, 12), 9, (3, 3))),
    ],
)
def test_every_rest(template, case):
    """What is left after the whole tiles is a number of its own in the code."""
    assert check_dynamic(TEMPLATES[template], case, most=2, more=range(-2, 10)) >= 12


class RowMajor(Template):
    """A template that writes its output row-major, whatever it would rather do: a copy that turns axes keeps the order
    of its input otherwise."""

    def __init__(self, inner: Template):
        self.inner, self.name = inner, inner.name
        self.rejection, self.fits, self.copy_order, self.tactics, self.emit = (
            inner.rejection,
            inner.fits,
            inner.copy_order,
            inner.tactics,
            inner.emit,
        )


@pytest.mark.parametrize("template, case", walk("transpose"))
def test_copies_that_turn_axes(template, case):
    check(RowMajor(template), case)


def test_every_template_has_cases():
    """Files named test_kernels_*.py declare theirs when they are imported."""
    for path in Path(__file__).parent.glob("test_kernels_*.py"):
        importlib.import_module(path.stem)
    assert sorted(TEMPLATES) == sorted(CASES), "a template needs cases under its name, and a case a template"


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, t in TEMPLATES.items() if t.dynamic])
def test_every_case_with_sizes_that_a_run_decides(name):
    for path in Path(__file__).parent.glob("test_kernels_*.py"):
        importlib.import_module(path.stem)
    for case in CASES[name]:
        check_dynamic(TEMPLATES[name], case)


@pytest.mark.slow
@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t is not TARGET], ids=lambda t: t.isa)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_case_on_other_levels(name, target):
    for path in Path(__file__).parent.glob("test_kernels_*.py"):
        importlib.import_module(path.stem)
    for case in CASES[name]:
        check_on(target, TEMPLATES[name], case, 1)


EXACTLY = ("winograd", "winograd_half", "conv", "conv_planar", "depthwise", "gemm", "gemm_bf16", "few")


# whose cases have some
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[picks] * n.endswith("_int8_sparse")) for n in TEMPLATES if n not in EXACTLY],
)
def test_slices_are_written_to_places_of_their_own_or_refused(name):
    for path in Path(__file__).parent.glob("test_kernels_*.py"):
        importlib.import_module(path.stem)
    for case in CASES[name]:
        (*_, y), taken = case.graph.outputs, 0
        for axis in (a for a, n in enumerate(y.type.shape) if is_known(n) and n > 1):
            k = y.type.shape[axis] - 1
            cuts = [dict(starts=(s,), ends=(e,), axes=(axis,), steps=(1,)) for s, e in ((0, k), (k, k + 1))]
            slices = [
                Node(get("slice"), (y,), a, (Value(get("slice").infer_types((y.type,), a)[0], f"cut{i}"),))
                for i, a in enumerate(cuts)
            ]
            graph = case.graph.replace(nodes=(*case.graph.nodes, *slices), outputs=tuple(n.output for n in slices))
            if TEMPLATES[name].rejection(region_of(graph)) is None:
                taken += check(TEMPLATES[name], Case(f"{case.name}-cut{axis}", graph, case.orders, case.arrays), 1)
        if taken:
            break


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize(
    "path", [p for p in sorted(SOURCES.glob("*.c")) if "KERNEL" in p.read_text()], ids=lambda p: p.stem
)
def test_kernel_files_compile_by_themselves(path, isa):
    name, made = f"k_{path.stem}", compiler(isa, machines.Exact)
    made.link(made.objects({name: path.read_text().replace("KERNEL", name)}))


@pytest.mark.parametrize("path", sorted((*SOURCES.glob("*.[ch]"), *NATIVE.glob("*.[ch]"))), ids=lambda p: p.name)
def test_indices_are_as_wide_on_every_target(path):
    """`idx` in kernels and in what walks their tiles: a `long` has 32 bits on some."""
    assert not longs(path.read_text())


def test_a_long_would_be_noticed():
    assert longs("void f(const args *a, long begin) { return 1L << n; } // as long as it lasts") == ["long", "1L"]
    assert longs("enum : idx { N = 5, M = 7LL }; const u64 m = 1ull; /* so long */ // 5L\nint along_it = 0xL;") == []
    case = Case("copied", program(("y", "copy", "x"), x="f32[37]"))
    with pytest.raises(AssertionError, match="uses `long`"):
        check(Copying("for (long i = begin; i < end; i++) y[i] = x[i];"), case)


class Copying(Template):
    """y = x, by whatever C stands between the loads."""

    name = "copying"

    def __init__(self, body: str):
        self.body = body

    def rejection(self, region):
        return None

    def fits(self, region, value, layouts):
        return layouts[value][-1] == 1

    def emit(self, region, layouts, tactic, target):
        n = region.output.type.size
        source = (
            '#include "vec.h"\nvoid k_copying(const args *a, idx begin, idx end, void *scratch) {\n    const float *x ='
            " a[0].p; float *y = a[1].p;\n"
        )
        source += f"    {self.body}\n}}\n"
        return Kernel(source, "k_copying", (region.body.inputs[0], region.output), n, scratch=64)


@pytest.mark.parametrize(
    "body, complaint",
    [
        ("for (idx i = begin; i < end; i++) y[i] = x[i];", None),
        ("for (idx i = begin; i < end; i++) y[i] = x[i] * 1.001f;", "is more than"),
        ("for (idx i = begin; i < end; i++) y[i] = i == 5 ? 0.0f / 0.0f : x[i];", "NaN misplaced"),
        ("for (idx i = begin; i < end; i++) y[i] = x[i]; if (begin == 0) y[end] = 1;", "touched memory"),
        pytest.param(
            "for (idx i = begin; i < end; i++) y[i] = x[i]; float z = ((volatile float *)x)[-1];",
            "touched memory",
            marks=pytest.mark.skipif(TARGET.level.is_wasm, reason="all memory of a module can be read"),
        ),
        ("for (idx i = begin; i < end; i++) y[i] = x[i]; ((float *)scratch)[16] = 1;", "touched memory"),
        ("for (idx i = begin; i < end; i++) y[i] = x[i]; ((float *)x)[0] = 1;", "was written"),
        (
            "for (idx i = begin; i < end; i++) y[i] = x[i] * (end - begin > 1 ? 1.0f : 1.0000001f);",
            "depends on how tiles are grouped",
        ),
    ],
    ids=["right", "inexact", "nan", "writes-behind", "reads-before", "scratch", "writes-input", "tiles"],
)
def test_the_harness_finds_a_wrong_kernel(body, complaint):
    case = Case("copied", program(("y", "copy", "x"), x="f32[37]"))
    if complaint is None:
        assert check(Copying(body), case) == 2
    else:
        with pytest.raises(AssertionError, match=complaint):
            check(Copying(body), case)


def test_the_harness_finds_what_is_written_between_rows():
    """In memory with gaps, a kernel that takes the output for dense writes where nothing of it lies."""
    case = Case("rows", program(("y", "copy", "x"), x="f32[3, 7]"))
    with pytest.raises(AssertionError, match="memory around|is more than|NaN"):
        check(Copying("for (idx i = begin; i < end; i++) y[i] = x[i];"), case, gaps=True)


def test_tactics_have_names_that_parse():
    from kernel_harness import laid

    from pelton.ir.graph import symbols
    from pelton.codegen.template import Tactic

    for name, cases in CASES.items():
        case = next(c for c in cases if not symbols(c.graph))
        region = region_of(case.graph)
        for tactic in TEMPLATES[name].tactics(region, laid(TEMPLATES[name], region, case, 0), TARGET):
            assert Tactic.parse(tactic.name) == tactic
