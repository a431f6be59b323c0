"""Networks as ONNX models, and back: every op by its examples, random programs, sizes, control flow, files."""

import numpy as np
import onnx
import pytest
from compare import assert_close
from draw import examples, operands
from models import inverted_residuals, small_cnn
from onnx.reference import ReferenceEvaluator
from random_programs import Programs

import pelton
from pelton import importers
from pelton.exporters import to_onnx
from pelton.ir import dims
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Node, Value, symbols
from pelton.ir.op import REGISTRY
from pelton.ir.types import F16, F32, F64
from pelton.plugins import registry
from pelton.plugins import scalar as sc

RNG = np.random.default_rng(0)
ALL = list(examples())
CONSTANT = {"lookup": (1,), "trees": range(1, 9), "loop": (0, 1)}  # operands that are attributes in ONNX, or decide
REFUSED = {"coupled", "delta_rule", "detections", "inverse", "multiclass_nms"}


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def single(op, types, attrs):
    """The program of one node, its constants drawn, and what to feed it."""
    values = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
    made = tuple(Value(t, f"y{i}") for i, t in enumerate(op.infer_types(types, attrs)))
    arrays = dict(zip(values, operands(op, types, attrs)))
    if op.name == "loop":
        arrays[values[1]] = np.array(True)
    kept = {values[i]: arrays[values[i]] for i in CONSTANT.get(op.name, ())}
    graph = Graph(tuple(v for v in values if v not in kept), kept, (Node(op, values, attrs, made, "layer"),), made)
    return graph, {v.name: a for v, a in arrays.items() if v not in kept}


def every_node(nodes):
    for n in nodes:
        yield n
        for a in n.attribute:
            yield from every_node(a.g.node)


def back(model, feeds=None):
    """What an ONNX model means to the importer, by reference; without feeds, its program."""
    onnx.checker.check_model(model, full_check=True)
    called = [n.name for n in every_node(model.graph.node) if n.name]
    assert len(set(called)) == len(called), "nodes of one name, which runtimes refuse"
    shapes = None if feeds is None else {k: np.shape(a) for k, a in feeds.items()}
    graph = importers.load(model, shapes).graph
    return graph if feeds is None else evaluate(graph, feeds)


@pytest.mark.parametrize("name, op, types, attrs", ALL, ids=[e[0] for e in ALL])
def test_every_op_goes_there_and_back(name, op, types, attrs):
    graph, feeds = single(op, types, attrs)
    if op.name in REFUSED:
        with pytest.raises(pelton.ModelError, match=rf"^{op.name}\w* \(layer 'layer'\) cannot be written"):
            to_onnx(graph)
        return
    model = to_onnx(graph)
    want = evaluate(graph, feeds)
    if op.name == "if":  # which becomes a script, as data decides
        onnx.checker.check_model(model, full_check=True)
        found = ReferenceEvaluator(model).run(None, feeds)
        assert_close(found, list(want.values()))
    else:
        assert_close(back(model, feeds), want, about=name)


FLOATS = [e for e in ALL if any(t.dtype is F32 for t in e[2]) and e[1].kind != "nested" and e[1].name != "trees"]


@pytest.mark.parametrize("opset", [18, 21, 23, 26])
@pytest.mark.parametrize("dtype", [F64, F16], ids=["f64", "f16"])
def test_other_floats_and_opsets_are_right_or_refused(dtype, opset):
    """In f64 the attributes of ONNX, which are float32, would show; most are written all the same."""
    written = 0
    for name, op, types, attrs in FLOATS:
        types = tuple(t.with_dtype(dtype) if t.dtype is F32 else t for t in types)
        try:
            graph, feeds = single(op, types, attrs)
            want = evaluate(graph, feeds)
        except (ValueError, TypeError):
            continue  # the op does not take it
        try:
            model = to_onnx(graph, opset=opset)
        except pelton.ModelError as e:
            assert str(e).startswith(op.name)
            continue
        written += 1
        assert {o.version for o in model.opset_import if not o.domain} == {opset}
        assert_close(back(model, feeds), want, dtype.numpy, about=name)
    assert written > 200


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_go_there_and_back(seed, dynamic):
    graph = Programs(seed, dynamic).graph(4 + seed % 20)
    rng = np.random.default_rng(seed)
    sizes = {s.name: int(rng.integers(s.minimum, min(s.maximum, 9) + 1)) for s in symbols(graph)}
    feeds = {v.name: rng.uniform(-1, 1, [dims.at(d, sizes) for d in v.type.shape]) for v in graph.inputs}
    assert_close(back(to_onnx(graph), feeds), evaluate(graph, feeds))


