"""Every reader of ONNX operators, against the onnx package or the specification, and the ops it emits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import test_exports
import test_microsoft_attention
import test_microsoft_blocks
import test_microsoft_experts
import test_microsoft_few_bits
import test_microsoft_grouped
import test_microsoft_norms
import test_microsoft_quant
import test_microsoft_sparse
import test_microsoft_state
import test_microsoft_streams
import test_microsoft_tokens
import test_microsoft_twins
from draw import examples
from onnx_cases import BY_HAND, CASES
from onnx_checks import check, op_names
from onnx_models import MICROSOFT, draw, model, node, one_node

from pelton.importers.onnx.load import load
from pelton.importers.onnx.microsoft.refused import REFUSED
from pelton.importers.onnx.node import READERS
from pelton.importers.onnx.ops.declared import AsDeclared
from pelton.ir.text import parse, to_text
from pelton.ir.verify import verify


def title(case) -> str:
    attrs = next(a for a in case[1:] if isinstance(a, dict))
    return "-".join([case[0], *(f"{k}={v}" for k, v in attrs.items() if isinstance(v, (int, str, list)))])


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
def test_images_without_channels_leave_the_bias(op, filters, group, bias):
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
    rng = np.random.default_rng(0)
    files = test_microsoft_attention, test_microsoft_grouped, test_microsoft_norms, test_microsoft_quant
    more = test_microsoft_experts, test_microsoft_few_bits, test_microsoft_sparse, test_microsoft_state
    for file in (*files, *more, test_microsoft_streams, test_microsoft_tokens, test_microsoft_twins):
        for make in file.CASES.values():
            called = make(rng)[0].graph.node[0]
            tested.add((called.domain, called.op_type))
    tested |= {
        (n.domain, n.op_type) for make in test_microsoft_blocks.MODELS.values() for n in make(rng, 8)[0].graph.node
    }
    tested |= {(MICROSOFT, op) for op in test_microsoft_tokens.OF_UNKNOWN_LENGTH}
    tested |= {(MICROSOFT, op) for op in REFUSED}  # in test_operators.py
    tested |= {
        (n.domain, n.op_type)
        for name in test_exports.MODELS
        for n in onnx.load_from_string(test_exports.model(name)).graph.node
    }
    tested |= DECLARED.keys()
    tested.add(("ai.onnx.ml", "CategoryMapper"))  # in test_labels.py
    tested.add(("", "MeanVarianceNormalization"))  # in test_versions.py
    tested |= {("", "MemcpyFromHost"), ("", "MemcpyToHost")}  # in test_microsoft_twins.py
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
    assert op_names(load(m).graph) == expected


@pytest.mark.parametrize(
    "m",
    [
        one_node("Shrink", "f32[5]", lambd=0.3, bias=0.1),
        one_node("MeanVarianceNormalization", "f32[2, 3, 4, 4]"),
        one_node("HannWindow", np.int64(8)),
        one_node("CenterCropPad", "f32[5, 4]", np.array([3, 6]), opset=18),
        one_node("DynamicQuantizeLinear", "f32[7]", outputs=3),
        one_node("DynamicQuantizeLinear", "f32[]", outputs=3),
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
