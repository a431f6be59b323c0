"""Every op of the registry on its own examples: types, references, expansions, and the onnx package as a second
opinion."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from compare import assert_close
from draw import examples, operands
from onnx.reference import ReferenceEvaluator

from pelton.importers.onnx import load  # noqa: F401  (declares the readers)
from pelton.importers.onnx.node import READERS
from pelton.importers.onnx.ops.declared import AsDeclared
from pelton.ir.evaluate import evaluate, evaluate_node, widen
from pelton.ir.builder import Builder
from pelton.ir.graph import Node, Value
from pelton.ir.types import F16, F32, I32, DType, TensorType
from pelton.ops import REGISTRY
from pelton.ops.op import Term
from pelton.ir.scalar import PRIMITIVES, Scalar, cast
from pelton.passes.decompose import decompose

ALL = list(examples())
IDS = [name for name, *_ in ALL]


def node_of(op, types, attrs) -> Node:
    outputs = tuple(Value(t, f"y{i}") for i, t in enumerate(op.infer_types(types, attrs)))
    return Node(op, tuple(Value(t, f"x{i}") for i, t in enumerate(types)), attrs, outputs)


@pytest.mark.parametrize("name, op, types, attrs", ALL, ids=IDS)
def test_reference_has_the_inferred_type_and_float32_agrees_with_float64(name, op, types, attrs):
    node, arrays = node_of(op, types, attrs), operands(op, types, attrs)
    kept = [a.copy() for a in arrays]
    exact = evaluate_node(node, arrays)
    assert [TensorType.of(a) for a in exact] == [v.type for v in node.outputs]
    assert all(a.tobytes() == k.tobytes() for a, k in zip(arrays, kept)), "a reference wrote to its operands"
    assert all(np.isfinite(a).all() for a in exact if a.dtype.kind == "f"), "the example is outside of the op's domain"
    # the graphs of which are functions to the evaluator alone
    if (op.reference is not None or op.scalar is not None) and op.kind != "nested":
        narrow = tuple(np.asarray(a).astype(e.dtype) for a, e in zip(op.evaluate(arrays, attrs), exact))
        assert_close(narrow, exact, about=name)


EXPANDED = [e for e in ALL if e[1].expand is not None]


@pytest.mark.parametrize("name, op, types, attrs", EXPANDED, ids=[e[0] for e in EXPANDED])
def test_expansion_means_the_same(name, op, types, attrs):
    """The expansion as a program, built with inferred types, and evaluated term by term, against the op's own
    reference."""
    arrays = operands(op, types, attrs)
    want = evaluate_node(node_of(op, types, attrs), arrays)
    builder = Builder()
    inputs = [builder.input(t, f"x{i}") for i, t in enumerate(types)]
    found = op.expand(*inputs, **attrs)
    if found is None:
        assert op.reference is not None
        return
    outputs = [_emit(builder, t, {})[0] for t in found] if isinstance(found, tuple) else _emit(builder, found, {})
    assert tuple(v.type for v in outputs) == op.infer_types(types, attrs)
    got = evaluate(builder.graph(outputs), dict(zip((v.name for v in inputs), arrays)), round=False)
    assert_close([got[v.name].astype(v.type.dtype.numpy) for v in outputs], want, about=name)


def _emit(builder: Builder, thing, memo: dict) -> tuple[Value, ...]:
    """A term of an expansion as nodes; numbers and float64 arrays take the element type beside them."""
    if isinstance(thing, Value):
        return (thing,)
    if id(thing) not in memo:
        typed = {i: _emit(builder, a, memo)[0] for i, a in enumerate(thing.args) if isinstance(a, (Value, Term))}
        dtype = next((v.type.dtype for v in typed.values() if v.type.dtype is not DType.BOOL), F32)
        args = [
            (
                typed[i]
                if i in typed
                else builder.constant(
                    a if isinstance(a, np.ndarray) and a.dtype != np.float64 else np.asarray(a, dtype.numpy)
                )
            )
            for i, a in enumerate(thing.args)
        ]
        memo[id(thing)] = builder.emit(thing.op, args, thing.attrs)
    return memo[id(thing)]


@pytest.mark.parametrize("name, op, types, attrs", EXPANDED, ids=[e[0] for e in EXPANDED])
def test_what_an_op_takes_its_expansion_takes(name, op, types, attrs):
    """Of all element types, in all inputs or in one: types that do not fit are refused by the op, not by what it stands
    for."""
    given = {
        tuple(TensorType(d, t.shape) if i in here else t for i, t in enumerate(types))
        for d in DType
        for here in (range(len(types)), *((k,) for k in range(len(types))))
    }
    taken = 0
    for each in given:
        try:
            outputs = op.infer_types(each, attrs)
        except (TypeError, ValueError):
            continue
        builder = Builder()
        found = decompose(
            builder.graph(builder.emit(op, [builder.input(t, f"x{i}") for i, t in enumerate(each)], attrs)),
            lambda _, n: n.op is not op,
        )
        assert tuple(v.type for v in found.outputs) == outputs
        taken += 1
    assert taken


@pytest.mark.parametrize(
    "name, op, types, attrs",
    [e for e in ALL if e[1].kind == "pointwise"],
    ids=[e[0] for e in ALL if e[1].kind == "pointwise"],
)
def test_pointwise_expressions_read_as_their_reference(name, op, types, attrs):
    """Reading the traced expression with numpy gives what the op's function gives on arrays: tracing loses nothing."""

    def read(e):
        if not isinstance(e, Scalar):
            return e
        if e.fn == "input":
            return arrays[e.args[0]]
        return cast(read(e.args[0]), e.dtype, *e.args[1:]) if e.fn == "cast" else PRIMITIVES[e.fn](*map(read, e.args))

    given = operands(op, types, attrs)
    arrays = tuple(widen(a, t.dtype) for a, t in zip(given, types))
    expression = op.trace(tuple(t.dtype for t in types), attrs)
    assert expression.dtype is op.infer_types(types, attrs)[0].dtype
    (want,) = op.evaluate(arrays, attrs)
    with np.errstate(all="ignore"):
        assert_close(np.asarray(read(expression)), np.asarray(want), about=name)


