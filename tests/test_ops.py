"""Every op of the registry on its own examples: types, references, expansions and facts."""

from __future__ import annotations

import time

import numpy as np
import pytest
from compare import assert_close
from draw import examples, node_of, operands

from pelton.importers.onnx import load  # noqa: F401  (declares the readers)
from pelton.ir.evaluate import evaluate, evaluate_node, widen
from pelton.ir.builder import Builder
from pelton.ir.graph import Value
from pelton.ir.types import F32, DType, TensorType
from pelton.ops import REGISTRY
from pelton.ops.op import Term
from pelton.ir.scalar import PRIMITIVES, Scalar, cast
from pelton.passes.decompose import decompose

ALL = list(examples())
IDS = [name for name, *_ in ALL]


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

        def constant(a) -> Value:
            keeps_type = isinstance(a, np.ndarray) and a.dtype != np.float64
            return builder.constant(a if keeps_type else np.asarray(a, dtype.numpy))

        args = [typed[i] if i in typed else constant(a) for i, a in enumerate(thing.args)]
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
        if op.instance is not None:
            continue  # plugins have tests of their own
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
        "detections",
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
            r"matmul: needs equal inner dimensions, got f32\[5, 7\], f32\[8, 3\]",
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
