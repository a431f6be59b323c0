"""Control flow, sequences, optionals and functions of ONNX models: unrolled, or left to scripts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_checks import check, op_names
from onnx_models import draw, model, node, value_info

from pelton.importers.onnx.load import load
from pelton.ir.imported import OnData


def branch(name: str, nodes, outputs, inputs=(), constants=()) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, list(inputs), [onnx.ValueInfoProto(name=o) for o in outputs], list(constants))


def _if(condition: dict) -> onnx.ModelProto:
    then = branch(
        "then", [node("Add", "x w", "t")], ["t"], constants=[onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")]
    )
    other = branch("else", [node("Neg", "x", "e")], ["e"])
    return model(
        [node("If", "c", "i", then_branch=then, else_branch=other), node("Relu", "i", "y")],
        {"x": "f32[2]"},
        ["y"],
        condition,
    )


@pytest.mark.parametrize("truth, expected", [(True, ["add", "relu"]), (False, ["neg", "relu"])])
def test_if_with_a_constant_condition_is_its_branch(truth, expected):
    assert op_names(check(_if({"c": np.array(truth)}))) == expected


def test_if_on_data_is_left_to_scripts():
    m = _if({})
    m.graph.input.append(value_info("c", "bool[]"))
    with pytest.raises(OnData, match="the operation of If depends on the data .node 'If → i'"):
        load(m)


def _loop(count: int | str, body_condition: str) -> onnx.ModelProto:
    body = branch(
        "body",
        [
            node("Mul", "a two", "b"),
            node("Identity", "b", "scan"),
            node(*body_condition.split(",")),
            node("Add", "b x", "next"),
        ],
        ["go", "next", "scan"],
        [value_info(n, t) for n, t in (("i", "i64[]"), ("cond", "bool[]"), ("a", "f32[2]"))],
    )
    return model(
        [node("Loop", f"{count} true x", "y all", body=body)],
        {"x": "f32[2]"},
        ["y", "all"],
        {"n": np.int64(3), "many": np.int64(1000), "true": np.array(True), "two": np.float32(2), "four": np.float32(4)},
        opset=17,
    )


def test_loops_of_a_known_count_are_written_out():
    graph = check(_loop("n", "Identity,cond,go"))
    assert op_names(graph).count("add") == 3 and "onnx::Loop@17" not in op_names(graph)


def test_loops_on_data_are_left_to_scripts():
    body = branch(
        "body",
        [node("Mul", "a two", "b"), node("ReduceMax", "b", "top", keepdims=0), node("Less", "top four", "go")],
        ["go", "b"],
        [value_info(n, t) for n, t in (("i", "i64[]"), ("cond", "bool[]"), ("a", "f32[2]"))],
    )
    m = model(
        [node("Loop", "_ true x", "y", body=body)],
        {"x": "f32[2]"},
        ["y"],
        {"true": np.array(True), "two": np.float32(2), "four": np.float32(4)},
    )
    with pytest.raises(OnData, match="the operation of Loop depends on the data"):
        load(m)


@pytest.mark.parametrize("backwards", [False, True])
def test_scan_is_written_out(backwards):
    body = branch(
        "body",
        [node("Add", "sum x", "next"), node("Identity", "next", "kept")],
        ["next", "kept"],
        [value_info("sum", "f32[2]"), value_info("x", "f32[2]")],
    )
    attrs = {"scan_input_directions": [1], "scan_output_axes": [1]} if backwards else {}
    m = model(
        [node("Scan", "start xs", "end all", body=body, num_scan_inputs=1, **attrs)],
        {"start": "f32[2]", "xs": "f32[3, 2]"},
        ["end", "all"],
    )
    feeds = draw(m)
    sums = feeds["start"] + np.cumsum(feeds["xs"][::-1] if backwards else feeds["xs"], 0)
    assert op_names(check(m, {"end": sums[-1], "all": sums.T if backwards else sums}, feeds)).count("add") == 3


def test_sequences_exist_while_importing_only():
    nodes = [
        node("SplitToSequence", "x", "s", axis=0),
        node("SequenceConstruct", "x x", "pair"),
        node("SequenceEmpty", "", "none"),
        node("SequenceInsert", "s x zero", "s4"),
        node("SequenceErase", "s4 zero", "s3"),
        node("SequenceAt", "s3 last", "row"),
        node("SequenceLength", "s4", "n"),
        node("ConcatFromSequence", "s3", "joined", axis=1),
        node("ConcatFromSequence", "pair", "stacked", axis=0, new_axis=1),
        node("SequenceInsert", "none row", "one"),
        node("SequenceAt", "one zero", "again"),
        node("SplitToSequence", "x two", "parts", axis=1),
        node("SequenceAt", "parts zero", "part"),
        node("SplitToSequence", "x sizes", "more"),
        node("SequenceAt", "more zero", "first"),
    ]
    body = branch("body", [node("Neg", "item", "negative")], ["negative"], [value_info("item", "f32[1, 4]")])
    nodes += [node("SequenceMap", "s", "mapped", body=body), node("SequenceAt", "mapped last", "minus")]
    m = model(
        nodes,
        {"x": "f32[3, 4]"},
        ["row", "n", "joined", "stacked", "again", "part", "first", "minus"],
        {"zero": np.int64(0), "last": np.int64(-1), "two": np.int64(3), "sizes": np.array([1, 2])},
    )
    assert all(w in ("slice", "concat", "neg", "reshape", "copy") for w in op_names(check(m)))


@pytest.mark.parametrize("position, expected", [(0, "cab"), (1, "acb"), (2, "abc"), (-1, "acb"), (-2, "cab")])
def test_places_in_sequences_count_from_both_ends(position, expected):
    m = model(
        [
            node("SequenceConstruct", "a b", "s"),
            node("SequenceInsert", "s c at", "t"),
            node("ConcatFromSequence", "t", "y", axis=0),
        ],
        {n: "f32[1]" for n in "abc"},
        ["y"],
        {"at": np.int64(position)},
    )
    feeds = {n: np.array([i], np.float32) for i, n in enumerate("abc")}
    check(m, {"y": np.array(["abc".index(n) for n in expected], np.float32)}, feeds)


def test_optionals():
    m = model(
        [node("Optional", "x", "o"), node("OptionalHasElement", "o", "has"), node("OptionalGetElement", "o", "y")],
        {"x": "f32[3]"},
        ["has", "y"],
        opset=18,
    )
    x = np.ones(3, np.float32)
    assert op_names(check(m, {"has": np.array(True), "y": x}, {"x": x})) == ["copy"]


def test_functions_of_the_model():
    """Their attributes reach inner nodes, defaults count, absent inputs stay absent, inner calls work, and other opsets
    do."""
    leaky = helper.make_function(
        "mine",
        "Leaky",
        ["a"],
        ["b"],
        [_refers("LeakyRelu", "a", "b", "alpha", "slope")],
        [helper.make_opsetid("", 16)],
        ["slope"],
    )
    both = helper.make_function(
        "mine",
        "Both",
        ["a", "bound"],
        ["c", "unused"],
        [
            helper.make_node("Leaky", ["a"], ["b"], domain="mine", slope=0.5),
            node("Clip", "b bound", "c"),
            node("Shape", "bound", "unused"),
        ],
        [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
    )
    m = model(
        [helper.make_node("Both", ["x"], ["y"], domain="mine")],
        {"x": "f32[5]"},
        ["y"],
        functions=[leaky, both],
        domains={"mine": 1},
    )
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    assert op_names(check(m, {"y": np.where(x < 0, x / 2, x).astype(np.float32)}, {"x": x})) == ["leaky_relu"]


def _refers(op: str, inputs: str, outputs: str, name: str, source: str) -> onnx.NodeProto:
    found = node(op, inputs, outputs)
    found.attribute.add(name=name, ref_attr_name=source, type=onnx.AttributeProto.FLOAT)
    return found
