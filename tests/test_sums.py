"""Products and convolutions with explicit types of sums and results: types, meaning, and matching templates."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pelton.codegen.template import templates
from pelton.compiler.stages import run_stages, start
from pelton.errors import BuildError
from pelton.ir.imported import Imported, Info
from pelton.ir.evaluate import evaluate
from pelton.ir.builder import Builder
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.text import parse, to_text
from pelton.ir.types import DType, TensorType
from pelton.ir.verify import verify
from pelton.ops import get
from pelton.options import Options
from pelton.passes import pipeline
from pelton.passes.decompose import decompose
from pelton.plan import region
from pelton.tuning.candidates import rejection

I8, U8, I32, I16, F32, F16 = (DType(n) for n in ("i8", "u8", "i32", "i16", "f32", "f16"))
POINT = dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))


def product(name: str, *types: str, **attrs) -> Graph:
    b = Builder()
    inputs = [b.input(TensorType.parse(t), f"x{i}") for i, t in enumerate(types)]
    return b.graph(b.emit(get(name), inputs, attrs, names=["y"]))


def fed(graph: Graph) -> dict[str, np.ndarray]:
    """The largest and smallest integers there are, and what is between."""
    rng = np.random.default_rng(0)
    found = {}
    for v in graph.inputs:
        of = v.type.dtype
        low, high = (int(of.lowest), int(of.highest) + 1) if of.bits < 32 and of.is_integer else (-999, 999)
        found[v.name] = rng.integers(low, high, v.type.shape).astype(of.numpy)
    return found


MATMULS = [
    ("[5, 7]", "[7, 3]"),
    ("[2, 1, 5, 7]", "[3, 7, 4]"),
    ("[13]", "[13]"),
    ("[13]", "[2, 13, 5]"),
    ("[58, 1025]", "[1025, 37]"),
    ("[1, 61]", "[61, 129]"),
    ("[3, 0]", "[0, 2]"),
]


@pytest.mark.parametrize("a, b", MATMULS)
@pytest.mark.parametrize(
    "of", [(I8, I8), (U8, U8), (U8, I8), (DType.I4, I8), (I16, I8)], ids=lambda p: "-".join(d.value for d in p)
)
@pytest.mark.parametrize("to", [None, F32, I16])
def test_products_of_integers_are_exact(a, b, of, to):
    graph = product("matmul", of[0].value + a, of[1].value + b, accumulate=I32, **({"to": to} if to else {}))
    verify(graph)
    x, w = fed(graph).values()
    sums = np.asarray(np.matmul(x.astype(np.int64), w.astype(np.int64))).astype(np.int32)
    want = sums.astype(to.numpy) if to else sums
    (found,) = evaluate(graph, fed(graph)).values()
    assert TensorType.of(found) == graph.outputs[0].type and found.tobytes() == want.tobytes()


def plain(x: np.ndarray, w: np.ndarray, b: np.ndarray, strides, pads, dilations, group: int) -> np.ndarray:
    """A convolution by its definition, in int64."""
    x, w, b = (a.astype(np.int64) for a in (x, w, b))
    x = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    each, rows = w.shape[1], w.shape[0] // group
    high, wide = ((x.shape[2 + i] - dilations[i] * (w.shape[2 + i] - 1) - 1) // strides[i] + 1 for i in range(2))
    y = np.zeros((x.shape[0], w.shape[0], high, wide), np.int64)
    for m in range(w.shape[0]):
        for i in range(high):
            for j in range(wide):
                met = x[
                    :,
                    m // rows * each : (m // rows + 1) * each,
                    i * strides[0] : i * strides[0] + dilations[0] * (w.shape[2] - 1) + 1 : dilations[0],
                    j * strides[1] : j * strides[1] + dilations[1] * (w.shape[3] - 1) + 1 : dilations[1],
                ]
                y[:, m, i, j] = (met * w[m]).sum(axis=(1, 2, 3)) + b[m]
    return y


@pytest.mark.parametrize(
    "x, w, attrs",
    [
        ("[2, 3, 11, 13]", "[8, 3, 3, 3]", dict(strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))),
        ("[1, 58, 5, 9]", "[31, 58, 1, 1]", POINT),
        ("[1, 6, 9, 10]", "[9, 2, 5, 2]", dict(strides=(2, 3), pads=(2, 0, 1, 1), dilations=(1, 2), group=3)),
    ],
)
@pytest.mark.parametrize("of", [(I8, I8), (U8, I8)], ids=lambda p: "-".join(d.value for d in p))
@pytest.mark.parametrize("to", [None, F32, F16])
def test_convolutions_of_integers_are_exact(x, w, attrs, of, to):
    filters = TensorType.parse("i8" + w).shape[0]
    graph = product(
        "convolution",
        of[0].value + x,
        of[1].value + w,
        f"i32[{filters}]",
        accumulate=I32,
        **attrs,
        **({"to": to} if to else {}),
    )
    verify(graph)
    want = plain(*fed(graph).values(), **{"group": 1, **attrs}).astype(np.int32)
    with np.errstate(over="ignore"):
        want = want.astype(to.numpy) if to else want
    (found,) = evaluate(graph, fed(graph)).values()
    assert TensorType.of(found) == graph.outputs[0].type and found.tobytes() == want.tobytes()


def test_sums_wrap_in_their_type():
    graph = product("matmul", "i16[1, 3]", "i16[3, 1]", accumulate=I32)
    (found,) = evaluate(
        graph, {"x0": np.full((1, 3), -32768, np.int16), "x1": np.full((3, 1), -32768, np.int16)}
    ).values()
    assert found.item() == (3 << 30) - (1 << 32)


def test_narrow_floats_are_summed_wide_and_rounded_once():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((5, 67)).astype(np.float16), rng.standard_normal((67, 3)).astype(np.float16)
    graph = product("matmul", "f16[5, 67]", "f16[67, 3]", accumulate=F32)
    (found,) = evaluate(graph, {"x0": a, "x1": b}).values()
    assert found.tobytes() == (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32).tobytes()
    (back,) = evaluate(
        product("matmul", "f16[5, 67]", "f16[67, 3]", accumulate=F32, to=F16), {"x0": a, "x1": b}
    ).values()
    assert back.dtype == np.float16


@pytest.mark.parametrize(
    "name, types, attrs, says",
    [
        ("matmul", ("i8[2, 3]", "u8[3, 2]"), {}, "one element type"),
        ("matmul", ("i8[2, 3]", "f32[3, 2]"), {"accumulate": F32}, "one element type"),
        ("matmul", ("i16[2, 3]", "i16[3, 2]"), {"accumulate": I8}, "cannot sum products of i16 in i8"),
        ("matmul", ("i8[2, 3]", "i8[3, 2]"), {"accumulate": F32}, "cannot sum products of i8 in f32"),
        ("matmul", ("f32[2, 3]", "f32[3, 2]"), {"accumulate": F16}, "cannot sum products of f32 in f16"),
        ("matmul", ("i8[2, 3]", "i8[3, 2]"), {"to": DType.BOOL}, "needs a numeric output type"),
        (
            "convolution",
            ("i8[1, 2, 3, 3]", "i8[2, 2, 1, 1]", "i8[2]"),
            {"accumulate": I32, **POINT},
            "one element type",
        ),
        ("convolution", ("i8[1, 2, 3, 3]", "u8[2, 2, 1, 1]", "i8[2]"), POINT, "one element type"),
    ],
)
def test_types_that_do_not_fit_are_refused(name, types, attrs, says):
    with pytest.raises(ValueError, match=says):
        product(name, *types, **attrs)


def test_verify_judges_them():
    graph = product("matmul", "i8[2, 3]", "i8[3, 2]", accumulate=I32)
    (node,) = graph.nodes
    wrong = Value(TensorType.parse("i8[2, 2]"), "y")
    with pytest.raises(BuildError, match=r"must have outputs i32\[2, 2\]"):
        verify(graph.replace(nodes=(Node(node.op, node.inputs, node.attrs, (wrong,)),), outputs=(wrong,)))


def test_texts_say_what_is_not_the_default():
    typed = product("matmul", "i8[2, 3]", "i8[3, 2]", accumulate=I32, to=F32)
    assert "%y: f32[2, 2] = matmul(%x0, %x1) {accumulate=i32, to=f32}" in to_text(typed)
    assert to_text(parse(to_text(typed))) == to_text(typed)
    assert "matmul(%x0, %x1)\n" in to_text(product("matmul", "f32[2, 3]", "f32[3, 2]"))
    conv = to_text(product("convolution", "f32[1, 2, 3, 3]", "f32[2, 2, 1, 1]", "f32[2]", **POINT))
    assert "{strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)}\n" in conv


TYPED = [
    ("matmul", ("i16[5, 7]", "i16[7, 3]"), dict(accumulate=I32)),
    ("matmul", ("f32[5, 7]", "f32[7, 3]"), dict(accumulate=DType.F64)),
    ("matmul", ("f32[5, 7]", "f32[7, 3]"), dict(to=F16)),
    ("convolution", ("i8[1, 2, 5, 5]", "i8[3, 2, 1, 1]", "i32[3]"), dict(accumulate=I32, to=F32, **POINT)),
    ("convolution", ("f32[1, 2, 5, 5]", "f32[3, 2, 3, 3]", "f32[3]"), dict(to=F16, **POINT)),
]


@pytest.mark.parametrize("name, types, attrs", TYPED)
@pytest.mark.parametrize("isa", ["", "sm_90"])
def test_no_template_takes_these(name, types, attrs, isa):
    if isa:
        pytest.importorskip("triton")
    graph = product(name, *types, **attrs)
    refused = rejection(region.cut(graph, graph.nodes, graph.nodes), isa=isa)
    assert refused is not None
    for t in templates(isa).values():
        if name in t.anchors:
            assert re.search(f"{t.name}: (has another type of sums|does not sum in i32|not bytes by)", refused)


def test_padding_of_another_number_is_a_pad_where_no_kernel_takes_it():
    window = dict(strides=(1, 2), pads=(1, 0, 0, 2), dilations=(1, 1), pad_value=-7, accumulate=I32)
    graph = product("convolution", "i8[1, 2, 5, 5]", "i8[3, 2, 2, 3]", "i32[3]", **window)
    found = decompose(graph, lambda _, n: n.op is not get("convolution") or not n.attrs["pad_value"])
    assert [n.op.name for n in found.nodes] == ["pad", "convolution"]
    feeds = fed(graph)
    (want,), (have,) = evaluate(graph, feeds).values(), evaluate(found, feeds).values()
    x, w, b = feeds.values()
    shifted = plain(np.pad(x, [(0, 0), (0, 0), (1, 0), (0, 2)], constant_values=-7), w, b, (1, 2), (0,) * 4, (1, 1), 1)
    assert want.tobytes() == have.tobytes() == shifted.astype(np.int32).tobytes()
    with pytest.raises(ValueError, match="needs padding that u8 holds, got -1"):
        product("convolution", "u8[1, 2, 5, 5]", "i8[3, 2, 2, 3]", "i32[3]", **{**window, "pad_value": -1})


def test_padding_of_a_number_that_is_computed():
    window = dict(strides=(1, 2), pads=(1, 0, 0, 2), dilations=(1, 1), accumulate=I32)
    types = "u8[1, 2, 5, 5]", "i8[3, 2, 2, 3]", "i32[3]"
    graph = product("convolution", *types, "u8[]", **window)
    feeds = {**fed(graph)}
    x, w, b, padding = feeds.values()
    padding[...] = 253
    (have,) = evaluate(graph, feeds).values()
    (want,) = evaluate(product("convolution", *types, **window, pad_value=253), dict(zip(feeds, (x, w, b)))).values()
    found = decompose(graph, lambda _, n: n.op is not get("convolution") or len(n.inputs) == 3)
    (by_pad,) = evaluate(found, feeds).values()
    assert have.tobytes() == want.tobytes() == by_pad.tobytes()
    with pytest.raises(ValueError, match="needs one value for its padding"):
        product("convolution", *types, "u8[]", **window, pad_value=1)
    with pytest.raises(ValueError, match=r"needs padding of type u8\[\]"):
        product("convolution", *types, "i8[]", **window)


@pytest.mark.parametrize("name, types, attrs", TYPED)
def test_without_kernels_they_are_casts_around_a_plain_one(name, types, attrs):
    graph = product(name, *types, **attrs)
    found = decompose(graph, lambda _, n: n.op is get(name) and n.attrs["accumulate"] is n.attrs["to"] is None)
    (made,) = [n for n in found.nodes if n.op is get(name)]
    assert made.attrs["accumulate"] is made.attrs["to"] is None
    verify(found)
    feeds = fed(graph)
    (want,), (have,) = evaluate(graph, feeds).values(), evaluate(found, feeds).values()
    assert want.dtype == have.dtype and np.allclose(want.astype(np.float64), have.astype(np.float64), rtol=1e-3)
    c = run_stages(start(Imported(graph, Info()), Options(level=0)), "place")
    assert all(n.attrs["accumulate"] is n.attrs["to"] is None for n in c.graph.nodes if n.op is get(name))


def test_rules_leave_them_alone():
    b = Builder()
    x = b.input(TensorType.parse("f16[1, 2, 5, 5]"), "x")
    w, bias, factor = (
        b.constant(np.ones((3, 2, 1, 1), np.float16)),
        b.constant(np.ones(3, np.float32)),
        b.constant(np.full((3, 1, 1), 3, np.float32)),
    )
    (y,) = b.emit(get("convolution"), (x, w, bias), dict(accumulate=F32, **POINT))
    graph = b.graph(b.emit(get("mul"), (y, factor)))
    done, _ = pipeline.run(graph)
    assert [n.op.name for n in done.nodes] == ["convolution", "mul"]


def test_siblings_of_one_type_are_merged():
    b = Builder()
    x = b.input(TensorType.parse("i8[4, 5]"), "x")
    w = [b.constant(np.full((5, 3), i, np.int8)) for i in range(3)]
    ys = [
        b.emit(get("matmul"), (x, w[i]), attrs)[0]
        for i, attrs in enumerate((dict(accumulate=I32), dict(accumulate=I32), dict(accumulate=I16)))
    ]
    graph = b.graph(ys)
    done, _ = pipeline.run(graph)
    verify(done)
    assert sorted(n.attrs["accumulate"].value for n in done.nodes if n.op is get("matmul")) == ["i16", "i32"]
    feeds = {"x": np.random.default_rng(0).integers(-128, 128, (4, 5)).astype(np.int8)}
    want, found = evaluate(graph, feeds), evaluate(done, feeds)
    assert all(want[k].tobytes() == found[k].tobytes() for k in want)
