"""Programs as graphs: verification, order, building, evaluation, and the types of values."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from draw import examples, operands

from pelton.errors import BuildError
from pelton.ir import dims
from pelton.ir.builder import Builder
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Node, Value, make_body, remove_dead_nodes, substitute, topological
from pelton.ir.text import parse
from pelton.ir.types import F16, F32, I64, DType, TensorType, broadcast_shapes
from pelton.ir.verify import verify
from pelton.ops import REGISTRY
from pelton.ops.op import Op

# --- verification


def good() -> Graph:
    return parse(
        'graph main(%x: f32[2, 3]) { %c = constant f32[3]  %y = add(%x, %c) "first"  %z = relu(%y) "second" return %z }'
    )


def broken(name: str) -> Graph:
    g = good()
    first, second = g.nodes
    (c,) = g.constants
    match name:
        case "use before definition":
            return g.replace(nodes=(second, first))
        case "missing producer":
            return g.replace(nodes=(second,))
        case "defined twice":
            return g.replace(nodes=(first, first, second))
        case "input again":
            return g.replace(inputs=(*g.inputs, *g.inputs))
        case "wrong shape":
            return g.replace(nodes=(dataclasses.replace(first, outputs=(Value(TensorType(F32, (2, 4)), "y"),)), second))
        case "wrong type":
            return g.replace(nodes=(first, dataclasses.replace(second, outputs=(Value(TensorType(F16, (2, 3)), "z"),))))
        case "wrong arity":
            return g.replace(nodes=(dataclasses.replace(first, inputs=first.inputs[:1]), second))
        case "no output":
            return g.replace(outputs=(Value(TensorType(F32, ()), "nowhere"),))
        case "constant of another type":
            return g.replace(constants={c: np.zeros(3)})
        case "constant of another shape":
            return g.replace(constants={c: np.zeros(4, np.float32)})
        case "missing attribute":
            return g.replace(nodes=(first, Node(REGISTRY["softmax"], second.inputs, {}, second.outputs, "second")))
        case "default not explicit":
            return g.replace(nodes=(first, Node(REGISTRY["elu"], second.inputs, {}, second.outputs, "second")))
        case "equal input names":
            return g.replace(inputs=(*g.inputs, Value(TensorType(F32, ()), "x")))
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("use before definition", r"node 'second' \(relu\) reads %y"),
        ("missing producer", "before it is written"),
        ("defined twice", "%y.* is defined twice, the second time by node 'first'"),
        ("input again", "%x.* is defined twice"),
        ("wrong shape", r"node 'first' \(add\) must have outputs f32\[2, 3\], but has %y: f32\[2, 4\]"),
        ("wrong type", "must have outputs f32"),
        ("wrong arity", "node 'first'.*does not fit"),
        ("no output", "output %nowhere"),
        ("constant of another type", r"constant %c: f32\[3\] holds an array of type f64\[3\]"),
        ("constant of another shape", r"f32\[4\]"),
        ("missing attribute", "needs attribute"),
        ("default not explicit", r"\['alpha'\] to be explicit"),
        ("equal input names", "two inputs are named 'x'"),
    ],
)
def test_verify_refuses(name, reason):
    verify(good())
    with pytest.raises(BuildError, match=reason):
        verify(broken(name))


# --- graphs


def test_topological_sorts_and_names_a_node_on_a_cycle():
    graph = parse("graph main(%x: f32[2]) { %a = relu(%x) %b = neg(%a) %c = add(%a, %b) return %c }")
    order = topological(reversed(graph.nodes), graph.inputs)
    verify(graph.replace(nodes=order))
    assert topological(graph.nodes, graph.inputs) == graph.nodes
    a, b = (Value(TensorType(F32, (2,)), n) for n in "ab")
    loop = [Node(REGISTRY["relu"], (b,), {}, (a,), "there"), Node(REGISTRY["relu"], (a,), {}, (b,), "back")]
    with pytest.raises(ValueError, match="cycle through node '(there|back)'"):
        topological(loop, ())
    own = Node(REGISTRY["relu"], (a,), {}, (a,), "itself")
    with pytest.raises(ValueError, match="cycle through node 'itself'"):
        topological([own], ())


def test_topological_manages_very_deep_programs():
    builder = Builder()
    (v,) = (builder.input(TensorType(F32, (1,)), "x"),)
    for _ in range(5000):
        (v,) = builder.emit(REGISTRY["neg"], (v,))
    graph = builder.graph((v,))
    assert topological(reversed(graph.nodes), graph.inputs) == graph.nodes


def test_live_drops_what_no_output_needs():
    graph = parse(
        "graph main(%x: f32[2], %u: f32[2]) { %a = relu(%x) %c = constant f32[2] %b = add(%x, %c) return %a }"
    )
    kept = remove_dead_nodes(graph)
    assert [n.op.name for n in kept.nodes] == ["relu"] and not kept.constants and kept.inputs == graph.inputs
    assert remove_dead_nodes(kept) is kept


def test_substitute_follows_chains():
    graph = parse("graph main(%x: f32[2]) { %a = relu(%x) %b = neg(%a) %c = neg(%b) return %c }")
    a, b, c = (n.output for n in graph.nodes)
    verify(read := remove_dead_nodes(substitute(graph, {b: a, c: b})))
    assert read.outputs == (a,) and len(read.nodes) == 1


def test_uses_counts_readings_and_outputs():
    graph = parse("graph main(%x: f32[2]) { %a = add(%x, %x) return %a, %x }")
    assert graph.uses(graph.inputs[0]) == 3 and graph.uses(graph.outputs[0]) == 1
    assert graph.producer == {graph.outputs[0]: graph.nodes[0]}


def test_a_builder_that_folds_computes_constants_and_reckons_with_sizes():
    builder = Builder(folds=True)
    n = dims.symbol("n", 1, 4, 9)
    size = builder.from_sizes(np.array([n], object), I64, "n")
    two = builder.constant(np.array([2]), "two")
    (double,) = builder.emit(REGISTRY["mul"], (size, two))
    assert builder.elements(double).tolist() == [2 * n] and not builder.nodes
    (four,) = builder.emit(REGISTRY["mul"], (two, two))
    assert builder.constants[four].tolist() == [4] and not builder.nodes
    (less,) = builder.emit(REGISTRY["less"], (builder.from_sizes(np.array([-n], object), I64), two))
    assert less.type == TensorType(DType.BOOL, (1,)) and not builder.nodes


def test_what_a_nested_graph_reads_from_around_it_becomes_its_inputs():
    builder, inner = Builder(), Builder("inner")
    x, w = (builder.input(TensorType(F32, (2,)), name) for name in "xw")
    a = inner.input(TensorType(F32, (2,)), "a")
    (y,) = inner.emit(REGISTRY["add"], (a, w))
    body, read = make_body(inner.graph((y, x)))
    assert read == (w, x) and [v.name for v in body.graph.inputs] == ["a", "w", "x"]
    verify(body.graph)
    assert make_body(inner.graph((y,)), (x,))[1] == (x, w)


def test_builder_makes_names_unique_and_infers():
    builder = Builder()
    x = builder.input(TensorType(F32, (2, 3)), "x")
    (y,) = builder.emit(REGISTRY["relu"], (x,), names=["x"])
    assert (x.name, y.name) == ("x", "x_2") and y.type == x.type
    with pytest.raises(ValueError, match="inner dimensions"):
        builder.emit(REGISTRY["matmul"], (x, x))


def test_evaluate_in_float64_throughout_and_all_values():
    graph = parse("graph main(%x: f16[1], %y: f16[1]) { %a = add(%x, %y) %b = sub(%a, %x) return %b }")
    feeds = {"x": np.array([2048], np.float16), "y": np.array([1], np.float16)}
    assert evaluate(graph, feeds)["b"] == 0 and evaluate(graph, feeds, round=False)["b"] == 1
    assert set(evaluate(graph, feeds, keep=True)) == {"x", "y", "a", "b"}


def test_a_reference_that_breaks_its_word_is_named():
    op = Op("liar", "structured", infer=lambda x: x.with_shape((9,)), reference=lambda x: x)
    builder = Builder()
    graph = builder.graph(builder.emit(op, (builder.input(TensorType(F32, (2,)), "x"),), node_name="here"))
    with pytest.raises(ValueError, match=r"liar returned shape \[2\].*f32\[9\].*'here'"):
        evaluate(graph, {"x": np.zeros(2, np.float32)})


# --- types


def test_types_print_and_parse():
    for text in ("f32[]", "i64[1]", "bf16[2, 3]", "bool[0, 7]"):
        assert str(TensorType.parse(text)) == text
    assert TensorType.parse("u8[ 2,3 ]") == TensorType(DType.U8, (2, 3))
    for text in ("f32", "x[2]", "f32[2", "f32[a]"):
        with pytest.raises(ValueError):
            TensorType.parse(text)
    assert TensorType.parse("f16[2, 3]").bytes == 12


def test_broadcasting():
    assert broadcast_shapes((2, 1, 5), (3, 1), ()) == (2, 3, 5)
    assert broadcast_shapes((0, 1), (1, 4)) == (0, 4)
    with pytest.raises(ValueError, match=r"do not broadcast: \[2\] and \[3\]"):
        broadcast_shapes((2,), (3,))
    n, m, k = dims.symbol("n", 0), dims.symbol("m", 2, 3), dims.symbol("k", 1, maximum=4)
    assert broadcast_shapes((n, 3), (1, 3)) == (n, 3) == broadcast_shapes((n, 1), (n, 3))
    # a run may find one of them 1, or both the same
    for one, other in (((n,), (m,)), ((k,), (7,)), ((n,), (k,))):
        with pytest.raises(dims.Undecided):
            broadcast_shapes(one, other)
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shapes((m,), (m + 1,))


def test_element_types_know_numpy():
    for dtype in DType:
        assert DType.of(dtype.numpy) is dtype
    with pytest.raises(TypeError):
        DType.of(np.dtype("datetime64[s]"))


def test_operands_are_the_same_in_every_run():
    _, op, types, attrs = next(examples("structured"))
    assert all(np.array_equal(a, b) for a, b in zip(operands(op, types, attrs), operands(op, types, attrs)))