def test_commutative_ops_commute():
    for name, op, types, attrs in ALL:
        if op.commutative:
            a, b = operands(op, types, attrs)
            assert_close(op.evaluate((b, a), attrs), op.evaluate((a, b), attrs), about=name)


def test_every_op_says_what_it_does_and_has_examples():
    for op in REGISTRY.values():
        assert op.examples, f"{op.name} has no examples"
        assert op.kind == "pointwise" or op.doc, f"{op.name} has no docstring"
        assert op.kind != "composite" or op.expand is not None
        assert op.kind != "structured" or op.reference is not None


MOVES = [e for e in ALL if e[1].moves]


@pytest.mark.parametrize("name, op, types, attrs", MOVES, ids=[e[0] for e in MOVES])
def test_what_moves_gives_elements_of_its_operands_or_zeros(name, op, types, attrs):
    arrays = operands(op, types, attrs)
    node = node_of(op, types, attrs)
    for array in evaluate_node(node, arrays):
        assert np.isin(array, np.concatenate([[0], *(a.reshape(-1) for a in arrays if a.dtype == array.dtype)])).all()
        if op.view and op.name != "concat" and array.size:
            assert np.shares_memory(array, arrays[0]), "as numpy sees it, it is no view"
    assert not op.indexed or types[1].dtype.is_integer


def test_what_moves_keeps_every_bit():
    """Also of a NaN, which a float64 and back would change: on their way through kernels they stay as they are."""
    signalling = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    node = node_of(REGISTRY["reshape"], (TensorType(F32, (2,)),), dict(shape=(2, 1)))
    assert evaluate_node(node, (signalling,))[0].tobytes() == signalling.tobytes()


