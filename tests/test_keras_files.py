"""Keras files: nested models, both ways to list calls and variables, refusals, and damage."""

import logging

import framework_files
import keras_files as made
import numpy as np
import pytest
from test_keras_layers import RNG, check, normal, run

import pelton
import pelton.importers
from pelton.importers import keras
from pelton.importers.keras import UnknownPart
from pelton.importers.onnx.file import Source, parse

X = normal(3, 4)


def dense(name, *calls, units=4, **config):
    return made.layer("Dense", name, *calls, units=units, use_bias=False, **config)


def simple(*layers, outputs=("y",), weights=None, **more):
    """An archive of layers on an input x of 4 features."""
    arrays = weights or {}
    return made.archive(made.functional([made.given("x", 4), *layers], ["x"], outputs), arrays, **more)


def refused(data, kind=UnknownPart):
    with pytest.raises(kind) as e:
        keras.read(data)
    return str(e.value)


# --- graphs


def test_variables_go_by_class_and_order_not_by_name():
    a, b, c = normal(4, 4), normal(4, 4), normal(4, 2)
    data = simple(
        *(dense("zeta", "x"), made.layer("ReLU", "r", "zeta"), dense("alpha", "r"), dense("y", "alpha", units=2)),
        weights={f"layers/dense{n}/vars/0": w for n, w in (("", a), ("_1", b), ("_2", c))},
    )
    check(run(data, {"x": X})[0], np.maximum(X @ a, 0) @ b @ c)


def test_shared_layers_and_several_outputs_have_the_names_of_keras():
    w = normal(4, 4)
    data = simple(
        *(dense("d", "x", ("r", 0, 0)), made.layer("ReLU", "r", "d"), made.layer("Add", "sum", ["d", ("d", 1, 0)])),
        outputs=["sum", "r"],
        weights={"layers/dense/vars/0": w},
    )
    net = keras.read(data)
    assert [*net.outputs] == ["sum", "r"] and [t.name for t in net.inputs] == ["x"]
    first = X @ w
    for found, want in zip(run(data, {"x": X}), (first + np.maximum(first, 0) @ w, np.maximum(first, 0)), strict=True):
        check(found, want)
    twice = made.archive(made.functional([made.given("x", 4), dense("y", "x")], ["x"], ["y", "y", "x"]), {})
    with pytest.raises(UnknownPart, match="'y'.*no 'kernel'"):
        keras.read(twice)
    twice = simple(dense("y", "x"), outputs=["y", "y", "x"], weights={"layers/dense/vars/0": w})
    assert [*keras.read(twice).outputs] == ["output_0", "output_1", "output_2"]


def test_models_within_models():
    a, b, c = normal(4, 4), normal(4, 4), normal(4, 4)
    inner = made.functional([made.given("i", 4), dense("d", "i")], ["i"], ["d", "i"], name="inner")
    stack = made.sequential([made.given("j", 4), dense("e")], name="stack")
    inner |= {"name": "inner", "inbound_nodes": [{"args": [made.tensors("x")], "kwargs": {}}] * 2}
    stack |= {"name": "stack", "inbound_nodes": [{"args": [made.tensors(("inner", 1, 0))], "kwargs": {}}]}
    outputs = ["stack", ("inner", 1, 1), ("inner", 2, 0), "f"]  # the outputs of a model count its own call
    arrays = {"layers/functional/layers/dense/vars/0": a, "layers/sequential/layers/dense/vars/0": b}
    arrays["layers/dense/vars/0"] = c
    data = made.archive(made.functional([made.given("x", 4), inner, stack, dense("f", "x")], ["x"], outputs), arrays)
    for found, want in zip(run(data, {"x": X}), (X @ a @ b, X, X @ a, X @ c), strict=True):
        check(found, want)


def test_deep_models_do_not_recurse_without_end():
    model = made.sequential([made.given("i", 4), made.layer("ReLU", "r")])
    for i in range(40):
        model = made.sequential([made.given("i", 4), {**model, "name": f"m{i}"}], name=f"m{i}")
    assert "more than 32 deep" in refused(made.archive(model, {}))
    grows = made.sequential([made.given("i", 4), made.layer("ReLU", "r")], name="m")
    for i in range(20):
        nodes = [{"args": [made.tensors(n)], "kwargs": {}} for n in ("x", ("m", 0, 0))]
        grows |= {"name": "m", "inbound_nodes": nodes}
        grows = made.functional([made.given("x", 4), grows], ["x"], [("m", 1 + (i > 0), 0)], name="m")
    assert "more than 16384 calls" in refused(made.archive(grows, {}))