@pytest.mark.parametrize("make", [small_cnn, inverted_residuals])
def test_models_go_there_and_back(make):
    model = make()
    again = pelton.export_onnx(pelton.import_onnx(model))
    x = {"x": normal(*(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim))}
    assert_close(back(again, x), back(model, x))
    kept = {t.name: onnx.numpy_helper.to_array(t) for t in again.graph.initializer}
    for t in model.graph.initializer:  # weights keep their names, and nothing is lost
        if t.name.endswith(".w") and not t.name.startswith("fc"):
            assert np.array_equal(kept[t.name], onnx.numpy_helper.to_array(t))
    built = [pelton.build(m, level=0, threads=1).run(x)["y"] for m in (model, again)]
    np.testing.assert_allclose(built[1], built[0], rtol=1e-4, atol=1e-5)


# --- sizes


def test_sizes_that_layers_read_are_computed():
    """Shapes, sums, quotients and extremes of sizes, as operands of nodes and as data, for sizes never seen before."""
    net = pelton.Network()
    x, y = net.input("x", "f32[batch, 3, height, width]"), net.input("y", "f32[2*batch, rows=3..4..9]")
    batch, _, height, width = x.shape
    rows = y.shape[1]
    net.output(net.reshape(x, (batch * 3, height * width)), "flat")
    net.output(net.resize(x, scale=2, mode="nearest"), "twice")
    net.output(net.max_pool(x, 2, stride=2, padding="same"), "pooled")
    net.output(net.convolution(x, np.ones((1, 3, 3, 3), np.float32), stride=2, padding="same"), "conv")
    net.output(net.pad(x, [(0, 0), (0, 0), (height - height // 2, 1), (0, 2)], value=1.5), "padded")
    net.output(net.tile(net.expand(net.constant([1.0]), (rows,)), repeats=(batch,)), "tiled")
    net.output(net.iota(size=rows + width), "count")
    net.output(net.sizes(values=(batch, dims.maximum(height, rows), (rows - 5) // 2), shape=(3,)), "sizes")
    net.output(net.slice(y, starts=(rows - 1,), ends=(rows - 4,), axes=(1,), steps=(-1,)), "backwards")
    net.output(net.top_k(y, k=rows - 2, axis=1)[0], "largest")
    model = pelton.export_onnx(net)
    for b, h, w, r in ((1, 2, 3, 3), (3, 7, 5, 4), (2, 4, 11, 9)):
        feeds = {"x": normal(b, 3, h, w), "y": normal(2 * b, r)}
        want = evaluate(net.graph(), feeds)
        assert want["sizes"].tolist() == [b, max(h, r), (r - 5) // 2]
        found = ReferenceEvaluator(model).run(None, feeds)
        assert_close(dict(zip(want, found)), want)
        assert_close(back(model, feeds), want)


def test_a_shape_that_can_be_said_without_nodes_is():
    net = pelton.Network()
    x = net.input("x", "f32[batch, 4, 6, length]")
    net.output(net.reshape(x, (x.shape[0], 24, x.shape[3])), "kept")
    net.output(net.flatten(net.input("y", "f32[batch, 3, 5]")), "flat")
    assert [n.op_type for n in pelton.export_onnx(net).graph.node] == ["Reshape", "Reshape"]


def test_a_size_that_no_input_has_is_refused():
    net = pelton.Network("net")
    x = net.input("x", "f32[3]")
    net.output(
        net.iota(size=dims.symbol("n")) + net.cast(net.reduce_sum(x, axes=(0,), keepdims=False), to=pelton.ir.types.I64)
    )
    with pytest.raises(pelton.ModelError, match="iota .* the size n is not a size of an input"):
        pelton.export_onnx(net)


# --- control flow, foreign operators, plugins


def controlled():
    net = pelton.Network()
    x, w = net.input("x", "f32[n, 3]"), normal(3, 3)
    total = net.reduce_sum(x, axes=(0, 1), keepdims=False)
    inner = lambda n: n.if_(total > 2, lambda m: m.matmul(x, w), lambda m: x)  # noqa: E731
    net.output(net.if_(total > 0, inner, lambda n: n.reshape(n.reshape(x, (-1,)), x.shape) - total), "branch")
    net.output(net.loop(lambda n, i, s: (n.reduce_sum(s, axes=(0, 1), keepdims=False) < 99, s * s + w[0]), [x]), "loop")
    last, parts = net.scan(lambda n, h, row: (h * 0.5 + row, h + w[1]), [np.zeros(3, np.float32)], [x], back=True)
    net.output(last, "last")
    net.output(parts, "parts")
    return net


def test_control_flow_is_that_of_onnx():
    """By the onnx package and by engines; it cannot scan backwards, which engines have to."""
    net = controlled()
    model = pelton.export_onnx(net)
    onnx.checker.check_model(model, full_check=True)
    forwards = onnx.ModelProto()
    forwards.CopyFrom(model)
    for a in (
        a for n in forwards.graph.node if n.op_type == "Scan" for a in n.attribute if a.name.endswith("directions")
    ):
        a.ints[:] = [0] * len(a.ints)
    engine = pelton.build(model, level=0, threads=1)
    for x in (np.float32([[1, 2, 4]]), np.float32([[0.25, 0.5, 1]]), np.float32([[-3, 1, 1], [1, 0, -1]])):
        want = evaluate(net.graph(), {"x": x})
        assert_close(engine.run({"x": x}), want)
        found = dict(zip(want, ReferenceEvaluator(forwards).run(None, {"x": x})))
        assert_close(found["branch"], want["branch"])
        assert_close(found["loop"], want["loop"])


def test_foreign_nodes_are_the_nodes_that_they_were():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (string[6] x, float[6] y) => (float[6] z) {'
        ' m = RegexFullMatch<pattern="a+">(x) f = Cast<to=1>(m) z = Add(f, y) }'
    )
    again = pelton.export_onnx(pelton.import_onnx(model))
    assert [n.op_type for n in again.graph.node] == ["RegexFullMatch", "Cast", "Add"]
    feeds = {"x": np.array(["a", "b", "", "aaa", "aab", "ba"], object), "y": normal(6)}
    assert_close(back(again, feeds), back(model, feeds))
    assert back(again, feeds)["z"][3] == feeds["y"][3] + 1


@pytest.fixture
def forget():
    """Plugins of a test are gone after it."""
    ops, by_op, by_format = dict(REGISTRY), dict(registry._BY_OP), dict(registry._BY_FORMAT)
    yield
    for registered, before in ((REGISTRY, ops), (registry._BY_OP, by_op), (registry._BY_FORMAT, by_format)):
        registered.clear()
        registered.update(before)


def test_plugins_are_nodes_of_their_domain(forget):
    @pelton.register
    class RowScale(pelton.Plugin):
        """Rows times a table that it computes, plus an offset."""

        onnx = ("com.example", "RowScale")
        offset: float = 0.5
        names: tuple = ()

        def infer(self, x, table):
            return x

        def reference(self, x, table):
            return x * table + self.offset

        def configure(self, x):
            return (np.arange(x.shape[-1], dtype=np.float32),)

    @pelton.register
    class Shifted(pelton.Plugin):
        """A plugin without an operator in ONNX: its scalar function is written out."""

        by: float = 1.5

        def scalar(self, x):
            return sc.select(x > self.by, sc.mod(x, self.by), -sc.floor(x))

    @pelton.register
    class Nameless(pelton.Plugin):
        """One that numpy alone can compute."""

        def infer(self, x):
            return x

        def reference(self, x):
            return x

    @pelton.register
    class Both(pelton.Plugin):
        """One that gives the same tensor twice."""

        def layers(self, net, x):
            y = net.relu(x)
            return y, y

    net = pelton.Network()
    x = net.input("x", "f32[n, 4]")
    for i, y in enumerate(net.both(x)):
        net.output(y, f"both{i}")
    net.output(net.row_scale(x, offset=0.25, names=("a", "b")), "y")
    net.output(net.shifted(x), "z")
    model = pelton.export_onnx(net)
    (node,) = (n for n in model.graph.node if n.domain)
    assert (node.domain, node.op_type, len(node.input)) == ("com.example", "RowScale", 1)
    feeds = {"x": 3 * normal(5, 4)}
    assert_close(back(model, feeds), evaluate(net.graph(), feeds))
    net.output(net.nameless(x), "none")
    with pytest.raises(pelton.ModelError, match="nameless .* the plugin nameless has no `onnx`"):
        pelton.export_onnx(net)


# --- outputs, files, options


def test_outputs_that_are_inputs_constants_or_twice_the_same():
    net = pelton.Network()
    x = net.input("x", (2,))
    net.output(x, "same")
    net.output(net.constant([1.0, 2.0]), "constant")
    y = net.relu(x)
    net.output(y, "y")
    net.output(y, "again")
    a = normal(2)
    assert_close(back(pelton.export_onnx(net), {"x": a}), evaluate(net.graph(), {"x": a}))


def test_files_are_written_whole_or_with_weights_beside(tmp_path):
    net = pelton.Network()
    w = normal(64, 70)
    net.output(net.matmul(net.input("x", "f32[n, 64]"), w) + normal(70), "y")
    x = {"x": normal(3, 64)}
    want = evaluate(net.graph(), x)
    pelton.export_onnx(net, tmp_path / "whole.onnx")
    pelton.export_onnx(net, tmp_path / "beside.onnx", external=True)
    assert (tmp_path / "beside.onnx").stat().st_size < 1500 and (
        tmp_path / "beside.onnx.data"
    ).stat().st_size >= w.nbytes
    for name in ("whole.onnx", "beside.onnx"):
        onnx.checker.check_model(str(tmp_path / name), full_check=True)
        assert_close(evaluate(importers.load(tmp_path / name, {"x": (3, 64)}).graph, x), want)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["beside.onnx", "beside.onnx.data", "whole.onnx"]


def test_more_than_a_message_holds_goes_beside(tmp_path, monkeypatch):
    monkeypatch.setattr("pelton.exporters.onnx.file.LARGEST", 5000)
    net = pelton.Network()
    net.output(net.matmul(net.input("x", (1, 40)), normal(40, 50)))
    with pytest.raises(pelton.InputError, match="do not fit into one ONNX model: pass a path"):
        pelton.export_onnx(net)
    pelton.export_onnx(net, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").exists()


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (dict(opset=17), "opsets from 18"),
        (dict(opset=9999), "opsets from 18"),
        (dict(external=True), "need a path"),
        (dict(path="there/is/none.onnx"), "there is no folder"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    net = pelton.Network()
    net.output(net.relu(net.input("x", (2,))))
    with pytest.raises(pelton.InputError, match=reason):
        pelton.export_onnx(net, **arguments)


def test_an_operator_of_a_later_opset_says_so():
    net = pelton.Network()
    net.output(net.cumprod(net.input("x", (2, 3)), axis=1, name="product"))
    with pytest.raises(pelton.ModelError, match=r"cumprod \(layer 'product'\) .* needs opset 26"):
        pelton.export_onnx(net, opset=21)
    assert pelton.export_onnx(net).opset_import[0].version == 26