def test_facts_hold_together():
    for op in REGISTRY.values():
        assert not op.view or op.moves, f"{op.name} is a view of what it changes"
        assert not op.recurrent or op.expand is not None, f"{op.name} is not split into steps"
        places = (
            [TensorType.parse(e[op.position_operand]) for e in op.examples] if op.position_operand is not None else []
        )
        assert all(t.dtype.is_float for t in places), f"{op.name} has places that are no floats"
        assert op.onnx_names.keys() <= op.attrs.keys(), f"{op.name} spells attributes that it does not have"


def test_flops_count_a_multiply_add_as_two():
    def count(name, *types, **attrs):
        op, types = REGISTRY[name], tuple(map(TensorType.parse, types))
        attrs = op.complete(attrs)
        return op.operations(types, op.infer_types(types, attrs), attrs)

    assert count("matmul", "f32[2, 5, 7]", "f32[7, 3]") == 2 * 2 * 5 * 7 * 3
    assert (
        count(
            "convolution",
            "f32[1, 3, 8, 8]",
            "f32[4, 3, 3, 3]",
            "f32[4]",
            strides=(1, 1),
            pads=(1, 1, 1, 1),
            dilations=(1, 1),
        )
        == 2 * 4 * 64 * 27
    )
    assert (
        count(
            "conv_transpose",
            "f32[1, 3, 5, 5]",
            "f32[3, 4, 2, 2]",
            "f32[4]",
            strides=(2, 2),
            pads=(0,) * 4,
            dilations=(1, 1),
            output_padding=(0, 0),
        )
        == 2 * 75 * 16
    )
    assert (
        count("gru", "f32[7, 2, 3]", "f32[1, 15, 3]", "f32[1, 15, 5]", "f32[1, 30]", "f32[1, 2, 5]", hidden=5)
        == 2 * 7 * 2 * 15 * 8
    )
    assert count("add", "f32[5]", "f32[3, 1]") == 15
    assert count("exp", "f32[5]") == count("relu", "f32[5]") == 5
    pool = dict(kernel=(3, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
    assert count("max_pool", "f32[1, 4, 7, 6]", **pool) == count("average_pool", "f32[1, 4, 7, 6]", **pool) == 4 * 9 * 6
    assert (
        count("softmax", "f32[3, 7]", axis=1) == 5 * 21
        and count("layer_norm", "f32[3, 7]", "f32[7]", "f32[7]", axis=1) == 7 * 21
    )
    assert (
        count("reduce_max", "f32[3, 7]", axes=(1,))
        == count("arg_max", "f32[3, 7]", axis=1)
        == count("top_k", "f32[3, 7]", k=2, axis=1)
        == 21
    )


def test_every_op_that_computes_counts_its_operations():
    """What a kernel computes and no count tells would show as no work in reports; these only move elements, or run on
    the host."""
    moving = {
        "sizes",
        "iota",
        "bit_cast",
        "reshape",
        "transpose",
        "concat",
        "slice",
        "expand",
        "tile",
        "pad",
        "trilu",
        "gather",
        "gather_elements",
        "gather_nd",
        "scatter_elements",
        "scatter_nd",
        "lookup",
    }
    assert {op.name for op in REGISTRY.values() if op.kind == "structured" and op.flops is None} == moving


def test_the_reference_of_a_real_layer_is_fast_enough_to_be_an_oracle():
    """In processor time, so that a busy machine does not matter much; usual is a tenth of the bound."""
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((1, 64, 56, 56)), rng.standard_normal((64, 64, 3, 3)), np.zeros(64)
    started = time.process_time()
    REGISTRY["convolution"].evaluate((x, w, b), dict(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1))
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "name, types, attrs, reason",
    [
        (
            "matmul",
            ("f32[5, 7]", "f32[8, 3]"),
            {},
            r"matmul: needs equal inner dimensions, given f32\[5, 7\], f32\[8, 3\]",
        ),
        ("matmul", ("f32[2, 5, 7]", "f32[3, 7, 3]"), {}, "do not broadcast"),
        ("add", ("f32[5]", "f32[4]"), {}, "do not broadcast"),
        ("add", ("f32[5]", "i32[5]"), {}, "one element type, got f32 and i32"),
        ("exp", ("i32[5]",), {}, "needs floating point, got i32"),
        ("logical_and", ("i32[5]", "i32[5]"), {}, "needs bools"),
        ("bitwise_or", ("bool[5]", "bool[5]"), {}, "needs integers"),
        ("add", ("bool[5]", "bool[5]"), {}, "needs numbers"),
        ("where", ("f32[5]", "f32[5]", "f32[5]"), {}, "bool condition"),
        (
            "convolution",
            ("f32[1, 3, 8, 8]", "f32[4, 2, 3, 3]", "f32[4]"),
            dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)),
            "2 · 1 input channels",
        ),
        (
            "convolution",
            ("f32[1, 3, 8, 8]", "f32[4, 3, 3, 3]", "f32[4]"),
            dict(strides=(1,), pads=(0,) * 4, dilations=(1, 1)),
            "per spatial axis",
        ),
        (
            "convolution",
            ("f32[1, 3, 2, 8]", "f32[4, 3, 3, 3]", "f32[4]"),
            dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)),
            "windows that fit",
        ),
        (
            "convolution",
            ("f32[1, 3, 8, 8]", "f32[4, 3, 3, 3]", "f32[3]"),
            dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)),
            r"bias of shape \[4\]",
        ),
        ("reshape", ("f32[2, 3]",), dict(shape=(4,)), "6 elements"),
        ("transpose", ("f32[2, 3]",), dict(perm=(0, 0)), "permutation"),
        ("concat", ("f32[2, 3]", "f32[3, 3]"), dict(axis=1), "equal shapes off axis 1"),
        ("slice", ("f32[5]",), dict(starts=(0,), ends=(6,), axes=(0,), steps=(1,)), "inside of axis 0"),
        ("reduce_sum", ("f32[2, 3]",), dict(axes=(2,)), "axes from 0 to 1"),
        ("gather", ("f32[2, 3]", "f32[1]"), dict(axis=0), "integer indices"),
        (
            "lstm",
            (
                "f32[7, 2, 3]",
                "f32[1, 20, 3]",
                "f32[1, 20, 5]",
                "f32[1, 40]",
                "f32[1, 2, 5]",
                "f32[1, 2, 4]",
                "f32[1, 15]",
            ),
            dict(hidden=5),
            "initial states",
        ),
        (
            "gru",
            ("f32[7, 2, 3]", "f32[1, 15, 3]", "f32[1, 15, 5]", "f32[1, 30]", "f32[1, 2, 5]"),
            dict(hidden=5, activations=("Cube", "Tanh")),
            "Cube",
        ),
        ("attention", ("f32[5, 8]", "f32[7, 8]", "f32[7, 4]", "f32[5, 6]"), dict(scale=1.0), "broadcast"),
        (
            "resize",
            ("f32[1, 1, 2, 2]",),
            dict(shape=(1, 1, 4, 4), scales=(1.0, 1.0, 2.0, 2.0), mode="area"),
            "needs mode",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(name, types, attrs, reason):
    op = REGISTRY[name]
    with pytest.raises((ValueError, TypeError), match=reason):
        op.infer_types(tuple(map(TensorType.parse, types)), op.complete(attrs))


def test_attributes_are_checked():
    with pytest.raises(TypeError, match="no attribute"):
        REGISTRY["softmax"].complete({"axes": 1})
    with pytest.raises(TypeError, match="needs attribute"):
        REGISTRY["softmax"].complete({})


# --- edges that random numbers do not reach

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    "name, arrays, attrs, want",
    [
        ("relu", ([NAN, -1.0, -0.0, 2.0],), {}, [NAN, 0.0, 0.0, 2.0]),
        ("maximum", ([NAN, 1.0], [1.0, NAN]), {}, [NAN, NAN]),
        ("clip", ([NAN, -5.0, 5.0], -1.0, 1.0), {}, [NAN, -1.0, 1.0]),
        ("softplus", ([-1000.0, 0.0, 1000.0],), {}, [0.0, np.log(2), 1000.0]),
        ("sigmoid", ([-1000.0, 0.0, 1000.0, NAN],), {}, [0.0, 0.5, 1.0, NAN]),
        ("elu", ([1000.0, -1000.0],), {}, [1000.0, -1.0]),
        ("mish", ([1000.0, -1000.0],), {}, [1000.0, 0.0]),
        ("round", ([0.5, 1.5, -0.5, -2.5],), {}, [0.0, 2.0, -0.0, -2.0]),
        ("softmax", ([[1000.0, 1000.0], [-INF, 0.0]],), dict(axis=1), [[0.5, 0.5], [0.0, 1.0]]),
        ("log_softmax", ([[1000.0, 1000.0]],), dict(axis=1), [[-np.log(2)] * 2]),
        ("reduce_log_sum_exp", ([[1000.0, 1000.0]],), dict(axes=(1,)), [[1000 + np.log(2)]]),
        ("reduce_log_sum_exp", ([[-INF, -INF], [INF, 0.0]],), dict(axes=(1,)), [[-INF], [INF]]),
        ("is_inf", ([INF, -INF, NAN, 1.0],), dict(negative=False), [True, False, False, False]),
        ("is_inf", ([INF, -INF, NAN, 1.0],), dict(positive=False), [False, True, False, False]),
        ("is_inf", ([INF, -INF, NAN, 1.0],), {}, [True, True, False, False]),
        ("cast", ([1.9, -1.9, 0.4],), dict(to=I32), np.array([1, -1, 0], np.int32)),
        ("arg_max", ([[1.0, 3.0, 3.0]],), dict(axis=1), np.array([[1]])),
        ("arg_max", ([[1.0, 3.0, 3.0]],), dict(axis=1, select_last_index=True), np.array([[2]])),
        (
            "max_pool",
            ([[[-5.0, -7.0, -6.0]]],),
            dict(kernel=(3,), strides=(1,), pads=(1, 1), dilations=(1,)),
            [[[-5.0, -5.0, -6.0]]],
        ),
        (
            "average_pool",
            ([[[1.0, 2.0, 3.0]]],),
            dict(kernel=(2,), strides=(2,), pads=(1, 0), dilations=(1,)),
            [[[1.0, 2.5]]],
        ),
        (
            "average_pool",
            ([[[1.0, 2.0, 3.0]]],),
            dict(kernel=(2,), strides=(2,), pads=(1, 0), dilations=(1,), count_include_pad=True),
            [[[0.5, 2.5]]],
        ),
        (
            "average_pool",
            ([[[1.0, 2.0, 3.0]]],),
            dict(kernel=(2,), strides=(2,), pads=(0, 0), dilations=(1,), ceil_mode=True, count_include_pad=True),
            [[[1.5, 3.0]]],
        ),
        ("slice", ([0.0, 1.0, 2.0, 3.0],), dict(starts=(3,), ends=(-1,), axes=(0,), steps=(-2,)), [3.0, 1.0]),
        ("reduce_sum", (np.zeros((2, 0)),), dict(axes=(1,)), [[0.0], [0.0]]),
        ("reduce_max", (np.zeros((2, 0)),), dict(axes=(1,), keepdims=False), [-INF, -INF]),
        ("reduce_min", (np.zeros((2, 0), np.int32),), dict(axes=(1,)), np.full((2, 1), 2**31 - 1, np.int32)),
        ("reduce_mean", (np.zeros((2, 0)),), dict(axes=(1,), keepdims=False), [NAN, NAN]),
        ("reduce_mean", ([-7, 2],), dict(axes=(0,)), np.array([-2])),
        ("softmax", (np.zeros((2, 0)),), dict(axis=1), np.zeros((2, 0))),
        (
            "cast",
            ([1e9, -INF, NAN, 0.3],),
            dict(to=DType.F8E4M3FN),
            np.array([448, -448, NAN, 0.3]).astype(DType.F8E4M3FN.numpy),
        ),
        (
            "convolution",
            (np.zeros((0, 3, 5, 5)), np.zeros((4, 3, 3, 3)), np.zeros(4)),
            dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)),
            np.zeros((0, 4, 3, 3)),
        ),
        ("matmul", (np.zeros((2, 0)), np.zeros((0, 3))), {}, np.zeros((2, 3))),
    ],
)
def test_edges(name, arrays, attrs, want):
    op = REGISTRY[name]
    arrays = tuple(np.asarray(a) for a in arrays)
    attrs = op.complete(attrs)
    (got,) = evaluate_node(node_of(op, tuple(map(TensorType.of, arrays)), attrs), arrays)
    assert_close(got, np.asarray(want, None if isinstance(want, np.ndarray) else got.dtype))