@pytest.mark.parametrize("numbers", [(0, 0), (1, 2)])
def test_calls_and_variables_as_keras_2_lists_them(numbers):
    """Variables that are trained come first, also those of models within."""
    w, u, (gamma, beta, mean, variance) = normal(4, 4), normal(4, 4), (RNG.uniform(0.5, 2, 4) for _ in range(4))
    norm = made.layer("BatchNormalization", "norm", axis=[1], epsilon=1e-3)
    stack = made.sequential([made.given("i", 4), norm, dense("d")], name="stack")
    stack |= {"name": "stack", "inbound_nodes": [[["x", 0, 0, {}]], [["e", 0, 0, {}]]]}
    last = dense("e") | {"inbound_nodes": [[["x", 0, 0, {}]]]}
    total = made.layer("Add", "sum")
    total |= {"inbound_nodes": [[["stack", numbers[0], 0, {}], ["stack", numbers[1] or 1, 0, {}]]]}
    config = made.functional([made.given("x", 4), stack, last, total], ["x"], ["sum"])
    for one in (*config["config"]["layers"], *stack["config"]["layers"]):
        one.pop("module", None)
    del stack["config"]["trainable"], stack["config"]["dtype"]
    names = ["norm/gamma:0", "norm/beta:0", "d/kernel:0", "norm/moving_mean:0", "norm/moving_variance:0"]
    inside = dict(zip(names, (gamma, beta, w, mean, variance)))
    data = made.listed(config, {"x": {}, "stack": inside, "e": {"e/kernel:0": u}, "sum": {}})

    def stacked(x):
        return ((x - mean) / np.sqrt(variance + 1e-3) * gamma + beta) @ w

    check(run(data, {"x": X})[0], stacked(X) + stacked(X @ u))
    wrong = dict(zip([names[1], names[0], *names[2:]], inside.values()))
    assert "must have 'gamma'" in refused(made.listed(config, {"stack": wrong, "e": {"e/kernel:0": u}}))
    assert "has 4" in refused(made.listed(config, {"stack": dict([*inside.items()][:4]), "e": {"e/kernel:0": u}}))


def test_frozen_layers_keep_the_order_of_their_variables():
    parts = [RNG.uniform(0.5, 2, 4) for _ in range(4)]
    norm = made.layer("BatchNormalization", "norm", axis=-1, epsilon=1e-3, trainable=False)
    config = made.sequential([made.given("x", 4), made.sequential([made.given("i", 4), norm, dense("d")], "m")])
    config["config"]["layers"][1]["config"]["layers"][1]["config"]["trainable"] = False
    w = normal(4, 4)
    names = ["d/kernel:0", "n/gamma:0", "n/beta:0", "n/moving_mean:0", "n/moving_variance:0"]
    data = made.listed(config, {"m": dict(zip(names, (w, *parts)))})
    gamma, beta, mean, variance = parts
    check(run(data, {"x": X})[0], ((X - mean) / np.sqrt(variance + 1e-3) * gamma + beta) @ w)


def test_functions_of_tensorflow_and_operations():
    def function(name, call, node, kind="TFOpLambda"):
        return {"class_name": kind, "config": {"name": name, "trainable": True, "function": call}} | {
            "name": name,
            "inbound_nodes": [node],
        }

    both = [["x", 0, 0, {"axis": -1}], ["a", 0, 0, {"axis": -1}]]
    spec = {"slice_spec": [{"start": None, "stop": None, "step": None}, {"start": 1, "stop": None, "step": 2}]}
    layers = [
        function("a", "math.subtract", ["_CONSTANT_VALUE", -1, 1.5, {"y": ["x", 0, 0], "name": None}]),
        function("b", "concat", both),
        function("c", "__operators__.getitem", ["b", 0, 0, spec], "SlicingOpLambda"),
        function("d", "math.reduce_mean", ["c", 0, 0, {"axis": 1, "keepdims": True}]),
        function("e", "linalg.matmul", ["c", 0, 0, {"b": ["c", 0, 0], "transpose_b": True}]),
    ]
    config = made.functional([made.given("x", 4), *layers], ["x"], ["d", "e"])
    c = np.concatenate([X, 1.5 - X], -1)[:, 1::2]
    for data in (made.archive(config, {}, version="2.15.0"), made.listed(config, {})):
        d, e = run(data, {"x": X})
        check(d, c.mean(1, keepdims=True)), check(e, c @ c.T)
    config["config"]["layers"][1]["config"]["function"] = "math.bessel_i0"
    assert "tf.math.bessel_i0" in refused(made.archive(config, {}))

    def operation(kind, name, *args, **options):
        found = made.layer(kind, name, module="keras.src.ops.numpy")
        node = {"args": [made.tensors(a) if isinstance(a, (str, list)) else a for a in args], "kwargs": {}}
        return found | {"config": {"name": name, **options}, "inbound_nodes": [node]}

    picked = [{"class_name": "__slice__", "config": {"start": None, "stop": None, "step": None}}] * 2
    picked[1] = {"class_name": "__slice__", "config": {"start": 0, "stop": 3, "step": None}}
    get = operation("GetItem", "g", "x") | {"inbound_nodes": [{"args": [made.tensors("x"), picked], "kwargs": {}}]}
    row = {"class_name": "__numpy__", "config": {"value": [1.0, 2.0, 3.0], "dtype": "float32"}}
    layers = [get, operation("Multiply", "m", "g", row), operation("Sum", "y", "m", axis=[-1], keepdims=False)]
    check(run(simple(*layers), {"x": X})[0], X[:, :3] @ [1, 2, 3])


