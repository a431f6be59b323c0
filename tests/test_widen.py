"""Models in narrow floats and in float64: all run in compiled kernels, as exact as their type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from compare import assert_close
from onnx import helper
from onnx_models import draw, model, one_node

from pelton import build
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.builder import Builder
from pelton.ir.types import F16, F32, DType, TensorType
from pelton.ops import get
from pelton.passes.precision.widen import widen

RNG = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def made(kind: str) -> list[onnx.ModelProto]:
    """Models of one structured operator each, their constants in this type."""

    def c(*shape: int) -> np.ndarray:
        return weights(*shape).astype(DType(kind).numpy)

    return [
        one_node("MatMul", f"{kind}[2, 5, 7]", c(7, 9)),
        one_node("MatMul", f"{kind}[13]", f"{kind}[3, 13, 4]"),
        one_node("Softmax", f"{kind}[3, 17]", axis=-1, opset=20),
        one_node("ReduceMean", f"{kind}[3, 17, 5]", axes=[1], opset=13),
        one_node("LayerNormalization", f"{kind}[3, 40]", c(40), c(40)),
        one_node(
            "Attention", f"{kind}[1, 2, 5, 8]", f"{kind}[1, 2, 7, 8]", f"{kind}[1, 2, 7, 8]", opset=24, is_causal=1
        ),
    ]


NARROW_ONLY = [
    one_node(
        "Conv",
        "f16[1, 3, 9, 9]",
        weights(8, 3, 3, 3).astype(np.float16),
        weights(8).astype(np.float16),
        pads=[1, 1, 1, 1],
    ),
    one_node("MaxPool", "f16[1, 3, 9, 9]", kernel_shape=[3, 3]),
    one_node(
        "LSTM",
        "f16[5, 2, 6]",
        weights(1, 16, 6).astype(np.float16),
        weights(1, 16, 4).astype(np.float16),
        hidden_size=4,
        outputs=3,
    ),
    one_node("TopK", "f16[3, 9]", np.array([4]), outputs=2),
    model(
        [
            helper.make_node("Conv", ["x", "w"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "v"], ["y"]),
        ],
        {"x": "f16[1, 4, 9, 9]"},
        ["y"],
        {"w": weights(8, 4, 3, 3).astype(np.float16), "v": weights(5, 8, 1, 1).astype(np.float16)},
    ),
]


@pytest.mark.parametrize(
    "m",
    [*(m for kind in ("f16", "bf16", "f64") for m in made(kind)), *NARROW_ONLY],
    ids=lambda m: f"{m.graph.node[0].op_type}-{m.graph.input[0].type.tensor_type.elem_type}",
)
def test_no_host_steps(m, tmp_path):
    feeds = draw(m)
    engine = build(m, level=0, cache_dir=tmp_path)
    assert not engine.meta["host_steps"]
    want = evaluate(load(m).graph, feeds, round=False)
    for name, got in engine.run(feeds).items():
        assert_close(got, want[name].astype(got.dtype), about=m.graph.node[0].op_type)


def test_a_value_between_two_widened_nodes_is_rounded():
    """What the model says is f16 has the precision of f16, wherever it is computed; it is cast to f32 once for all its
    readers."""
    b = Builder()
    x, w = b.input(TensorType(F16, (4, 4)), "x"), b.constant(np.full((4, 4), 1 / 3, np.float16), "w")
    (y,) = b.emit(get("matmul"), [x, w], {}, names=["y"])
    outs = [b.emit(get("matmul"), [y, v], {}, names=[name])[0] for v, name in ((w, "p"), (y, "q"))]
    graph = widen(b.graph(outs), lambda graph, node: node.inputs[0].type.dtype is F32)
    assert [n.op.name for n in graph.nodes].count("cast") == 5 and [n.op.name for n in graph.nodes].count("matmul") == 3
    assert {v.type.dtype for n in graph.nodes if n.op.name == "matmul" for v in (*n.inputs, *n.outputs)} == {F32}
    assert any(v.name == "y" and v.type.dtype is F16 for n in graph.nodes for v in n.outputs)
    feeds = {"x": RNG.standard_normal((4, 4)).astype(np.float16)}
    before, after = evaluate(b.graph(outs), feeds), evaluate(graph, feeds)
    for name in before:
        assert_close(after[name], before[name], about=name)


def test_what_no_kernel_takes_in_f32_stays_as_it_is():
    b = Builder()
    (y,) = b.emit(
        get("matmul"), [b.input(TensorType(F16, (4, 4)), "x"), b.input(TensorType(F16, (4, 4)), "z")], {}, names=["y"]
    )
    graph = b.graph([y])
    assert widen(graph, lambda graph, node: False) is graph