def test_integers():
    def run(name, *arrays):
        return REGISTRY[name].evaluate(tuple(np.asarray(a) for a in arrays), {})[0].tolist()

    assert run("div", [7, -7, 7, -7], [2, 2, -2, -2]) == [3, -3, -3, 3]
    assert run("mod", [7, -7, 7, -7], [3, 3, -3, -3]) == [1, 2, -2, -1]
    assert run("fmod", [7, -7, 7, -7], [3, 3, -3, -3]) == [1, -1, 1, -1]
    assert run("shift_left", np.array([1, 255, 3], np.uint8), np.array([7, 1, 8], np.uint8)) == [128, 254, 0]
    assert run("shift_right", np.array([128, 255, 3], np.uint8), np.array([7, 1, 9], np.uint8)) == [1, 127, 0]
    assert run("minimum", [3, -1], [2, 5]) == [2, -1]


def test_top_k_of_equals_takes_the_first():
    for dtype in (np.float32, np.int64, np.uint8):
        values, where = REGISTRY["top_k"].evaluate(
            (np.array([2, 3, 3, 1, 2], dtype),), dict(k=4, axis=0, largest=True, sorted=True)
        )
        assert values.tolist() == [3, 3, 2, 2] and where.tolist() == [1, 2, 0, 4]
        _, where = REGISTRY["top_k"].evaluate(
            (np.array([2, 3, 3, 1, 2], dtype),), dict(k=3, axis=0, largest=False, sorted=True)
        )
        assert where.tolist() == [3, 0, 4]


