"""Plugins: operators of users' own, from a scalar function, numpy or C; where they are found, and what is refused."""

import gc
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest
from onnx import helper

import pelton
from pelton.plugins import CKernel, plugin_for
from pelton.plugins import scalar as sc

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


pytestmark = pytest.mark.usefixtures("own_plugins")


def single(plugin, *types, **attrs):
    """A network of one layer, with inputs x0, x1, …"""
    net = pelton.Network()
    inputs = [net.input(f"x{i}", t) for i, t in enumerate(types)]
    found = getattr(net, plugin)(*inputs, **attrs)
    for i, y in enumerate(found if isinstance(found, tuple) else (found,)):
        net.output(y, f"y{i}")
    return net


def hard_mish():
    @pelton.register
    class HardMish(pelton.Plugin):
        """x · clip(x + shift, 0, 2) / 2, element by element."""

        onnx = ("com.example", "HardMish")
        shift: float = 2.0

        def scalar(self, x):
            return x * sc.minimum(sc.maximum(x + self.shift, 0.0), 2.0) * 0.5

    return HardMish


ROW_SUMS = """// Sums of the rows of a matrix, scaled, plus an element of a table.
#include "vec.h"
// <region>
// </region>
// <tactic>
// </tactic>
void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const operands o = open(a);
    for (idx t = begin; t < end; t++)
        for (idx r = t * ROWS; r < X_0 && r < (t + 1) * ROWS; r++) {
            float sum = 0;
            for (idx k = 0; k < X_1; k++) sum += o.x[r * X_S0 + k * X_S1];
            o.y0[r * Y0_S0] = sum * SCALE + o.table[1];
        }
}
"""


