"""Quantized programs: conversions as ops, their remains after folding, and the pass that computes all of it in f32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import test_exports
import test_microsoft_quant
from onnx import helper
from onnx_models import model, one_node

import pelton
from pelton.cli.build import summary
from pelton.diagnose.explain import explain
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate, evaluate_node
from pelton.ir.builder import Builder
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.text import key, parse, to_text
from pelton.ir.types import DType, TensorType
from pelton.ir.verify import verify
from pelton.ops import REGISTRY, get
from pelton.ir.folding import exempt_from_folding
from pelton.passes.fold import fold_constants
from pelton.passes.precision import IN_F32
from pelton.passes.precision.quantized import in_f32
from pelton.passes.rewriting.report import PassReport

INTEGERS = [DType(name) for name in ("i8", "u8", "i4", "u4", "i16", "u16")]


def node_of(name: str, arrays: list[np.ndarray], **attrs) -> Node:
    op = get(name)
    inputs = tuple(Value(TensorType.of(a), f"x{i}") for i, a in enumerate(arrays))
    attrs = op.complete(attrs)
    (made,) = op.infer_types(tuple(v.type for v in inputs), attrs)
    return Node(op, inputs, attrs, (Value(made, "y"),))


def evaluated(name: str, *arrays: np.ndarray, **attrs) -> np.ndarray:
    node = node_of(name, list(arrays), **attrs)
    (found,) = evaluate_node(node, arrays)
    assert TensorType.of(found) == node.output.type
    return found


def whole(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    return rng.integers(int(dtype.lowest), int(dtype.highest) + 1, shape).astype(dtype.numpy)


def spread(a: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    """A scale or zero point per element of x."""
    if a.size == 1:
        return np.broadcast_to(a.reshape(()), shape)
    if block:
        return np.repeat(a, block, axis).take(range(shape[axis]), axis)
    return np.broadcast_to(a.reshape(-1, *[1] * (len(shape) - axis - 1)), shape)


# the shape of x, that of scale and zero point, and how these lie
PLACES = [
    ((5, 13), (), 0, 0),
    ((5, 13), (1,), 0, 0),
    ((5, 13), (13,), 1, 0),
    ((3, 5, 7), (5,), 1, 0),
    ((61,), (61,), 0, 0),
    ((11, 3), (3, 3), 0, 4),
    ((3, 61), (3, 31), 1, 2),
    ((2, 7, 3), (2, 7, 3), 1, 1),
    ((0, 4), (4,), 1, 0),
]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.value)
@pytest.mark.parametrize("shape, per, axis, block", PLACES)
@pytest.mark.parametrize("zero", [True, False])
def test_dequantize_is_exact_arithmetic_rounded_once(dtype, shape, per, axis, block, zero):
    rng = np.random.default_rng(0)
    x, scale = whole(rng, dtype, *shape), rng.uniform(0.01, 0.2, per).astype(np.float32)
    middle = [whole(rng, dtype, *per)] if zero else []
    found = evaluated("dequantize", x, scale, *middle, axis=axis, block=block)
    shifted = x.astype(np.int64) - (spread(middle[0], shape, axis, block).astype(np.int64) if zero else 0)
    want = (shifted * spread(scale, shape, axis, block).astype(np.float64)).astype(np.float32)
    assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.value)
@pytest.mark.parametrize("shape, per, axis, block", PLACES)
@pytest.mark.parametrize("zero", [True, False])
def test_quantize_rounds_half_to_even_and_saturates(dtype, shape, per, axis, block, zero):
    rng = np.random.default_rng(1)
    # quotients are exact, some are halves
    scale = np.float32(2.0) ** rng.integers(-4, 2, per).astype(np.float32)
    x = (whole(rng, DType.I16, *shape).astype(np.float64) % 601 - 300).astype(np.float32) / 4
    middle = [whole(rng, dtype, *per)] if zero else []
    found = evaluated("quantize", x, np.asarray(scale, np.float32), *middle, to=dtype, axis=axis, block=block)
    quotient = np.rint(x.astype(np.float64) / spread(np.asarray(scale), shape, axis, block)).astype(np.int64)
    shifted = quotient + (spread(middle[0], shape, axis, block).astype(np.int64) if zero else 0)
    assert (found.astype(np.int64) == np.clip(shifted, int(dtype.lowest), int(dtype.highest))).all()


def test_quantize_divides_in_the_type_of_what_it_is_given():
    x, scale = np.random.default_rng(2).uniform(-9, 9, 997).astype(np.float32), np.float32(0.0371)
    want = np.clip(np.rint(x / scale), -128, 127).astype(np.int8)  # one division in f32
    assert (evaluated("quantize", x, np.asarray(scale), to=DType.I8) == want).all()


def test_narrow_scales_round_twice():
    """As the arithmetic that importing wrote out until it was an op: a product in f32, then a cast."""
    x, scale = whole(np.random.default_rng(3), DType.I8, 997), np.asarray(0.0371, np.float16)
    want = (x.astype(np.float32) * np.float32(scale)).astype(np.float16)
    assert evaluated("dequantize", x, scale).tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "f4e2m1fn"])
def test_floats_of_few_bits(dtype):
    to = DType(dtype)
    x, scale = np.random.default_rng(4).uniform(-3, 3, (3, 37)).astype(np.float32), np.asarray(0.5, np.float32)
    narrow = evaluated("quantize", x, scale, to=to)
    assert narrow.astype(np.float32).tolist() == (x / scale).astype(to.numpy).astype(np.float32).tolist()
    assert evaluated("dequantize", narrow, scale).tolist() == (narrow.astype(np.float32) * scale).tolist()


@pytest.mark.parametrize(
    "types, attrs, says",
    [
        (("i8[5, 3]", "f32[4]"), dict(axis=0), "needs scales and zero points for axis 0"),
        (("i8[5, 3]", "f32[5]"), dict(axis=2), "needs an axis below 2"),
        (("i8[5, 3]", "f32[5]"), dict(block=2), "needs scales and zero points"),
        (("i8[5]", "i32[]"), {}, "needs a scale of floating point"),
    ],
)
def test_what_does_not_fit_is_refused(types, attrs, says):
    op = get("dequantize")
    with pytest.raises(ValueError, match=says):
        op.infer_types(tuple(map(TensorType.parse, types)), op.complete(attrs))


@pytest.mark.parametrize(
    "text",
    [
        (
            "graph main(%x: i8[5, 3], %s: f32[3], %z: i8[3]) {\n  %y: f32[5, 3] = dequantize(%x, %s, %z) {axis=1}\n "
            " return %y\n}\n"
        ),
        (
            "graph main(%x: f32[6, 3], %s: f32[3, 3]) {\n  %y: i4[6, 3] = quantize(%x, %s) {to=i4, block=2}\n  return"
            " %y\n}\n"
        ),
    ],
)
def test_texts_come_back(text):
    graph = parse(text)
    verify(graph)
    assert to_text(graph) == text


# --- folding


def program(ops: str) -> Graph:
    """x · w with the words of `ops` done to a constant w of int8 first."""
    b = Builder()
    x = b.input(TensorType.parse("f32[2, 7]"), "x")
    v = b.constant(whole(np.random.default_rng(5), DType.I8, 7, 7), "w")
    for name in ops.split():
        operands: tuple[Value, ...] = (v,)
        if name == "dequantize":
            operands = v, b.constant(np.float32(0.1), "s")
        elif name == "matmul":
            operands = x, v
        (v,) = b.emit(get(name), operands, {"perm": (1, 0)} if name == "transpose" else {})
    return b.graph([v])


@pytest.mark.parametrize(
    "ops, left",
    [
        ("dequantize matmul", ["dequantize", "matmul"]),
        ("dequantize neg matmul", ["matmul"]),
        ("dequantize", []),
        ("dequantize transpose matmul", ["dequantize", "transpose", "matmul"]),
        ("dequantize transpose", []),
        ("transpose dequantize matmul", ["dequantize", "matmul"]),
    ],
)
def test_folding_leaves_few_bits_on_their_way_to_a_heavy_op(ops, left):
    graph = program(ops)
    folded = fold_constants(graph, PassReport("constant"))
    assert [n.op.name for n in folded.nodes] == left
    verify(folded)
    x = np.random.default_rng(6).standard_normal((2, 7)).astype(np.float32)
    feeds = {"x": x}
    (want,), (found,), (wide,) = (evaluate(g, feeds).values() for g in (graph, folded, in_f32(folded)))
    assert want.tobytes() == found.tobytes() == wide.tobytes()
    assert not {n.op for n in in_f32(folded).nodes} - {get("matmul")}
    assert not exempt_from_folding(in_f32(folded).nodes)


# --- importing, and the pass

QDQ = model(
    [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize_x"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize_x"),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], "dequantize_w", axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], "dequantize_b"),
        helper.make_node("Conv", ["d", "wd", "bd"], ["c"], "conv"),
        helper.make_node("DequantizeLinear", ["a", "s"], ["ad"], "dequantize_a"),
        helper.make_node("Add", ["c", "ad"], ["y"], "add"),
    ],
    {"x": "f32[1, 2, 4, 4]"},
    ["y"],
    {
        "s": np.float32(0.05),
        "z": np.int8(-3),
        "w": whole(np.random.default_rng(7), DType.I8, 3, 2, 1, 1),
        "bs": np.float32(0.001),
        "ws": np.array([0.1, 0.2, 0.3], np.float32),
        "b": np.array([100, -200, 300], np.int32),
        "a": np.array([7], np.int8),
    },
)


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def test_imported_programs_keep_their_integers():
    graph = load(QDQ).graph
    assert names(graph) == ["dequantize", "dequantize", "quantize", "dequantize", "convolution", "add"]
    verify(graph)
    weights = graph.producer[next(n for n in graph.nodes if n.op is get("convolution")).inputs[1]]
    assert (
        weights.inputs[0] in graph.constants and weights.inputs[0].type.dtype is DType.I8 and weights.attrs["axis"] == 0
    )
    ad = next(n for n in graph.nodes if n.op is get("add")).inputs[1]
    assert ad in graph.constants and ad.type.dtype is DType.F32  # leads to no heavy op
    assert key(parse(to_text(graph, data=True))) == key(graph)


def test_the_program_in_f32_is_the_arithmetic():
    """What importing wrote out before there were such ops."""
    wide = in_f32(load(QDQ).graph)
    verify(wide)
    assert (
        to_text(wide, data=True)
        == """graph test(%x: f32[1, 2, 4, 4]) {
  %s = constant f32[] 0.05
  %div: f32[1, 2, 4, 4] = div(%x, %s) "quantize_x"
  %round: f32[1, 2, 4, 4] = round(%div) "quantize_x"
  %cast_3 = constant f32[] -3.0
  %add: f32[1, 2, 4, 4] = add(%round, %cast_3) "quantize_x"
  %c_2 = constant f32[] -128.0
  %c_3 = constant f32[] 127.0
  %clip: f32[1, 2, 4, 4] = clip(%add, %c_2, %c_3) "quantize_x"
  %q: i8[1, 2, 4, 4] = cast(%clip) {to=i8} "quantize_x"
  %cast_4: f32[1, 2, 4, 4] = cast(%q) {to=f32} "dequantize_x"
  %cast_5 = constant f32[] -3.0
  %sub: f32[1, 2, 4, 4] = sub(%cast_4, %cast_5) "dequantize_x"
  %d: f32[1, 2, 4, 4] = mul(%sub, %s) "dequantize_x"
  %wd = constant f32[3, 2, 1, 1] [11.3, 3.2, 9.400001, 20.2, 6.0, 21.0]
  %bd = constant f32[3] [0.1, -0.2, 0.3]
  %c: f32[1, 3, 4, 4] = convolution(%d, %wd, %bd) {strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)} "conv"
  %ad = constant f32[1] 0.35
  %y: f32[1, 3, 4, 4] = add(%c, %ad) "add"
  return %y
}
"""
    )


def test_explain_says_what_is_computed_in_integers_and_what_in_f32():
    found = explain(QDQ)
    integers, _, floats = found.report.passes[:3]
    assert list(integers.fired) == ["integer_convolution"] and not floats.says
    assert [*found.stages][:5] == ["import", "integers", "computed", "quantized", "halves"]
    assert not any(n.op.stepwise for n in found.stages["quantized"].nodes)
    varying = onnx.ModelProto.FromString(QDQ.SerializeToString())
    (w,) = [t for t in varying.graph.initializer if t.name == "w"]
    varying.graph.initializer.remove(w)
    varying.graph.input.append(helper.make_tensor_value_info("w", w.data_type, w.dims))
    assert explain(varying).report.passes[2].says == IN_F32
    plain = explain(one_node("Relu", "f32[3]"))
    assert not any(p.says for p in plain.report.passes) and plain.stages["quantized"] is plain.stages["import"]


@pytest.mark.parametrize("name", sorted(test_microsoft_quant.CASES))
def test_programs_mean_the_same_in_f32(name):
    m, feeds, _ = test_microsoft_quant.CASES[name](np.random.default_rng(0))
    graph = load(m).graph
    wide = in_f32(graph)
    verify(graph)
    verify(wide)
    assert not any(n.op.stepwise for n in wide.nodes)
    before, after = evaluate(graph, feeds), evaluate(wide, feeds)
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)


@pytest.mark.parametrize("name", [n for n in test_exports.MODELS if n.startswith("quantized")])
def test_quantized_networks_have_integers_until_then(name):
    graph = load(test_exports.model(name)).graph
    wide = in_f32(graph)
    assert any(n.op.stepwise for n in graph.nodes) and not any(n.op.stepwise for n in wide.nodes)
    feeds, _ = test_exports.cases(name)[0]
    before, after = evaluate(graph, feeds), evaluate(wide, feeds)
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)


@pytest.mark.parametrize(
    "name, bits",
    [("four_bits_zero_points_bias", 4), ("four_bits_plain_zero_points", 4), ("eight_bits", 8), ("two_bits", 2)],
)
def test_blocks_of_weights_stay_few_bits(name, bits):
    """The first two have 40 numbers in blocks of 16."""
    graph = load(test_microsoft_quant.CASES[name](np.random.default_rng(0))[0]).graph
    assert [n.attrs["bits"] for n in graph.nodes if n.op is get("quantized_linear")] == [bits]


def test_facts_hold_together():
    assert [op.name for op in REGISTRY.values() if op.dequantizes] == ["dequantize"]
    assert all(op.expand is not None and op.reference is None for op in REGISTRY.values() if op.stepwise)


def test_rows_of_quantized_tables_are_picked_as_bytes():
    """An embedding stays as large as its file has it."""
    table = np.random.default_rng().integers(-128, 128, (997, 24)).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "s", "z"], ["t"]),
        helper.make_node("Gather", ["t", "ids"], ["y"]),
    ]
    constants = {"table": table, "s": np.float32(0.03), "z": np.int8(7)}
    m = model(nodes, {"ids": "i64[5]"}, ["y"], constants)
    ids = np.random.default_rng().integers(-997, 997, 5)
    engine = pelton.build(m.SerializeToString(), level=0)
    np.testing.assert_allclose(engine.run({"ids": ids})["y"], (table[ids].astype(np.float64) - 7) * 0.03, rtol=1e-6)
    assert engine.constants.nbytes < 1.1 * table.nbytes


@pytest.mark.parametrize("allowed, says", [(True, "rows rounded to 8 bits, as the model allows"), (False, "")])
def test_a_build_says_which_products_round_rows(allowed, says, kernel_cache):
    """Untimed, the best guess of a product of one row is the fewest digits that are allowed."""
    net = pelton.Network("few")
    x, rng = net.input("x", "f32[1, 256]"), np.random.default_rng()
    weights = rng.integers(0, 256, (96, 128), np.uint8), rng.random((96, 8)).astype(np.float32)
    net.output(net.quantized_linear(x, *weights, block=32, bits=4, round_rows=allowed), "y")
    engine = pelton.build(net, level=0, threads=1, cache_dir=kernel_cache)
    assert [s.info.get("rounding", "") for s in engine.steps] == [says]
    assert says in summary(engine) and ("rounding" in summary(engine)) is allowed
    strict = pelton.build(net, level=0, threads=1, strict=True, cache_dir=kernel_cache)
    assert [s.info.get("rounding", "") for s in strict.steps] == [""]