def test_one_hot_beyond_its_depth_is_off():
    (got,) = REGISTRY["one_hot"].evaluate((np.array([-1, 3, -4, 0]), np.array([5.0, 7.0])), dict(depth=3, axis=1))
    assert got.tolist() == [[5, 5, 7], [5, 5, 5], [5, 5, 5], [7, 5, 5]]


def test_narrow_floats_are_computed_wide_and_rounded_once():
    op = REGISTRY["add"]
    types = (TensorType(F16, (1,)), TensorType(F16, (1,)))
    node = node_of(op, types, {})
    (got,) = evaluate_node(node, (np.array([2048], np.float16), np.array([1], np.float16)), round=False)
    assert got.dtype == np.float64 and got == 2049
    assert evaluate_node(node, (np.array([2048], np.float16), np.array([1], np.float16)))[0].dtype == np.float16


# --- the onnx package as a second opinion


def _pool(a, **more):
    return dict(
        kernel_shape=a["kernel"],
        strides=a["strides"],
        pads=a["pads"],
        ceil_mode=int(a["ceil_mode"]),
        dilations=a["dilations"],
        **more,
    )


def _conv(a):
    return dict(strides=a["strides"], pads=a["pads"], dilations=a["dilations"], group=a["group"])


def _axes(a):
    return dict(keepdims=int(a["keepdims"]))