def row_sums(source=ROW_SUMS, kernels=True, **how):
    class RowSums(pelton.Plugin):
        onnx = ("com.example", "RowSums")
        scale: float = 1.0

        def configure(self, x):
            return [np.float32([1, self.scale, 3])]

        def infer(self, x, table):
            if x.rank != 2:
                raise ValueError("needs a matrix")
            return x.with_shape(x.shape[:1])

        def reference(self, x, table):
            return x.sum(1) * self.scale + table[1]

    if kernels:
        how = dict(dynamic=True, tactics=({"ROWS": 3}, {"ROWS": 1})) | how
        tiles = how.pop("tiles", lambda inputs, outputs, ROWS: -(-inputs[0].shape[0] // ROWS))
        RowSums.kernels = (CKernel(source, tiles, **how),)
    return pelton.register(RowSums)


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
    assert refused.returncode and "one of a plugin has to be registered first" in refused.stderr


def test_a_reference_alone_runs_on_the_host_and_says_so(caplog):
    row_sums(kernels=False)
    engine = pelton.build(single("row_sums", "f32[6, 5]", scale=2.0), level=0)
    assert "host" in caplog.text and "row_sums" in caplog.text
    a = normal(6, 5)
    np.testing.assert_allclose(engine.run({"x0": a})["y0"], 2 * a.sum(1) + 2, rtol=1e-5)


def test_what_is_written_in_other_operators_has_their_kernels():
    @pelton.register
    class Halved(pelton.Plugin):
        by: float = 2.0

        def infer(self, x):
            return x

        def expand(self, x):
            from pelton.ops.words import div, relu

            return div(relu(x), self.by)

    engine = pelton.build(single("halved", "f32[4, 5]"), level=0)
    assert not any(s.host for s in engine.plain.steps)
    a = normal(4, 5)
    np.testing.assert_allclose(engine.run({"x0": a})["y0"], np.maximum(a, 0) / 2)


def test_state_lives_as_long_as_a_context():
    life = []

    @pelton.register
    class Counter(pelton.Plugin):
        def initialize(self):
            object.__setattr__(self, "seen", 0)
            life.append("begin")

        def terminate(self):
            life.append("end")

        def infer(self, x):
            return x

        def reference(self, x):
            object.__setattr__(self, "seen", self.seen + 1)
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
        (dict(scale="two"), "should be a float"),
        (dict(size=3), "'size' is none of them"),
    ):
        wrong = onnx.ModelProto()
        wrong.CopyFrom(found)
        wrong.graph.node[1].attribute.clear()
        wrong.graph.node[1].attribute.extend(helper.make_attribute(k, v) for k, v in change.items())
        with pytest.raises(pelton.ModelError, match=rf"{reason}.*node 'sums'"):
            pelton.build(wrong, level=0)


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


@pytest.mark.parametrize(
    "line, reason",
    [
        ("o.y0[-1] = 0;", "writes 4 bytes before its operand y0"),
        ("o.y0[Y0_SIZE] = 0;", "writes 4 bytes behind its operand y0"),
        ("((float *)o.x)[0] = 7;", "writes over its operand x"),
        ("*(volatile int *)8 = 1;", "crashes on f32.* with SIGSEGV"),
        ("if (end == 1) o.y0[Y0_SIZE - 1] = 5;", "tiles run in another order"),
        ("if (begin == 0) { o.y0[0] = 1e6f; begin = 1; }", "differs from its reference"),
    ],
)
def test_faults_of_kernels_are_found(line, reason):
    row_sums(ROW_SUMS.replace("    for (idx t = begin", f"    {line}\n    for (idx t = begin"))
    with pytest.raises(pelton.BuildError, match=reason):
        pelton.build(single("row_sums", "f32[7, 5]"), level=0, check=True)


def test_operands_that_are_read_backwards_are_checked():
    """More elements than a canary is long."""
    row_sums(strided=True)
    net = pelton.Network()
    x = net.input("x", "f32[2000, 3]")
    net.output(net.row_sums(x[::-1], scale=2.0), "y")
    a = normal(2000, 3)
    found = pelton.build(net, level=0, check=True).run({"x": a})["y"]
    np.testing.assert_allclose(found, 2 * a[::-1].sum(1) + 2, rtol=1e-4, atol=1e-4)


def test_attributes_have_the_types_of_their_defaults():
    @pelton.register
    class Typed(pelton.Plugin):
        flag: bool = True
        count: int = 3
        mode: str = "add"
        sizes: tuple = (1, 2)
        needed: float

        def __post_init__(self):
            if self.mode not in ("add", "mul"):
                raise ValueError(f"mode should be add or mul, got {self.mode!r}")

        def scalar(self, x):
            assert isinstance(self.flag, bool) and isinstance(self.count, int) and isinstance(self.sizes, tuple)
            return x + self.count if self.flag else x * self.needed

    net = pelton.Network()
    x = net.input("x", (2,))
    net.typed(x, flag=0, count=4.0, sizes=[3], needed=1)
    for wrong in (dict(count=1.5), dict(flag=2), dict(mode=3), dict(mode="div"), dict(sizes=3), dict(count="3"), {}):
        with pytest.raises(pelton.InputError, match=next(iter(wrong), "needed")):
            net.typed(x, **{"needed": 1.0, **wrong} if wrong else {})


@pytest.mark.parametrize(
    "body, reason",
    [
        (dict(), "needs scalar, or infer with reference or expand"),
        (dict(infer=lambda self, x: x), "needs scalar, or infer with"),
        (dict(name="add", scalar=lambda self, x: x), "'add' is built in"),
        (dict(name="a b", scalar=lambda self, x: x), "should be an identifier"),
        (
            dict(infer=lambda self, x: x, reference=lambda self, x: x, kernels=(CKernel("void", lambda i, o: 1),)),
            "needs one line with <region>",
        ),
    ],
)
def test_incomplete_classes_are_refused(body, reason):
    with pytest.raises(pelton.InputError, match=reason):
        pelton.register(type("Incomplete", (pelton.Plugin,), body))


def test_wrong_functions_are_named():
    class Wrong(pelton.Plugin):
        what: str = "shape"

        def infer(self, x):
            if self.what == "type":
                return (3, 4)
            if self.what == "refuse":
                raise ValueError("needs something else")
            return x

        def reference(self, x):
            if self.what == "raise":
                raise RuntimeError("out of luck")
            return x[:1]

    pelton.register(Wrong)
    for what, reason in (("type", "infer should give a TensorType"), ("refuse", "needs something else")):
        with pytest.raises(pelton.InputError, match=rf"{reason}.*layer 'wrong'"):
            single("wrong", "f32[3]", what=what)
    for what, reason in (("shape", "gave shape .1., its type says f32.3."), ("raise", "RuntimeError: out of luck")):
        engine = pelton.build(single("wrong", "f32[3]", what=what), level=0)
        with pytest.raises(pelton.EngineError, match=reason):
            engine.run({"x0": normal(3)})


def test_a_class_replaces_the_one_before_it():
    hard_mish()
    hard_mish()
    with pytest.raises(pelton.InputError, match="is the plugin .*HardMish"):

        @pelton.register
        class Other(pelton.Plugin):
            name = "hard_mish"

            def scalar(self, x):
                return x

    with pytest.raises(pelton.InputError, match="takes a subclass"):
        pelton.register(int)
