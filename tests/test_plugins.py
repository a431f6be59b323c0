"""Plugins: custom operators from a scalar function, numpy or C; their discovery and refusals."""

import gc
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest
from onnx import helper
from plugin_examples import ROW_SUMS, normal, row_sums, single

import pelton
from pelton.plugins import CKernel, TensorType, plugin_for
from pelton.plugins import scalar as sc


pytestmark = pytest.mark.usefixtures("own_plugins")


def hard_mish():
    @pelton.register
    class HardMish(pelton.Plugin):
        """x · clip(x + shift, 0, 2) / 2, element by element."""

        onnx = ("com.example", "HardMish")
        shift: float = 2.0

        def scalar(self, x):
            return x * sc.minimum(sc.maximum(x + self.shift, 0.0), 2.0) * 0.5

    return HardMish


@pytest.mark.parametrize(
    "scalar, want",
    [
        (lambda self, x: sc.select(x == 1, 7.0, x), lambda x: np.where(x == 1, 7, x)),
        (lambda self, x: sc.select(x != 1, 7.0, x), lambda x: np.where(x != 1, 7, x)),
        (
            lambda self, x: x**2 + 2**x - abs(x) % 2 + 3 % (abs(x) + 1),
            lambda x: x**2 + 2**x - abs(x) % 2 + 3 % (abs(x) + 1),
        ),
        (lambda self, x: x * sc.select(x > 0, 0.25, 0.5), lambda x: x * np.where(x > 0, 0.25, 0.5)),
        (
            lambda self, x: x * sc.select(x > 0, sc.select(x > 1, 1, 2), 3),
            lambda x: x * np.where(x > 1, 1, np.where(x > 0, 2, 3)),
        ),
        (lambda self, x: sc.cast(sc.cast(x, "i32"), "f32"), np.trunc),
    ],
)
def test_scalar_functions_are_written_like_arithmetic_of_arrays(scalar, want):
    pelton.register(type("Written", (pelton.Plugin,), {"scalar": scalar}))
    a = np.float32([-1.5, -1, 0, 0.5, 1, 3])
    found = pelton.build(single("written", "f32[6]"), level=0, check=True).run({"x0": a})["y0"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want(a), rtol=1e-5, atol=1e-5)