def _cell(a, *flags):
    kept = dict(hidden_size=a["hidden"], direction=a["direction"])
    if a["activations"]:
        kept["activations"] = list(a["activations"])
    kept.update((k, a[k]) for k in ("activation_alpha", "activation_beta") if a[k])
    if a["clip"]:
        kept["clip"] = a["clip"]
    return {**kept, **{f: int(a[f]) for f in flags}}


# op → (ONNX name, attributes there, constant inputs by position there, our operands in ONNX's order (None: absent))
ONNX = {
    "matmul": ("MatMul", lambda a: {}),
    "convolution": ("Conv", _conv),
    "conv_transpose": ("ConvTranspose", lambda a: dict(_conv(a), output_padding=a["output_padding"])),
    "max_pool": ("MaxPool", _pool),
    "average_pool": ("AveragePool", lambda a: _pool(a, count_include_pad=int(a["count_include_pad"]))),
    "lrn": ("LRN", lambda a: dict(a)),
    "softmax": ("Softmax", lambda a: dict(a)),
    "log_softmax": ("LogSoftmax", lambda a: dict(a)),
    "batch_norm": ("BatchNormalization", lambda a: dict(a)),
    "layer_norm": ("LayerNormalization", lambda a: dict(a)),
    "rms_norm": ("RMSNormalization", lambda a: dict(a)),
    "instance_norm": ("InstanceNormalization", lambda a: dict(a)),
    "group_norm": ("GroupNormalization", lambda a: dict(num_groups=a["groups"], epsilon=a["epsilon"])),
    "arg_max": ("ArgMax", lambda a: {k: int(v) for k, v in a.items()}),
    "arg_min": ("ArgMin", lambda a: {k: int(v) for k, v in a.items()}),
    "top_k": ("TopK", lambda a: dict(axis=a["axis"], largest=int(a["largest"])), lambda a: {1: np.array([a["k"]])}),
    "cumsum": (
        "CumSum",
        lambda a: dict(exclusive=int(a["exclusive"]), reverse=int(a["reverse"])),
        lambda a: {1: np.array(a["axis"])},
    ),
    "transpose": ("Transpose", lambda a: dict(a)),
    "concat": ("Concat", lambda a: dict(a)),
    "expand": ("Expand", lambda a: {}, lambda a: {1: np.array(a["shape"], np.int64)}),
    "tile": ("Tile", lambda a: {}, lambda a: {1: np.array(a["repeats"])}),
    "gather": ("Gather", lambda a: dict(a)),
    "gather_elements": ("GatherElements", lambda a: dict(a)),
    "gather_nd": ("GatherND", lambda a: dict(a)),
    "scatter_elements": ("ScatterElements", lambda a: dict(a)),
    "scatter_nd": ("ScatterND", lambda a: dict(a)),
    "trilu": ("Trilu", lambda a: dict(upper=int(a["upper"])), lambda a: {1: np.array(a["k"])}),
    "one_hot": ("OneHot", lambda a: dict(axis=a["axis"]), lambda a: {1: np.array(a["depth"])}),
    "depth_to_space": ("DepthToSpace", lambda a: dict(blocksize=a["block"], mode=a["mode"])),
    "space_to_depth": ("SpaceToDepth", lambda a: dict(blocksize=a["block"])),
    "resize": (
        "Resize",
        lambda a: dict(
            mode=a["mode"],
            coordinate_transformation_mode=a["coordinates"],
            nearest_mode=a["nearest"],
            cubic_coeff_a=a["cubic_a"],
            exclude_outside=int(a["exclude_outside"]),
            antialias=int(a["antialias"]),
            extrapolation_value=a["extrapolation"],
        ),
        lambda a: {
            1: np.array(a["roi"], np.float32) if a["roi"] else None,
            **(
                {2: np.array(a["scales"], np.float32)}
                if a["resized_by"] == "scales"
                else {2: None, 3: np.array(a["shape"])}
            ),
        },
    ),
    "grid_sample": (
        "GridSample",
        lambda a: dict(mode=a["mode"], padding_mode=a["padding"], align_corners=int(a["align_corners"])),
    ),
    "roi_align": (
        "RoiAlign",
        lambda a: dict(
            mode=a["mode"],
            output_height=a["height"],
            output_width=a["width"],
            sampling_ratio=a["samples"],
            spatial_scale=a["scale"],
            coordinate_transformation_mode="half_pixel" if a["half_pixel"] else "output_half_pixel",
        ),
    ),
    "deform_convolution": ("DeformConv", lambda a: dict(_conv(a), offset_group=a["offset_group"])),
    "lstm": ("LSTM", lambda a: _cell(a, "input_forget")),
    "gru": ("GRU", lambda a: _cell(a, "linear_before_reset")),
    "rnn": ("RNN", _cell),
    **{
        name: (name.title().replace("_", ""), _axes, lambda a: {1: np.array(a["axes"])})
        for name in (
            "reduce_sum",
            "reduce_mean",
            "reduce_max",
            "reduce_min",
            "reduce_prod",
            "reduce_l1",
            "reduce_l2",
            "reduce_sum_square",
            "reduce_log_sum",
            "reduce_log_sum_exp",
        )
    },
}
PLAIN = {name for name, op in REGISTRY.items() if op.kind == "pointwise" and len(op.onnx) == 1} - {
    "fmod",
    "gelu_tanh",
    "shift_left",
    "shift_right",
    "cast",
}
PLAIN |= {reader.op.name for reader in READERS.values() if isinstance(reader, AsDeclared)}
SECOND = [e for e in ALL if e[1].name in ONNX or e[1].name in PLAIN]