def test_dynamic_sizes_are_narrowed_to_what_layers_need():
    w = normal(3, 2, 4)
    conv = made.layer("Conv1D", "y", "x", filters=4, kernel_size=[3], strides=[1], padding="valid", use_bias=False)
    conv["config"] |= {"dilation_rate": [1]}
    data = made.archive(made.functional([made.given("x", None, 2), conv], ["x"], ["y"]), {"layers/conv1d/vars/0": w})
    engine = pelton.build(data, level=0)
    for batch, steps in ((1, 3), (2, 11)):
        x = normal(batch, steps, 2)
        parts = np.lib.stride_tricks.sliding_window_view(x, 3, 1)
        check(engine(x), np.einsum("btck,kco->bto", parts, w))
    with pytest.raises(pelton.InputError, match="no input 'z'.*there are x"):
        pelton.build(data, shapes={"z": "1x3x2"}, level=0)
    with pytest.raises(pelton.InputError, match="input 'x' is"):
        pelton.build(data, shapes={"x": "1x3x5"}, level=0)


def test_models_within_models_cast_what_they_are_given():
    inner = made.functional([made.given("i", 4), dense("d", "i")], ["i"], ["d"], name="inner")
    inner |= {"name": "inner", "inbound_nodes": [{"args": [made.tensors("x")], "kwargs": {}}]}
    w, numbers = normal(4, 4), RNG.integers(-9, 9, (3, 4)).astype(np.int32)
    arrays = {"layers/functional/layers/dense/vars/0": w}
    for dtype in ("int32", "bool"):
        data = made.archive(made.functional([made.given("x", 4, dtype=dtype), inner], ["x"], [("inner", 1, 0)]), arrays)
        if dtype == "bool":
            assert "receives bool" in refused(data)
        else:
            check(run(data, {"x": numbers})[0], numbers @ w)


def test_one_hot_numbers_below_zero_have_no_place():
    layer = made.layer("OneHot", "y", "x", module="keras.src.ops.nn", num_classes=4, axis=1, dtype="int32")
    del layer["config"]["trainable"]
    numbers = np.array([[0, -1, 3], [5, 2, -4]], np.int32)
    data = made.archive(made.functional([made.given("x", 3, dtype="int32"), layer], ["x"], ["y"]), {})
    np.testing.assert_array_equal(run(data, {"x": numbers})[0], numbers[:, None] == np.arange(4)[:, None])


# --- the way by TensorFlow, and plugins


def test_what_is_not_known_is_converted(monkeypatch, caplog, tmp_path):
    path = tmp_path / "net.keras"
    path.write_bytes(simple(made.layer("Mystery", "odd", "x"), outputs=["odd"]))
    monkeypatch.setattr(keras, "find", lambda name: None)
    with pytest.raises(pelton.ModelError, match="net.keras: layer 'odd' is a Mystery.*import-env tensorflow.*plugin"):
        pelton.importers.load(path)
    monkeypatch.setattr(keras, "find", lambda name: object())
    calls = []

    def convert(*given, **named):
        calls.append(given[:2])
        return Source(parse(framework_files.ONNX, "m"), None)

    monkeypatch.setattr(keras, "convert", convert)
    with caplog.at_level(logging.INFO, "pelton.importers"):
        assert pelton.importers.load(path).graph.outputs[0].name == "y"
        assert pelton.importers.examine(path).found.graph.outputs[0].name == "y"
    assert calls == [("tensorflow", "from_keras.py")] * 2
    assert "layer 'odd' is a Mystery; converting with TensorFlow" in caplog.text


def test_layers_are_reported():
    data = simple(dense("y", "x"), weights={"layers/dense/vars/0": normal(4, 4)})
    found = pelton.importers.examine(data)
    assert not found.problems and [n.label for n in found.imported_nodes] == ["y/matmul"]


def test_a_plugin_reads_layers_of_users_own():
    @pelton.register
    class Tilted(pelton.Plugin):
        """x · w + tilt, w its variable."""

        keras = "Mine>Tilted"
        tilt: float = 0.0

        def weights(self, x):
            return [(x.shape[-1],)]

        def scalar(self, x, w):
            return x * w + self.tilt

    layer = made.layer("Mine>Tilted", "y", "x", module="mine", tilt=0.25) | {"registered_name": "Mine>Tilted"}
    w = normal(4)
    check(run(simple(layer, weights={"layers/tilted/vars/0": w}), {"x": X})[0], X * w + 0.25)
    config = made.functional([made.given("x", 4), layer], ["x"], ["y"])
    check(run(made.listed(config, {"y": {"y/w:0": w}}), {"x": X})[0], X * w + 0.25)
    layer["config"]["slope"] = 2.0
    assert "slope" in refused(simple(layer, weights={"layers/tilted/vars/0": w}))