def test_a_scalar_function_fuses_like_an_operator():
    hard_mish()
    net = pelton.Network()
    x = net.input("x", "f32[n, 17]")
    net.output(net.hard_mish(net.linear(x, normal(9, 17)), shift=1.5) + 1, "y")
    engine = pelton.build(net, level=0, check=True)
    assert len(engine.plain.steps) == 1
    w = net.builder.constants
    a = normal(5, 17)
    z = a @ next(iter(v for v in w.values() if v.shape == (17, 9)))
    np.testing.assert_allclose(engine.run({"x": a})["y"], z * np.clip(z + 1.5, 0, 2) / 2 + 1, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_a_kernel_in_c(rows, strided):
    row_sums(strided=strided)
    net = pelton.Network()
    x = net.input("x", "f32[n=1..7..9, 13]")
    net.output(net.row_sums(net.transpose(net.transpose(x) * 2), scale=3.0), "y")
    engine = pelton.build(net, level=5, threads=2, check=True)
    (step,) = [s for s in engine.plain.steps if "row_sums" in s.name]
    assert step.host == "" and step.info["tactic"].startswith("row_sums:ROWS=")
    assert {name.split("@")[0] for name in step.info["times_ns"]} == {"row_sums:ROWS=3", "row_sums:ROWS=1"}
    a = normal(rows, 13)
    np.testing.assert_allclose(engine.run({"x": a})["y"], 6 * a.astype(np.float64).sum(1) + 3, rtol=1e-5, atol=1e-4)


def test_an_engine_with_kernels_runs_without_the_class(tmp_path):
    row_sums()
    engine = pelton.build(single("row_sums", "f32[6, 5]"), level=0)
    engine.save(tmp_path / "with.pelton")
    row_sums(kernels=False)
    pelton.build(single("row_sums", "f32[6, 5]"), level=0).save(tmp_path / "without.pelton")
    script = (
        "import pelton, numpy, sys; print(pelton.load(sys.argv[1]).run({'x0': numpy.ones((6, 5), 'f')})['y0'].sum())"
    )
    ran, refused = (
        subprocess.run([sys.executable, "-c", script, tmp_path / name], capture_output=True, text=True)
        for name in ("with.pelton", "without.pelton")
    )
    assert ran.stdout.strip() == "36.0", ran.stderr
    assert refused.returncode and "one of a plugin must be registered first" in refused.stderr


def test_a_reference_alone_runs_on_the_host_and_says_so(caplog):
    row_sums(kernels=False)
    engine = pelton.build(single("row_sums", "f32[6, 5]", scale=2.0), level=0)
    assert "in numpy" in caplog.text and "row_sums" in caplog.text
    a = normal(6, 5)
    np.testing.assert_allclose(engine.run({"x0": a})["y0"], 2 * a.sum(1) + 2, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64", "i32", "bool"])
def test_references_see_floats_as_f64_and_cannot_write_to_operands(dtype):
    seen = []

    @pelton.register
    class Seeing(pelton.Plugin):
        def infer(self, x):
            seen.append(x)
            return x

        def reference(self, x):
            seen.append(x.dtype)
            assert not x.flags.writeable
            return x

    engine = pelton.build(single("seeing", f"{dtype}[2, 3]"), level=0, check=True)
    a = normal(2, 3).astype(TensorType.parse(f"{dtype}[]").dtype.numpy)
    np.testing.assert_array_equal(engine.run({"x0": a})["y0"], a)
    assert TensorType.parse(f"{dtype}[2, 3]") in seen
    assert {t for t in seen if not isinstance(t, TensorType)} == {a.dtype if a.dtype.kind in "ib" else np.dtype("f8")}


def test_layers_may_give_a_constant_as_an_output():
    @pelton.register
    class Corners(pelton.Plugin):
        def layers(self, net, x):
            return net.constant(np.float32([[0, 0], x.shape]))

    engine = pelton.build(single("corners", "f32[3, 5]"), level=0)
    np.testing.assert_array_equal(engine.run({"x0": normal(3, 5)})["y0"], [[0, 0], [3, 5]])


def test_layers_may_have_a_kernel_too():
    source = ROW_SUMS.replace("+ o.table[1]", "")

    @pelton.register
    class Sums(pelton.Plugin):
        scale: float = 2.0
        kernels = (CKernel(source, lambda inputs, outputs, ROWS: -(-inputs[0].shape[0] // ROWS), ({"ROWS": 2},)),)

        def layers(self, net, x):
            return net.reduce_sum(x, axes=1, keepdims=False) * self.scale

    engine = pelton.build(single("sums", "f32[7, 5]"), level=0, check=True)
    assert [s.info["tactic"].split("@")[0] for s in engine.plain.steps] == ["sums:ROWS=2"]
    a = normal(7, 5)
    np.testing.assert_allclose(engine.run({"x0": a})["y0"], 2 * a.astype(np.float64).sum(1), rtol=1e-5, atol=1e-5)


def test_what_is_written_in_other_operators_has_their_kernels():
    @pelton.register
    class Halved(pelton.Plugin):
        by: float = 2.0

        def layers(self, net, x):
            largest, at = net.top_k(net.relu(x), k=2, axis=1)
            return largest / self.by, at

    net = pelton.Network()
    values, at = net.halved(net.input("x", "f32[batch, 5]"))
    net.output(values, "values")
    net.output(at, "at")
    a = normal(4, 5)
    order = np.argsort(-np.maximum(a, 0), axis=1, kind="stable")[:, :2]
    for given in (net, pelton.export_onnx(net)):
        engine = pelton.build(given, level=0)
        assert not any(s.host for s in engine.plain.steps)
        found = engine.run({"x": a})
        np.testing.assert_array_equal(found["at"], order)
        np.testing.assert_allclose(found["values"], np.maximum(np.take_along_axis(a, order, 1), 0) / 2)
    with pytest.raises(pelton.InputError, match="needs the operands x, got 2.*layer 'halved'"):
        single("halved", "f32[3, 5]", "f32[3]")


def test_state_lives_as_long_as_a_context():
    life = []

    @pelton.register
    class Counter(pelton.Plugin):
        def initialize(self):
            self.seen = 0
            life.append("begin")

        def terminate(self):
            life.append("end")

        def infer(self, x):
            return x

        def reference(self, x):
            self.seen += 1
            return x + self.seen

    engine = pelton.build(single("counter", "f32[2]"), level=0)
    zeros = np.zeros(2, np.float32)
    one, other = engine.context(), engine.context()
    assert [one.run({"x0": zeros})["y0"][0] for _ in range(3)] == [1, 2, 3]
    assert other.run({"x0": zeros})["y0"][0] == 1
    begun = life.count("begin")
    assert begun >= 2 and "end" not in life
    del one, other, engine
    gc.collect()
    assert life.count("end") == begun


def test_models_of_onnx_name_plugins(tmp_path):
    hard_mish()
    row_sums()
    nodes = [
        helper.make_node("HardMish", ["x"], ["h"], domain="com.example", shift=1.0),
        helper.make_node("RowSums", ["h"], ["y"], "sums", domain="com.example", scale=2.0),
    ]
    ports = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", (3, 4)), ("y", (3,)))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    found = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in (("", 17), ("com.example", 1))]
    )
    a = normal(3, 4)
    want = 2 * (a * np.clip(a + 1, 0, 2) / 2).sum(1) + 2
    np.testing.assert_allclose(pelton.build(found, level=0).run({"x": a})["y"], want, rtol=1e-5)
    assert plugin_for("onnx", ("com.example", "RowSums")).name == "row_sums"
    for change, reason in (
        (dict(scale="two"), "must be of type float"),
        (dict(size=3), "'size' is none of them"),
    ):
        wrong = onnx.ModelProto()
        wrong.CopyFrom(found)
        wrong.graph.node[1].attribute.clear()
        wrong.graph.node[1].attribute.extend(helper.make_attribute(k, v) for k, v in change.items())
        with pytest.raises(pelton.ModelError, match=rf"{reason}.*node 'sums'"):
            pelton.build(wrong, level=0)


def test_a_plugin_is_taken_instead_of_an_operator_of_onnx():
    @pelton.register
    class Negative(pelton.Plugin):
        onnx = ("", "Relu")

        def scalar(self, x):
            return -x

    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (3,)) for name in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    a = normal(3)
    np.testing.assert_array_equal(pelton.build(model, level=0).run({"x": a})["y"], -a)


def test_packages_declare_plugins(tmp_path):
    (tmp_path / "shapes.py").write_text(
        textwrap.dedent(
            """
            import pelton

            class Twice(pelton.Plugin):
                def scalar(self, x):
                    return x + x
            """
        )
    )
    info = tmp_path / "shapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pelton.plugins]\ntwice = shapes:Twice\nbroken = shapes:Missing\n")
    script = (
        "import logging, pelton, numpy\nnet = pelton.Network()\nnet.output(net.twice(net.input('x', (2,))), 'y')\n"
        "print(pelton.build(net, level=0).run({'x': numpy.ones(2, 'f')})['y'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path
    )
    assert found.stdout.strip() == "[2. 2.]", found.stderr
    assert "the plugin broken of shapes:Missing cannot be loaded" in found.stderr


def test_operands_that_are_read_backwards_are_checked():
    """More elements than a canary is long."""
    row_sums(strided=True)
    net = pelton.Network()
    x = net.input("x", "f32[100000, 3]")
    net.output(net.row_sums(x[::-1], scale=2.0), "y")
    a = normal(100000, 3)
    found = pelton.build(net, level=0, check=True).run({"x": a})["y"]
    np.testing.assert_allclose(found, 2 * a[::-1].sum(1) + 2, rtol=1e-4, atol=1e-4)


def test_a_class_replaces_the_one_before_it():
    hard_mish()
    hard_mish()
    with pytest.raises(pelton.InputError, match="is the plugin .*HardMish"):

        @pelton.register
        class Other(pelton.Plugin):
            name = "hard_mish"

            def scalar(self, x):
                return x

    with pytest.raises(pelton.InputError, match="needs a subclass"):
        pelton.register(int)