def onnx_model(node: Node, arrays):
    """A model of the one node as ONNX writes it, and what to feed it."""
    op, attrs = node.op, dict(node.attrs)
    if op.name == "resize":
        exact = all(scale in (0, y / x) for x, y, scale in zip(arrays[0].shape, attrs["shape"], attrs["scales"]))
        attrs["resized_by"] = "sizes" if exact else "scales"
    if op.name in ONNX:
        kind, translate, *more = ONNX[op.name]
        settings, fixed = translate(attrs), more[0](attrs) if more else {}
    else:
        kind, settings, fixed = op.onnx[0], {op.onnx_names.get(k, k): v for k, v in attrs.items()}, {}
    ours = list(arrays)
    if kind in ("LSTM", "GRU", "RNN"):
        fixed = {4: None}  # sequence_lens
    inputs = [fixed[i] if i in fixed else ours.pop(0) for i in range(len(ours) + len(fixed))]
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}

    def info(name, type):
        return onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(type.dtype.numpy), type.shape
        )

    made = onnx.helper.make_node(
        kind,
        [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)],
        [v.name for v in node.outputs],
        **settings,
    )
    graph = onnx.helper.make_graph(
        [made],
        "one",
        [info(k, TensorType.of(a)) for k, a in feeds.items()],
        [info(v.name, v.type) for v in node.outputs],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10), feeds


