"""Models to damage: one-node cases and small networks of these tests, and the backend tests of the onnx package."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
from models import inverted_residuals, small_cnn
from onnx import TensorProto, helper
from onnx_cases import CASES
from onnx_models import model, one_node
from script_models import MODELS


@cache
def small() -> tuple[bytes, ...]:
    """Models that are built at once: cases of the importer, networks, subgraphs, functions, decisions by data."""
    cases = [one_node(op, *operands, **attrs) for op, *operands, attrs in CASES]
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    decided = [make()[0] for make in MODELS.values()]
    files = [p.read_bytes() for p in sorted(data.glob("*/*/model.onnx"))]
    return (
        *(
            m.SerializeToString()
            for m in (*cases, small_cnn(size=12), inverted_residuals(size=8), *4 * nested(), *decided)
        ),
        *files,
    )


@cache
def all_of_them() -> tuple[bytes, ...]:
    """Those and the models of the onnx package's node tests, which take half a minute to make."""
    from onnx.backend.test.case.node import collect_testcases

    return (*small(), *(c.model.SerializeToString() for c in collect_testcases(None)))


def nested() -> list[onnx.ModelProto]:
    """Graphs within graphs: what one-node cases do not have."""

    def graph(nodes, inputs=(), outputs=("r",)):
        return helper.make_graph(
            nodes, "body", [onnx.ValueInfoProto(name=i) for i in inputs], [onnx.ValueInfoProto(name=o) for o in outputs]
        )

    def node(op, inputs, outputs, **attrs):
        return helper.make_node(op, inputs.split(), outputs.split(), **attrs)

    constants = {"w": np.ones(3, np.float32), "n": np.int64(4), "yes": np.bool_(True), "two": np.array([2, 3])}
    neg, mul = graph([node("Neg", "x", "r")]), graph([node("Mul", "x w", "r")])
    step = graph(
        [node("Add", "acc x", "next"), node("ReduceSum", "next", "seen", keepdims=0), node("Identity", "go", "on")],
        ["i", "go", "acc"],
        ["on", "next", "seen"],
    )
    count = graph(
        [node("Add", "acc w", "next"), node("ReduceMax", "next", "top", keepdims=0), node("Less", "top limit", "on")],
        ["i", "go", "acc"],
        ["on", "next"],
    )
    fold = graph([node("Add", "s v", "t"), node("Relu", "t", "o")], ["s", "v"], ["t", "o"])
    function = helper.make_function(
        "mine",
        "F",
        ["a"],
        ["b"],
        [node("Elu", "a", "c", alpha=0.5), node("Softmax", "c", "b")],
        [helper.make_opsetid("", 17)],
        ["axis"],
    )
    called = helper.make_node("F", ["x"], ["y"], domain="mine", axis=1)
    return [
        model(
            [node("If", "c", "y", then_branch=neg, else_branch=mul)],
            {"x": "f32[2, 3]", "c": "bool[]"},
            ["y"],
            constants,
        ),
        model([node("If", "yes", "y", then_branch=neg, else_branch=mul)], {"x": "f32[n, 3]"}, ["y"], constants),
        model([node("Loop", "n yes x", "y z", body=step)], {"x": "f32[2, 3]"}, ["y", "z"], constants),
        model([node("Loop", "m yes x", "y z", body=step)], {"x": "f32[2, 3]", "m": "i64[]"}, ["y", "z"], constants),
        model(
            [helper.make_node("Loop", ["", "yes", "x"], ["y"], body=count)],
            {"x": "f32[2, 3]", "limit": "f32[]"},
            ["y"],
            constants,
        ),
        model([node("Scan", "w x", "y z", body=fold, num_scan_inputs=1)], {"x": "f32[4, 3]"}, ["y", "z"], constants),
        model([called], {"x": "f32[2, 3]"}, ["y"], functions=[function], domains={"mine": 1}),
        model(
            [
                node("SplitToSequence", "x", "s", axis=0),
                node("ReverseSequence", "x two", "q"),
                node("SequenceInsert", "s q", "t"),
                node("SequenceLength", "t", "z"),
                node("ConcatFromSequence", "t", "y", axis=0),
            ],
            {"x": "f32[2, 3]"},
            ["y", "z"],
            constants,
        ),
        model(
            [
                node("Shape", "x", "s"),
                node("Gather", "s n0", "d"),
                node("Mul", "d n", "e"),
                node("Concat", "e d", "f", axis=0),
                node("Expand", "w1 f", "y"),
            ],
            {"x": "f32[a, b]"},
            ["y"],
            {**constants, "n0": np.array([1]), "w1": np.float32(1)},
        ),
        model(
            [
                node("NonZero", "x", "i"),
                node("Transpose", "i", "j"),
                node("GatherND", "x j", "y"),
                node("Unique", "y", "u"),
            ],
            {"x": "f32[2, 3]"},
            ["y", "u"],
        ),
        model([node("StringNormalizer", "x", "y", case_change_action="LOWER")], {"x": "string[3]"}, ["y"]),
        model(
            [
                node("Cast", "x", "h", to=TensorProto.FLOAT16),
                node("Cast", "h", "i", to=TensorProto.INT8),
                node("QuantizeLinear", "x s", "q"),
                node("DequantizeLinear", "q s", "y"),
            ],
            {"x": "f32[2, 3]"},
            ["y", "i"],
            {"s": np.float32(0.1)},
        ),
    ]
