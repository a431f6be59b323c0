"""Host steps: nodes run by their reference from their text, with the onnx package only if needed."""

from __future__ import annotations

import math
import dataclasses
import subprocess
import sys

import numpy as np
import onnx
import pytest
from compare import assert_close
from onnx_models import draw, one_node, value_info

from pelton.errors import EngineError, InputError
from pelton.reference import run_node, run_text
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.text import node_text
from pelton.ops.foreign import bounded

SOFTMAX = one_node("Softmax", "f32[3, 5]")
# too large for filters of zeros and ones
BLOCKS = one_node("Col2Im", "f32[1, 4096, 1]", np.array([64, 64]), np.array([64, 64]), opset=18)
CASES = [
    SOFTMAX,
    BLOCKS,
    one_node("TopK", "f32[3, 5]", np.array([2]), outputs=2),
    one_node("LayerNormalization", "f32[2, 5]", np.ones(5, np.float32)),
    one_node("Cast", "f32[4]", to=10),
    one_node("Det", "f64[2, 3, 3]"),
    one_node("ReduceSum", "f32[]"),
    one_node("Transpose", "i64[2, 3]"),
]


def only_node(m):
    """The last node of the model's program, arrays for its inputs, and what it should give for them."""
    graph, feeds = load(m).graph, draw(m)
    values = evaluate(graph, feeds, keep=True)
    node = graph.nodes[-1]
    return node, [values[v.name] for v in node.inputs], tuple(values[v.name] for v in node.outputs)


@pytest.mark.parametrize("m", CASES, ids=lambda m: m.graph.node[0].op_type)
def test_nodes_run_from_their_text(m):
    node, arrays, want = only_node(m)
    for got in (run_node(node, arrays), run_text(node_text(node))(*arrays)):
        assert_close(got, want, about=node.op.name)
        assert all(a.flags.c_contiguous for a in got)


def test_results_are_rounded_once():
    """0.1 in float32, a million times: summed in float64 and rounded, not rounded a million times."""
    node, _, _ = only_node(one_node("ReduceSum", "f32[1000000]"))
    (got,) = run_node(node, [np.full(1000000, 0.1, np.float32)])
    assert got.dtype == np.float32 and got == np.float32(np.float64(np.float32(0.1)) * 1e6)


def test_doubles_keep_their_precision_in_nested_graphs():
    """The onnx package's own Erf gives float32, whatever the type."""
    x = np.random.default_rng(1).standard_normal(500)
    branch = "graph = inner () => (double[500] inside) { inside = Erf (x) }"
    m = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> f (double[500] x, bool c) => (double[500] y)'
        f"{{ y = If (c) <then_branch: {branch}, else_branch: {branch}> }}"
    )
    (got,) = bounded(m).run(None, {"x": x, "c": np.bool_(True)})
    assert np.abs(got - np.vectorize(math.erf)(x)).max() <= 2**-53


@pytest.mark.parametrize(
    "arrays",
    [[np.ones((3, 4), np.float32)], [np.ones((3, 5))], [], [np.ones((3, 5), np.float32)] * 2, [np.ones((3, 5), "V2")]],
    ids=["shape", "dtype", "too few", "too many", "no element type"],
)
def test_arrays_that_do_not_fit(arrays):
    node, _, _ = only_node(SOFTMAX)
    with pytest.raises(InputError, match=r"needs f32\[3, 5\], got"):
        run_node(node, arrays)


@pytest.mark.parametrize(
    "damage, expected",
    [
        (lambda text: "", "cannot be read"),
        (lambda text: text.replace("Col2Im", "Col2Im@18") + "(", "cannot be read"),
        (lambda text: text.replace('model="', 'model="!'), "must contain an ONNX model in base64"),
        (lambda text: text.replace('model="', 'model="AAAA'), "damaged|cannot run on"),
        (lambda text: text.replace("onnx::", "onnx_"), "cannot be read"),
        (lambda text: text.replace("model=", "mode="), "needs the attribute 'model', a text"),
    ],
    ids=range(6),
)
def test_texts_that_are_damaged(damage, expected):
    node, _, _ = only_node(BLOCKS)
    with pytest.raises(EngineError, match=expected):
        run_text(damage(node_text(node)))


def test_an_index_that_a_table_lacks_is_the_callers():
    node, arrays, _ = only_node(one_node("Gather", "f32[3]", "i64[2]"))
    with pytest.raises(InputError, match=r"layer 'node' \(gather\) has an index that its table lacks: index 7"):
        run_node(node, [arrays[0], np.array([7, 8])])


def test_a_failing_reference_says_which_step():
    def failing(*given, axis):
        raise ValueError("a fault")

    node, arrays, _ = only_node(one_node("Gather", "f32[3]", "i64[2]"))
    failing_op = dataclasses.replace(node.op, reference=failing)
    with pytest.raises(InputError, match=r"gather 'node' cannot take its data: a fault; given x0 f32\[3\] = \["):
        run_node(dataclasses.replace(node, op=failing_op), arrays)


def test_a_shape_that_is_not_the_declared_one():
    m = one_node("Range", "i64[]", "i64[]", "i64[]")
    m.graph.output[0].CopyFrom(value_info("y0", "i64[2]"))
    (node,) = load(m).graph.nodes
    run = run_text(node_text(node))
    assert run(np.array(3), np.array(7), np.array(2))[0].tolist() == [3, 5]
    with pytest.raises(
        EngineError, match=r"step onnx::Range@17 'node' must return i64\[2\].*returned shape \[4\] for this data"
    ):
        run(np.array(3), np.array(7), np.array(1))


WITHOUT_ONNX = """
import sys
sys.modules["onnx"] = None                                            # as if it were not installed
import numpy as np
from pelton.errors import EngineError
from pelton.reference.host import run_text
plain, foreign = sys.stdin.read().split("\\n---\\n")
print(run_text(plain)(np.zeros((3, 5), np.float32))[0].sum())
try:
    run_text(foreign)
except EngineError as e:
    print(e)
"""


def test_without_the_onnx_package_only_foreign_steps_are_refused():
    texts = "\n---\n".join(node_text(only_node(m)[0]) for m in (SOFTMAX, BLOCKS))
    done = subprocess.run([sys.executable, "-c", WITHOUT_ONNX], input=texts, capture_output=True, text=True, check=True)
    total, message = done.stdout.splitlines()
    assert float(total) == pytest.approx(3) and "pip install onnx" in message and "onnx::Col2Im@18 'node'" in message
