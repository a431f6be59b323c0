"""Reports on plugin kernels: selection or rejection, and the reason."""

import subprocess
import sys

import onnx
import pytest
from onnx import helper
from plugin_examples import row_sums, single

import pelton
from pelton.diagnose.explain import explain
from pelton.diagnose.support import diagnose
from pelton.plugins import CKernel, TritonKernel

pytestmark = pytest.mark.usefixtures("own_plugins")

REASONS = [
    (
        dict(dynamic=False),
        "f32[batch=1..2..4, n=1..5..9]",
        "its kernel is for known sizes (dynamic=True is missing), and batch, n are dynamic",
    ),
    (
        dict(dynamic=False),
        "f32[batch=1..2..4, 5]",
        "its kernel is for known sizes (dynamic=True is missing), and batch is dynamic",
    ),
    (dict(takes=lambda inputs, outputs: "needs 4 columns"), "f32[3, 5]", "its `takes` returned: needs 4 columns"),
    ({}, "f64[3, 5]", "its kernel supports f32 only (no takes=), got f64"),
    (dict(tactics=lambda inputs, outputs: ()), "f32[3, 5]", "there is no tactic for these types"),
]


@pytest.mark.parametrize("how, type, reason", REASONS)
def test_the_reason_why_a_kernel_is_not_taken_is_said(how, type, reason, caplog):
    row_sums(**how)
    net = single("row_sums", type)
    engine = pelton.build(net, level=0)
    said = f"row_sums: {reason}"
    assert f"row_sums runs in numpy: no kernel supports it; {said}" in caplog.text
    (step,) = engine.plain.steps
    assert step.host and step.info["reason"] == said
    assert explain(net).why_not("row_sums").rejected == {"row_sums": reason}


def test_the_reason_is_said_where_other_layers_take_the_place_of_a_kernel():
    @pelton.register
    class Sums(pelton.Plugin):
        kernels = (CKernel(row_sums().kernels[0].source, lambda inputs, outputs: 1, takes=lambda i, o: "never"),)

        def layers(self, net, x):
            return net.reduce_sum(x, axes=1, keepdims=False)

    found = explain(single("sums", "f32[3, 5]")).why_not("sums")
    assert not found.applied and found.rejected["sums"] == "its `takes` returned: never"


def test_a_kernel_that_is_taken_has_no_reason(caplog):
    row_sums()
    engine = pelton.build(single("row_sums", "f32[3, 5]"), level=0)
    assert "reason" not in engine.plain.steps[0].info and not caplog.records


def test_check_knows_the_kernels_of_plugins():
    row_sums()
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 5))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3,))
    nodes = [helper.make_node("RowSums", ["x"], ["y"], "sums", domain="com.example")]
    opsets = [helper.make_opsetid(domain, 1) for domain in ("com.example", "")]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets)
    (operator,) = diagnose(model).operators
    assert (operator.operator, operator.native, operator.host, operator.on_host) == ("RowSums", 1, 0, ())


def test_the_help_that_the_page_names_is_there():
    script = "import pelton; help(pelton.plugins.CKernel); help(pelton.plugins.TritonKernel)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for of in (CKernel, TritonKernel):
        head = done.stdout.partition(f"Help on class {of.__name__} ")[2].partition("Methods defined here")[0]
        missing = [field for field in ("source:", "takes(", "strided:", "dynamic:") if f" |  {field}" not in head]
        assert not missing, head