# Examples that the onnx package's reference evaluator gets wrong or cannot run (ONNX Runtime agrees with ours on them).
NOT_THERE = {
    "conv_transpose-2": "it cannot do groups with output padding",
    "conv_transpose-6": "it cannot do groups with output padding",
    "gather_elements-1": "it wants equal sizes off the axis",
    "grid_sample-8": "it keeps coordinates in f32",
    "lrn-0": "it takes the batch for channels",
    "lrn-1": "it takes the batch for channels",
    "lstm-2": "it ignores direction, activations and clip",
    "lstm-3": "it ignores input_forget",
    "gru-2": "it ignores direction, activations and clip",
    "rnn-1": "it knows two activations",
    "rnn-2": "it knows two activations",
}


@pytest.mark.parametrize("name, op, types, attrs", SECOND, ids=[e[0] for e in SECOND])
def test_the_onnx_package_agrees(name, op, types, attrs):
    if name in NOT_THERE:
        pytest.skip(NOT_THERE[name])
    node, arrays = node_of(op, types, attrs), operands(op, types, attrs)
    model, feeds = onnx_model(node, arrays)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(model).run(None, feeds)
    got = evaluate_node(node, arrays)
    assert_close(list(got), [np.asarray(w).astype(g.dtype) for g, w in zip(got, want)], about=name)
