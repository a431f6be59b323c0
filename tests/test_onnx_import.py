"""The ONNX importer: every reader against the onnx package or the specification, control flow, functions, folding and
the interface."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
import test_exports
import test_microsoft_attention
import test_microsoft_quant
from compare import assert_close
from draw import examples
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import BY_HAND, CASES
from onnx_models import draw, model, one_node, value_info

from pelton.errors import ModelError
from pelton.ir.imported import OnData
from pelton.importers.onnx.load import load
from pelton.importers.onnx.node import READERS
from pelton.importers.onnx.ops.declared import AsDeclared
from pelton.ir.dims import map_dims, symbol
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph
from pelton.ir.text import parse, to_text
from pelton.ir.verify import verify


def node(op: str, inputs: str, outputs: str, **attrs) -> onnx.NodeProto:
    """Names apart by spaces; `_` is an absent one."""
    names = [["" if n == "_" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, **attrs)


def check(
    m: onnx.ModelProto, want: dict[str, np.ndarray] | None = None, feeds: dict[str, np.ndarray] | None = None
) -> Graph:
    """The model imported and evaluated, against what is wanted or else what the onnx package makes of it; gives the
    program."""
    feeds = feeds or draw(m)
    graph = load(m).graph
    verify(graph)
    outputs = [o.name for o in m.graph.output]
    assert [v.name for v in graph.inputs] == list(feeds) and [v.name for v in graph.outputs] == outputs
    if want is None:
        found = [
            a.astype(object) if a.dtype.kind == "U" else a
            for a in map(np.asarray, ReferenceEvaluator(m).run(None, feeds))
        ]
        want = dict(zip(outputs, found))
    assert_close(evaluate(graph, feeds), want, about=m.graph.node[0].op_type)
    return graph


def words(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def title(case) -> str:
    attrs = next(a for a in case[1:] if isinstance(a, dict))
    return "-".join([case[0], *(f"{k}={v}" for k, v in attrs.items() if isinstance(v, (int, str, list)))])


# --- readers


@pytest.mark.parametrize("case", CASES, ids=title)
def test_readers_against_the_reference_evaluator(case):
    op, *operands, attrs = case
    m = one_node(op, *operands, **attrs)
    low, high = (1.1, 3.0) if op == "Acosh" else (0.1, 0.9)
    check(m, feeds=draw(m, low=low, high=high))


@pytest.mark.parametrize("case", BY_HAND, ids=title)
def test_readers_against_the_specification(case):
    op, *operands, attrs, meaning = case
    m = one_node(op, *operands, **attrs)
    feeds = draw(m)
    want = meaning(*(a.astype(np.float64 if a.dtype.kind == "f" else np.int64) for a in feeds.values()))
    graph = check(m, {"y0": want.astype(np.int32 if op == "MatMulInteger" else np.float32)}, feeds)
    assert all(n.op.kind != "foreign" for n in graph.nodes)


@pytest.mark.parametrize(
    "op, filters, group, bias",
    [
        ("Conv", (3, 0, 2, 2), 1, 3),
        ("Conv", (4, 0, 3, 1), 2, 4),
        ("ConvTranspose", (0, 3, 2, 2), 1, 3),
        ("ConvTranspose", (0, 3, 2, 2), 2, 6),
    ],
)
def test_pictures_without_channels_leave_the_bias(op, filters, group, bias):
    b = np.random.default_rng(0).standard_normal(bias).astype(np.float32)
    m = model(
        [node(op, "x w b", "y", group=group)],
        {"x": "f32[2, 0, 5, 7]"},
        ["y"],
        {"w": np.zeros(filters, np.float32), "b": b},
    )
    sign = 1 if op == "ConvTranspose" else -1
    sizes = (n + sign * (k - 1) for n, k in zip((5, 7), filters[2:]))
    check(m, {"y": np.broadcast_to(b[:, None, None], (2, bias, *sizes))})


def test_nothing_is_resized_to_nothing():
    m = model(
        [node("Resize", "x _ s", "y", mode="linear")],
        {"x": "f32[0, 3, 4, 5]"},
        ["y"],
        {"s": np.array([1, 1, 2, 3], np.float32)},
    )
    check(m, {"y": np.empty((0, 3, 8, 15), np.float32)})


DECLARED = {key: reader.op for key, reader in READERS.items() if isinstance(reader, AsDeclared)}
READ = [
    (name, operator, op, types, attrs)
    for name, op, types, attrs in examples()
    for (_, operator), of in DECLARED.items()
    if of is op
]


@pytest.mark.parametrize("name, operator, op, types, attrs", READ, ids=[e[0] for e in READ])
def test_what_an_op_declares_is_read_as_it(name, operator, op, types, attrs):
    """Its examples as ONNX spells them become that op again. `test_ops_onnx.py` compares what it means."""
    how = {op.onnx_names.get(k, k): v for k, v in attrs.items()}
    how |= {"opset": onnx.defs.onnx_opset_version(), "outputs": len(op.infer_types(types, attrs))}
    graph = load(one_node(operator, *map(str, types), **how)).graph
    (made,) = graph.nodes
    assert made.op is op and made.inputs == graph.inputs
    assert made.attrs.keys() == attrs.keys()
    assert all(type(made.attrs[k]) is type(v) and made.attrs[k] == pytest.approx(v) for k, v in attrs.items())


def test_every_reader_is_tested():
    tested = {(attrs.get("domain", ""), op) for op, *_, attrs in CASES} | {
        (attrs.get("domain", ""), op) for op, *_, attrs, _ in BY_HAND
    }
    for make in (*test_microsoft_attention.CASES.values(), *test_microsoft_quant.CASES.values()):
        called = make(np.random.default_rng(0))[0].graph.node[0]
        tested.add((called.domain, called.op_type))
    tested |= {
        (n.domain, n.op_type)
        for name in test_exports.MODELS
        for n in onnx.load_from_string(test_exports.model(name)).graph.node
    }
    tested |= DECLARED.keys()
    tested.add(("ai.onnx.ml", "CategoryMapper"))  # in test_labels.py
    flow = {
        "Bernoulli",
        "If",
        "Loop",
        "Scan",
        "SplitToSequence",
        "ConcatFromSequence",
        "NonZero",
        "Unique",
        "NonMaxSuppression",
    }
    missing = {
        key for key in READERS.keys() - tested if key[1] not in flow and not key[1].startswith(("Sequence", "Optional"))
    }
    assert not missing, f"no test reads {sorted(missing)}"


@pytest.mark.parametrize(
    "m, expected",
    [
        (
            one_node("Gemm", "f32[3, 4]", np.ones((5, 4), np.float32), np.ones(5, np.float32), transB=1),
            ["matmul", "add"],
        ),
        (one_node("Gemm", "f32[3, 4]", "f32[5, 4]", transB=1, alpha=2.0), ["transpose", "matmul", "mul"]),
        (one_node("Flatten", "f32[3, 4, 5]"), ["reshape"]),
        (one_node("Split", "f32[3, 4]", axis=1, outputs=2), ["slice", "slice"]),
        (one_node("GlobalAveragePool", "f32[1, 3, 4, 4]"), ["reduce_mean"]),
        (one_node("Clip", "f32[3]", None, np.float32(6)), ["minimum"]),
        (one_node("Softmax", "f32[3, 4, 1]", axis=1, opset=11), ["softmax"]),
        (one_node("Transpose", "f32[3, 4]", perm=[0, 1]), ["copy"]),
        (one_node("BatchNormalization", "f32[1, 2, 3]", *[np.ones(2, np.float32)] * 4), ["batch_norm"]),
        (one_node("LayerNormalization", "f32[2, 3]", np.ones(3, np.float32)), ["layer_norm"]),
        (one_node("Attention", *["f32[1, 2, 3, 4]"] * 3, opset=23), ["attention"]),
        (
            one_node(
                "RotaryEmbedding",
                "f32[1, 2, 3, 4]",
                np.ones((5, 2), np.float32),
                np.ones((5, 2), np.float32),
                np.array([[0, 1, 2]]),
                opset=23,
            ),
            ["rotary"],
        ),
        (one_node("MaxPool", "f32[1, 2, 4, 4]", kernel_shape=[2, 2], outputs=2), ["max_pool", "max_pool_places"]),
        (one_node("GridSample", "f32[1, 2, 4, 4]", "f32[1, 3, 3, 2]", opset=20), ["grid_sample"]),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, list) else "",
)
def test_canonical_forms(m, expected):
    assert words(load(m).graph) == expected


# --- constants and shapes


def test_shape_chains_vanish():
    """What exporters write for x.view(x.shape[0], -1, 2)."""
    m = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n axes", "n1"),
            node("Concat", "n1 rest", "shape", axis=0),
            node("Reshape", "x shape", "y"),
        ],
        {"x": "f32[3, 4, 5]"},
        ["y"],
        {"zero": np.int64(0), "axes": np.array([0]), "rest": np.array([-1, 2])},
    )
    graph = check(m)
    assert words(graph) == ["reshape"] and graph.outputs[0].type.shape == (3, 10, 2) and not graph.constants


def test_large_constants_are_moved_but_not_grown():
    big = np.zeros((1200, 1000), np.float32)
    m = model(
        [
            node("Transpose", "w", "t"),
            node("MatMul", "x t", "y"),
            node("Expand", "one shape", "e"),
            node("Add", "y e", "z"),
        ],
        {"x": "f32[1, 1000]"},
        ["z"],
        {"w": big, "one": np.float32(1), "shape": np.array([1100, 1200])},
    )
    graph = load(m).graph
    assert words(graph) == ["matmul", "expand", "add"] and {v.type.shape for v in graph.constants} == {(1000, 1200), ()}


def test_initializers_that_are_listed_as_inputs_are_constants():
    m = model(
        [node("Add", "x w", "y")], {"x": "f32[2]", "w": "f32[2]"}, ["y"], {"w": np.ones(2, np.float32)}, ir_version=3
    )
    assert [v.name for v in load(m).graph.inputs] == ["x"]


def test_sparse_initializers():
    def sparse(name, indices):
        values = onnx.numpy_helper.from_array(np.array([1, 2], np.float32), name)
        return helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array(indices)), [2, 3])

    m = model([node("Add", "a b", "s"), node("Add", "x s", "y")], {"x": "f32[2, 3]"}, ["y"])
    m.graph.sparse_initializer.extend([sparse("a", [1, 5]), sparse("b", [[0, 0], [1, 2]])])
    check(m, {"y": np.array([[1, 1, 0], [0, 0, 4]], np.float32)}, {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("dtype", [np.float32, np.int64, "int4", "int2"])
def test_external_data(tmp_path, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(-3, 3).reshape(2, 3).astype(getattr(ml_dtypes, dtype) if isinstance(dtype, str) else dtype)
    tensor = onnx.numpy_helper.from_array(array, "w")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 5 + tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, "weights.bin", 5, len(tensor.raw_data))
    tensor.ClearField("raw_data")
    m = model([node("Cast", "w", "c", to=TensorProto.FLOAT), node("Add", "x c", "y")], {"x": "f32[3]"}, ["y"], opset=21)
    m.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    found = load(tmp_path / "m.onnx")
    assert found.info.path == str(tmp_path / "m.onnx")
    assert_close(evaluate(found.graph, {"x": np.zeros(3, np.float32)})["y"], array.astype(np.float32))


# --- control flow, sequences, functions


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
    assert words(check(_if({"c": np.array(truth)}))) == expected


def test_if_on_data_is_left_to_scripts():
    m = _if({})
    m.graph.input.append(value_info("c", "bool[]"))
    with pytest.raises(OnData, match="what If does depends on the data .node 'If → i'"):
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
    assert words(graph).count("add") == 3 and "onnx::Loop@17" not in words(graph)


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
    with pytest.raises(OnData, match="what Loop does depends on the data"):
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
    assert words(check(m, {"end": sums[-1], "all": sums.T if backwards else sums}, feeds)).count("add") == 3


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
    assert all(w in ("slice", "concat", "neg", "reshape", "copy") for w in words(check(m)))


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
    assert words(check(m, {"has": np.array(True), "y": x}, {"x": x})) == ["copy"]


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
    assert words(check(m, {"y": np.where(x < 0, x / 2, x).astype(np.float32)}, {"x": x})) == ["leaky_relu"]


def _refers(op: str, inputs: str, outputs: str, name: str, source: str) -> onnx.NodeProto:
    found = node(op, inputs, outputs)
    found.attribute.add(name=name, ref_attr_name=source, type=onnx.AttributeProto.FLOAT)
    return found


@pytest.mark.parametrize(
    "m",
    [
        one_node("Shrink", "f32[5]", lambd=0.3, bias=0.1),
        one_node("MeanVarianceNormalization", "f32[2, 3, 4, 4]"),
        one_node("HannWindow", np.int64(8)),
        one_node("CenterCropPad", "f32[5, 4]", np.array([3, 6]), opset=18),
        one_node("DynamicQuantizeLinear", "f32[7]", outputs=3),
        one_node("AffineGrid", "f32[2, 2, 3]", np.array([2, 1, 3, 4]), opset=20),
    ],
    ids=lambda m: m.graph.node[0].op_type,
)
def test_operators_with_a_function_body_decompose(m):
    assert all(n.op.kind != "foreign" for n in check(m).nodes)


@pytest.mark.parametrize(
    "m",
    [one_node("NonZero", np.array([[1, 0], [0, 3]])), one_node("Unique", np.array([3, 1, 3], np.float32), outputs=4)],
    ids=lambda m: m.graph.node[0].op_type,
)
def test_other_operators_run_on_the_onnx_package(m):
    graph = check(m)
    assert all(n.op.kind == "foreign" for n in graph.nodes)
    verify(parse(to_text(graph)))


# --- what depends on the data


def declared(m: onnx.ModelProto, **types: str) -> onnx.ModelProto:
    """The model with types stated for some of its tensors."""
    for o in m.graph.output:
        if o.name in types:
            o.CopyFrom(value_info(o.name, types.pop(o.name)))
    m.graph.value_info.extend(value_info(name, text) for name, text in types.items())
    return m


@pytest.mark.parametrize(
    "m, feeds",
    [
        (declared(one_node("Reshape", "f32[2, 3]", "i64[2]"), y0="f32[3, 2]"), {"x1": np.array([3, -1])}),
        (
            declared(one_node("Resize", "f32[1, 1, n, n]", None, "f32[4]"), y0="f32[1, 1, n, 2]"),
            {"x2": np.array([1, 1, 1, 2], np.float32)},
        ),
        # onnx knows it better
        (declared(one_node("CumSum", "f32[2, 3]", "i32[]"), y0="f32[7, 7]"), {"x1": np.array(1, np.int32)}),
        # its function body cannot be read
        (declared(one_node("HannWindow", "i32[]"), y0="f32[4]"), {"x0": np.array(4, np.int32)}),
        (
            declared(
                model(
                    [node("Expand", "x to", "wide"), node("Relu", "wide", "y")], {"x": "f32[3]", "to": "i64[2]"}, ["y"]
                ),
                wide="f32[2, 3]",
            ),
            {"to": np.array([2, 1])},
        ),
    ],
    ids=lambda m: m.graph.node[0].op_type if isinstance(m, onnx.ModelProto) else "",
)
def test_what_needs_the_data_runs_on_the_onnx_package_where_its_type_is_declared(m, feeds):
    found = load(m)
    feeds = {
        **{v.name: np.ones(map_dims(v.type.shape, lambda d: 1), v.type.dtype.numpy) for v in found.graph.inputs},
        **feeds,
    }
    assert any(n.op.kind == "foreign" for n in check(m, feeds=feeds).nodes) and len(found.info.foreign) == 1


def test_declared_types_do_not_count_where_the_inputs_have_other_sizes():
    m = declared(one_node("Reshape", "f32[2, 3]", "i64[2]"), y0="f32[3, 2]")
    with pytest.raises(ModelError, match="Reshape needs a constant as its shape"):
        load(m, {"x0": (4, 3)})


# --- old opsets


def test_the_oldest_opsets_are_converted():
    m = one_node("Relu", "f32[3]", opset=5, consumed_inputs=[0])
    check(m, {"y0": np.array([0, 0, 2], np.float32)}, {"x0": np.array([-1, 0, 2], np.float32)})
    assert "has opset 5, which the onnx package converted to 6" in load(m).info.warnings[0]


def test_broadcasting_of_opset_6():
    """It has an axis, and the slopes of PRelu are one per channel."""
    m = model(
        [node("Add", "x b", "s", broadcast=1, axis=1), node("PRelu", "s slope", "y")],
        {"x": "f32[2, 3, 4]"},
        ["y"],
        {"b": np.array([1, 2, 3], np.float32), "slope": np.array([0.5, 0.25, 0], np.float32)},
        opset=6,
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32) * 3
    s = x + np.array([1, 2, 3], np.float32)[:, None]
    check(m, {"y": np.where(s < 0, s * np.array([0.5, 0.25, 0], np.float32)[:, None], s)}, {"x": x})


# --- the interface


def _two() -> onnx.ModelProto:
    return model(
        [node("Relu", "x", "h", name="first"), node("MatMul", "h w", "y", name="second")],
        {"x": "f32[batch, 3]", "w": "f32[3, batch]"},
        ["y"],
    )


def test_a_run_decides_sizes_that_nobody_gave_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "pelton.importers"):
        found = load(_two())
    batch = symbol("batch")
    assert found.graph.outputs[0].type.shape == (batch, batch) and found.info.defaulted == (
        "x[0] (batch)",
        "w[1] (batch)",
    )
    assert "x[0] (batch)" in caplog.text and found.info.warnings and found.info.symbols == {"batch": (1, 1, None)}


@pytest.mark.parametrize("given", [(4, 3), "4x3", [np.int64(4), 3], "4..4..4x3"])
def test_shapes_are_given_once_per_named_size(given):
    found = load(_two(), {"x": given})
    assert found.graph.outputs[0].type.shape == (4, 4) and not found.info.defaulted


def test_a_fixed_size_may_be_overridden_and_says_so():
    found = load(one_node("Relu", "f32[1, 3]"), {"x0": "8x3"})
    assert found.graph.inputs[0].type.shape == (8, 3) and "8 is taken" in found.info.warnings[0]


def test_outputs_may_name_inner_tensors_and_only_what_they_need_is_read():
    m = _two()
    m.graph.node.append(helper.make_node("NoSuchOperator", ["h"], ["z"]))
    graph = load(m, {"x": (2, 3)}, ["h"]).graph
    assert (
        words(graph) == ["relu"]
        and [v.name for v in graph.outputs] == ["h"]
        and [v.name for v in graph.inputs] == ["x", "w"]
    )


def test_names_of_the_interface_are_kept_exactly():
    """An input handed through, one value under two names, constants, and names that nodes of ours would take."""
    nodes = [
        node("Identity", "x", "same"),
        node("Relu", "x", "matmul"),
        node("Identity", "matmul", "twice"),
        node("Gemm", "x w", "relu"),
        node("Identity", "w", "weights"),
    ]
    m = model(
        nodes, {"x": "f32[2, 2]"}, ["same", "matmul", "twice", "relu", "weights"], {"w": np.eye(2, dtype=np.float32)}
    )
    graph = check(m)
    names = [v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))]
    assert len(set(names)) == len(names)
    assert [n.name for n in load(_two()).graph.nodes] == ["first", "second"]


def test_nodes_may_come_in_any_order():
    m = _two()
    m.graph.node.extend(list(m.graph.node)[::-1])
    del m.graph.node[:2]
    assert words(load(m).graph) == ["relu", "matmul"]


def test_info_says_where_a_model_comes_from(tmp_path):
    m = _two()
    m.producer_name, m.producer_version = "pytest", "1.0"
    path = tmp_path / "two.onnx"
    path.write_bytes(m.SerializeToString())
    info = load(str(path), {"x": (2, 3)}).info
    assert (info.path, info.producer, info.opsets, info.ir_version) == (str(path), "pytest 1.0", {"": 17}, 8)
    assert load(path.read_bytes()).info.path == ""
