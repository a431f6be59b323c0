"""The program representation: text form, keys, verification, order, and evaluation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from compare import assert_close
from draw import examples, operands

from pelton.errors import BuildError, InputError
from pelton.ir import dims
from pelton.ir.evaluate import evaluate
from pelton.ir.builder import Builder
from pelton.ir.graph import (
    Body,
    Graph,
    Node,
    Value,
    bodies,
    make_body,
    remove_dead_nodes,
    substitute,
    symbols,
    topological,
)
from pelton.ir.text import key, node_text, parse, parse_node, to_text
from pelton.ir.types import F16, F32, I64, DType, TensorType, broadcast_shapes
from pelton.ir.verify import verify
from pelton.ops import REGISTRY
from pelton.ops.op import Op

TEXT = """\
graph main(%x: f32[2, 3]) {
  %half = constant f32[] 0.5
  %y: f32[2, 3] = mul(%x, %half) "layer1/mul"
  %shift = constant f32[3] [0.1, -0.0, inf]
  %zeros = constant f32[1, 3] 0.0
  %s: f32[1, 3] = sub(%shift, %zeros)
  %z: f32[2, 3] = add(%y, %s)
  %values: f32[2, 1], %where: i64[2, 1] = top_k(%z) {k=1, axis=1}
  %small: f16[2, 3] = cast(%z) {to=f16}
  return %values, %where, %y
}
"""


def test_text_parses_back_to_itself():
    graph = parse(TEXT)
    verify(graph)
    assert to_text(graph, data=True) == TEXT
    assert graph.nodes[0].name == "layer1/mul" and graph.nodes[3].attrs == {
        "k": 1,
        "axis": 1,
        "largest": True,
        "sorted": True,
    }


@pytest.mark.parametrize("name, op, types, attrs", list(examples()), ids=[name for name, *_ in examples()])
def test_every_op_survives_the_text_form(name, op, types, attrs):
    builder = Builder("a graph")
    inputs = [builder.input(t, f"in {i}") for i, t in enumerate(types)]
    graph = builder.graph(builder.emit(op, inputs, attrs, node_name='say "hello"\n'))
    verify(graph)
    read = parse(to_text(graph))
    verify(read)
    assert to_text(read) == to_text(graph) and key(read) == key(graph)
    assert (
        read.nodes[0].attrs == graph.nodes[0].attrs and read.nodes[0].op is op and read.nodes[0].name == 'say "hello"\n'
    )
    line = node_text(graph.nodes[0])
    node = parse_node(line)
    assert "\n" not in line and node_text(node) == line
    assert [v.type for v in node.inputs] == list(types) and node.attrs == attrs


NESTED = """\
graph main[n: 1..4..](%c: bool[], %x: f32[n, 3], %times: i64[]) {
  %b = constant f32[3] [1.0, 2.0, 3.0]
  %y: f32[n, 3] = if(%c, %x, %b) {then=graph a(%x: f32[n, 3], %b: f32[3]) { %y: f32[n, 3] = add(%x, %b) return %y }, other=graph o(%x: f32[n, 3], %b: f32[3]) \
{ %s = constant f32[] 2.0 %y: f32[n, 3] = mul(%x, %s) "inside" return %y }}
  %z: f32[n, 3] = loop(%times, %c, %y) {body=graph b(%i: i64[], %v: f32[n, 3]) \
{ %w: f32[n, 3] = add(%v, %v) %t = constant bool[] true return %t, %w }, carried=1}
  return %z
}
"""


def test_graphs_within_graphs():
    graph = parse(NESTED)
    verify(graph)
    assert to_text(graph, data=True) == NESTED and key(parse(to_text(graph))) == key(graph)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    feeds = {"x": x, "times": np.array(3)}
    assert (evaluate(graph, {**feeds, "c": np.array(True)})["z"] == (x + np.arange(1, 4, dtype=np.float32)) * 8).all()
    assert (evaluate(graph, {**feeds, "c": np.array(False)})["z"] == x * 2).all()
    branch, repeated = graph.nodes
    assert bodies(branch)[0] != bodies(branch)[1] and bodies(branch)[0] == bodies(parse(NESTED).nodes[0])[0]
    line = node_text(branch)
    assert "\n" not in line and node_text(parse_node(line, dims_of(graph))) == line
    inside = bodies(repeated)[0].graph
    broken = inside.replace(outputs=inside.outputs[::-1])
    with pytest.raises(BuildError, match="loop: needs a graph that gives a condition and what it carries"):
        verify(
            graph.replace(
                nodes=(
                    branch,
                    Node(repeated.op, repeated.inputs, {**repeated.attrs, "body": Body(broken)}, repeated.outputs),
                )
            )
        )


def dims_of(graph: Graph) -> dict[str, dims.Size]:
    return {s.name: dims.symbol(s.name, s.minimum, s.optimum, s.maximum) for s in symbols(graph)}


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


def test_a_program_means_the_same_after_the_text_form():
    graph = parse(TEXT)
    x = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assert_close(evaluate(parse(to_text(graph, data=True)), x), evaluate(graph, x))


def test_types_of_outputs_may_be_left_out():
    graph = parse(
        "graph main(%x: f32[2, 3]) { %y = relu(%x)  %v, %i = top_k(%y) {k=2, axis=1} return %v, %i }  # by hand"
    )
    assert [str(v.type) for v in graph.outputs] == ["f32[2, 2]", "i64[2, 2]"]


@pytest.mark.parametrize("dtype", [d for d in DType], ids=lambda d: d.value)
def test_constants_of_every_type_are_printed_exactly(dtype):
    numbers = [0, 1, 2, 3, 1, 0]
    array = (
        np.array(["", "é", 'a"b', "\n", "x, y", "0"], object)
        if dtype is DType.STRING
        else np.array(numbers).astype(dtype.numpy)
    )
    if dtype.is_float:
        array = np.array([0.1, -2.5, 1 / 3, 7e-3, -0.0, 1]).astype(dtype.numpy)
    if dtype in (DType.C64, DType.C128):
        array = np.array([1 + 2j, -0.1j, 1 / 3, 0, 1, 2]).astype(dtype.numpy)
    if dtype in (DType.I64, DType.U64):
        array[0] = np.iinfo(array.dtype).max
    for shaped in (array.reshape(2, 3), array[0].reshape(()) if dtype is not DType.STRING else array[:1], array[:0]):
        value = Value(TensorType.of(shaped), "c")
        graph = Graph((), {value: shaped}, (), (value,))
        read = parse(to_text(graph, data=True))
        found = read.constants[read.outputs[0]]
        assert TensorType.of(found) == value.type
        assert found.tolist() == shaped.tolist() if dtype is DType.STRING else found.tobytes() == shaped.tobytes()


def test_large_constants_are_types_unless_handed_in():
    weights = np.arange(1000, dtype=np.float32)
    builder = Builder()
    graph = builder.graph(
        builder.emit(REGISTRY["add"], (builder.input(TensorType(F32, (1000,)), "x"), builder.constant(weights, "w")))
    )
    text = to_text(graph, data=True)
    assert len(text) < 200
    zeros, kept = parse(text), parse(text, {"w": weights})
    assert not next(iter(zeros.constants.values())).any()
    assert next(iter(kept.constants.values())) is weights
    verify(zeros)


def test_strange_names_and_equal_names_stay_apart():
    builder = Builder()
    x = builder.input(TensorType(F32, (2,)), 'a b"%\\')
    (y,) = builder.emit(REGISTRY["relu"], (x,), names=["ünder"])
    z = Value(y.type, "ünder")
    graph = builder.graph((y,))
    graph = graph.replace(nodes=(*graph.nodes, Node(REGISTRY["neg"], (y,), {}, (z,))), outputs=(z, y))
    verify(graph.replace(outputs=(z,)))
    read = parse(to_text(graph))
    assert read.inputs[0].name == x.name and len({v.name for v in read.outputs}) == 2
    assert read.nodes[1].inputs == read.nodes[0].outputs


def test_foreign_ops_carry_their_name():
    from pelton.ops.foreign import foreign

    op = foreign("onnx::Unique@11")
    value = Value(TensorType(F32, (3,)), "x")
    node = Node(
        op,
        (value,),
        {"model": "AAE=", "extra": (1, 2.5, "é", True, (), (3,))},
        (Value(TensorType(I64, (3,)), "y"),),
        "u",
    )
    read = parse_node(node_text(node))
    assert read.op is op and read.attrs == node.attrs and read.output.type == node.output.type


@pytest.mark.parametrize(
    "text, reason",
    [
        ("graph main(%x: f32[2]) { %y = relu(%z) return %y }", "line 1: expected a value defined before, got '%z'"),
        ("graph main(%x: f32[2]) {\n %x = relu(%x)\n return %x }", "line 2: %x is defined twice"),
        ("graph main(%x: f33[2]) { return %x }", "'f33' is no element type"),
        ("graph main(%x: f32[2]) { %y = nothing(%x) return %y }", "expected the name of an op, got 'nothing'"),
        ("graph main(%x: f32[2]) { %y = softmax(%x) return %y }", "softmax needs attribute"),
        ("graph main(%x: f32[2]) { %y = relu(%x) {up=1} return %y }", "no attribute"),
        ("graph main(%x: f32[2]) { %y, %z = relu(%x) return %y }", "relu has 1 outputs, got names for 2"),
        ("graph main(%x: f32[2]) { %y = matmul(%x, %x, %x) return %y }", "matmul"),
        ("graph main(%x: f32[2]) { %c = constant f32[3] [1.0, 2.0] return %c }", "needs 3 elements, got 2"),
        ("graph main(%x: f32[2]) { return %x", "expected ,, got 'the end'"),
        ("graph main(%x: f32[2.5]) { return %x }", "expected an integer"),
        ("graph main(%x: f32[2]) { ? }", r"cannot read '\?"),
        ("", "expected graph, got 'the end'"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_line(text, reason):
    with pytest.raises(InputError, match=reason):
        parse(text)


# --- keys


def region(names, scale=0.5, weights=(3, 4), op="mul", node_name="", order=(0, 1)) -> Graph:
    builder = Builder(names[0])
    x = builder.input(TensorType(F32, (2, 3)), names[1])
    made = {}
    for i in order:  # constants in any order: their first use counts
        made[i] = (
            builder.constant(np.full((), scale, np.float32), names[2])
            if i == 0
            else builder.constant(np.ones(weights, np.float32), names[3])
        )
    (y,) = builder.emit(REGISTRY[op], (x, made[0]), names=[names[4]], node_name=node_name)
    return builder.graph(builder.emit(REGISTRY["matmul"], (y, made[1])))


def test_keys_do_not_depend_on_names():
    a = region("gxcwy", node_name="layer1")
    assert key(a) == key(region(["other", "in put", "k 1", "m", "q"], node_name="layer2", order=(1, 0)))
    assert "layer1" not in key(a) and "0.5" in key(a)


@pytest.mark.parametrize("change", [dict(scale=0.25), dict(weights=(3, 5)), dict(op="add")])
def test_keys_tell_programs_apart(change):
    assert key(region("gxcwy")) != key(region("gxcwy", **change))


def test_keys_do_not_tell_large_constants_apart_but_do_tell_which_value_is_read():
    graph = region("gxcwy")
    assert key(graph) == key(
        graph.replace(constants={v: a * 2 if a.size > 1 else a for v, a in graph.constants.items()})
    )
    builder = Builder()
    x, y = (builder.input(TensorType(F32, (2,)), n) for n in "xy")
    (xy,), (xx,) = builder.emit(REGISTRY["add"], (x, y)), builder.emit(REGISTRY["add"], (x, x))
    graph = builder.graph((xy,))
    assert key(remove_dead_nodes(graph)) != key(remove_dead_nodes(graph.replace(outputs=(xx,))))


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
        case "default not spelled out":
            return g.replace(nodes=(first, Node(REGISTRY["elu"], second.inputs, {}, second.outputs, "second")))
        case "equal input names":
            return g.replace(inputs=(*g.inputs, Value(TensorType(F32, ()), "x")))
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("use before definition", r"node 'second' \(relu\) reads %y"),
        ("missing producer", "which nothing before it makes"),
        ("defined twice", "%y.* is defined twice, the second time by node 'first'"),
        ("input again", "%x.* is defined twice"),
        ("wrong shape", r"node 'first' \(add\) should give f32\[2, 3\], its outputs are %y: f32\[2, 4\]"),
        ("wrong type", "should give f32"),
        ("wrong arity", "node 'first'.*does not fit"),
        ("no output", "output %nowhere"),
        ("constant of another type", r"constant %c: f32\[3\] holds an array of type f64\[3\]"),
        ("constant of another shape", r"f32\[4\]"),
        ("missing attribute", "needs attribute"),
        ("default not spelled out", r"\['alpha'\] spelled out"),
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
    with pytest.raises(ValueError, match=r"liar gave shape \[2\].*f32\[9\].*'here'"):
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
