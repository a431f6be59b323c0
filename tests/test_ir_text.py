"""The text form of programs, and the keys made from it."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close
from draw import examples

from pelton.errors import BuildError, InputError
from pelton.ir import dims
from pelton.ir.evaluate import evaluate
from pelton.ir.builder import Builder
from pelton.ir.graph import Body, Graph, Node, Value, bodies, remove_dead_nodes, symbols
from pelton.ir.text import key, node_text, parse, parse_node, to_text
from pelton.ir.types import F32, I64, DType, TensorType
from pelton.ir.verify import verify
from pelton.ops import REGISTRY

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
  %y: f32[n, 3] = if(%c, %x, %b) \
{then=graph a(%x: f32[n, 3], %b: f32[3]) { %y: f32[n, 3] = add(%x, %b) return %y }, \
other=graph o(%x: f32[n, 3], %b: f32[3]) \
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
    attrs = {**repeated.attrs, "body": Body(inside.replace(outputs=inside.outputs[::-1]))}
    broken = Node(repeated.op, repeated.inputs, attrs, repeated.outputs)
    with pytest.raises(BuildError, match="loop: needs a graph that returns a condition and its carried values"):
        verify(graph.replace(nodes=(branch, broken)))


def dims_of(graph: Graph) -> dict[str, dims.Size]:
    return {s.name: dims.symbol(s.name, s.minimum, s.optimum, s.maximum) for s in symbols(graph)}


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
    if dtype is DType.STRING:
        array = np.array(["", "é", 'a"b', "\n", "x, y", "0"], object)
    else:
        array = np.array(numbers).astype(dtype.numpy)
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
        (
            "graph main(%x: f32[2]) { %y = nothing(%x) return %y }",
            r"expected the name of an op \(one of a plugin .*\), got 'nothing'",
        ),
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
