"""Networks written layer by layer: results, types and names, control flow, edits, refusals."""

import re
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton.importers.network import imported
from pelton.ir import dims
from pelton.ir.evaluate import evaluate
from pelton.network import stubs

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run(net, **feeds):
    """Outputs by the reference, and by an engine, which have to agree."""
    engine = pelton.build(net, level=0, threads=1)
    found = engine.run(feeds)
    shapes = {name: a.shape for name, a in feeds.items()}
    exact = evaluate(imported(net, shapes).graph, feeds)
    for name, array in exact.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)
    return found


def test_a_small_network_is_what_numpy_makes_of_it():
    net = pelton.Network("mlp")
    w1, b1, w2 = normal(7, 5), normal(7), normal(3, 7)
    x = net.input("x", "f32[batch, 5]")
    h = net.relu(net.linear(x, w1, b1, name="hidden"))
    assert repr(h) == "relu: f32[batch, 7]" and net.tensor("hidden").shape == h.shape
    net.output(net.softmax(net.linear(h, w2)), "scores")
    for batch in (1, 4):
        a = normal(batch, 5)
        y = np.maximum(a @ w1.T + b1, 0) @ w2.T
        want = np.exp(y) / np.exp(y).sum(1, keepdims=True)
        np.testing.assert_allclose(run(net, x=a)["scores"], want, rtol=1e-5)


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("padding", [0, 1, (1, 2), ((0, 2), (1, 0)), "same", "same_lower", "valid"])
def test_paddings_and_strides_of_windows(size, padding):
    net = pelton.Network()
    x, w = net.input("x", f"f32[2, 3, {size}, {size}]"), normal(4, 3, 3, 2)
    conv = net.output(net.convolution(x, w, stride=2, padding=padding, dilation=(1, 2)), "conv")
    net.output(net.max_pool(x, (3, 2), stride=2, padding=0 if padding == (1, 2) else padding), "pool")
    found = run(net, x=normal(2, 3, size, size))
    if isinstance(padding, str) and padding != "valid":
        assert conv.shape[2:] == (-(-size // 2),) * 2
    assert found["conv"].shape == conv.shape


def test_same_padding_is_that_of_tensorflow():
    """⌈size / stride⌉ outputs, the odd element behind: the sums of ones count the elements that each window has."""
    net = pelton.Network()
    ones = np.ones((1, 1, 3), np.float32)
    net.output(net.convolution(net.input("x", (1, 1, 6)), ones, stride=2, padding="same"), "behind")
    net.output(net.convolution(net.tensor("x"), ones, stride=2, padding="same_lower"), "front")
    found = run(net, x=np.ones((1, 1, 6), np.float32))
    assert found["behind"].ravel().tolist() == [3, 3, 2] and found["front"].ravel().tolist() == [2, 3, 3]


def test_deconvolution_gives_back_the_size():
    net = pelton.Network()
    x = net.input("x", (1, 4, 5, 6))
    for stride, kernel in ((2, 3), (2, 2), (3, 2)):
        y = net.deconvolution(x, normal(4, 3, kernel, kernel), stride=stride, padding="same")
        assert y.shape == (1, 3, 5 * stride, 6 * stride)
        net.output(y)
    run(net, x=normal(1, 4, 5, 6))


def test_indexing_is_that_of_numpy():
    a = normal(4, 5, 6)
    for index in (
        0,
        -1,
        (slice(None), 2),
        (..., slice(1, None, 2)),
        (slice(3, 0, -1), None, 1),
        (slice(None, None, -1),),
    ):
        net = pelton.Network()
        net.output(net.input("x", (4, 5, 6))[index], "y")
        assert np.array_equal(run(net, x=a)["y"], a[index]), index


@pytest.mark.parametrize("start", [None, 1, 3, -1, -3])
@pytest.mark.parametrize("stop", [None, 1, 3, -1, -3])
@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slices_of_dynamic_axes_are_those_of_numpy(start, stop, step):
    net = pelton.Network()
    a, part = normal(2, 5), slice(start, stop, step)
    net.output(net.input("x", "f32[2, n=4..6..9]")[:, part], "y")
    assert a[:, part].shape == tuple(dims.at(d, {"n": 5}) for d in net.outputs["y"].shape)
    if a[:, part].size:
        assert np.array_equal(run(net, x=a)["y"], a[:, part])


def test_a_tensor_says_how_often_a_loop_runs():
    net = pelton.Network()
    trips = net.input("trips", "i64[]")
    net.output(net.loop(lambda inner, i, s: (True, s * 2), [net.input("x", "f32[2]")], trips), "y")
    assert run(net, x=np.float32([1, 3]), trips=np.int64(3))["y"].tolist() == [8, 24]


def test_tensors_are_compared_by_element():
    net, a = pelton.Network(), np.float32([0, 1, 2, 0])
    x = net.input("x", "f32[4]")
    net.output(net.where(x == 0, 7.0, x), "equal")
    net.output(net.where(x != np.float32([0, 1, 1, 1]), 7.0, x), "differ")
    found = run(net, x=a)
    assert found["equal"].tolist() == [7, 1, 2, 7] and found["differ"].tolist() == [0, 1, 7, 7]
    assert x in [x] and x != "x"


def test_arithmetic_takes_numbers_on_either_side():
    net = pelton.Network()
    x, y = net.input("x", (3, 4)), net.input("i", "i64[4]")
    net.output(1 - 2 * x / 3 + x**2, "floats")
    net.output(7 - y % 3, "integers")
    net.output(net.where(x > 0, x, -x) @ normal(4, 2), "product")
    a, i = normal(3, 4), np.arange(4)
    found = run(net, x=a, i=i)
    assert found["integers"].tolist() == (7 - i % 3).tolist()
    np.testing.assert_allclose(found["floats"], 1 - 2 * a / 3 + a**2, rtol=1e-5)


def test_what_is_computed_from_constants_is_a_constant():
    net = pelton.Network()
    c = net.constant([1, 2, 3], dtype="f32") * 2 + 1
    assert c.array.tolist() == [3, 5, 7]
    assert net.reshape(net.input("x", "f32[n, 4, 6]"), (-1, 8)).shape[1] == 8


def test_branches_and_loops_follow_the_data():
    net = pelton.Network()
    x = net.input("x", (3,))
    total = net.reduce_sum(x, axes=(0,), keepdims=False)
    net.output(net.if_(total > 0, lambda n: n.exp(x), lambda n: x - total), "branch")
    doubled = net.loop(lambda n, i, s: (n.reduce_sum(s, axes=(0,), keepdims=False) < 100, s * 2.0), [x], trips=9)
    net.output(doubled, "doubled")
    last, parts = net.scan(lambda n, h, row: (h * 0.5 + row, h), [net.constant(0.0)], [x])
    net.output(last, "last")
    net.output(parts, "parts")
    for a in (np.float32([1, 2, 4]), np.float32([-3, 1, 1])):
        np.testing.assert_allclose(run(net, x=a)["branch"], np.exp(a) if a.sum() > 0 else a - a.sum(), rtol=1e-6)
    h, seen = 0.0, []
    for v in (1, 2, 4):
        seen.append(h)
        h = h * 0.5 + v
    found = run(net, x=np.float32([1, 2, 4]))
    assert found["doubled"].tolist() == [32, 64, 128]
    assert found["last"] == h and found["parts"].tolist() == seen


def test_sizes_are_given_when_it_is_built():
    net = pelton.Network()
    x = net.input("x", "f32[batch=1..8..32, 3, width]")
    net.output(net.reshape(x, (-1, x.shape[2])), "y")
    fixed = pelton.build(net, {"x": (2, 3, 5)}, level=0)
    assert fixed.inputs[0].shape == (2, 3, 5)
    ranged = pelton.build(net, {"x": "1..2..4x3x1..7..9"}, level=0)
    assert ranged.run({"x": normal(4, 3, 9)})["y"].shape == (12, 9)
    for shapes, reason in (
        ({"z": (2, 3, 5)}, "there is no input 'z'"),
        ({"x": (2, 4, 5)}, "where 3 cannot be 4"),
        ({"x": (33, 3, 5)}, "from 1 to 32"),
        ({"x": (2, 3)}, "got 2 sizes"),
    ):
        with pytest.raises(pelton.InputError, match=reason):
            pelton.build(net, shapes, level=0)
    assert pelton.build(net, values={"x": normal(1, 3, 2)}, shapes={"x": (1, 3, 2)}, level=0).inputs == ()


def test_parts_are_replaced_and_extracted():
    net = pelton.Network()
    x = net.input("x", (2, 3))
    y = net.relu(x, name="y")
    net.output(net.exp(y), "z")
    net.replace(y, net.abs(y + 1))
    a = normal(2, 3)
    np.testing.assert_allclose(run(net, x=a)["z"], np.exp(np.maximum(a, 0) + 1), rtol=1e-6)
    part = net.extract(["y"], ["z"])
    assert [t.name for t in part.inputs] == ["y"]
    np.testing.assert_allclose(run(part, y=a)["z"], np.exp(np.abs(a + 1)), rtol=1e-6)
    with pytest.raises(pelton.InputError, match="another type"):
        net.replace(y, net.reshape(y, (3, 2)))
    both = net.output(x + net.tensor("y"), "both")
    with pytest.raises(pelton.InputError, match="also depend on 'x'"):
        net.extract(["y"], [both])


def test_models_are_edited(tmp_path):
    import onnx
    from models import small_cnn

    onnx.save(small_cnn(), tmp_path / "m.onnx")
    net = pelton.import_onnx(tmp_path / "m.onnx")
    (name, y), (x,) = next(iter(net.outputs.items())), net.inputs
    a = normal(*x.shape)
    before = pelton.build(str(tmp_path / "m.onnx"), level=0).run({x.name: a})[name]
    assert np.allclose(run(net, **{x.name: a})[name], before, atol=1e-4)
    net.replace(y, y * 2)
    np.testing.assert_allclose(run(net, **{x.name: a})[name], 2 * before, rtol=1e-3, atol=1e-4)


def test_names_are_scoped_and_unique():
    net = pelton.Network()
    x = net.input("x", (2,))
    with net.scope("block"), net.scope("a"):
        first, second = net.relu(x), net.relu(x)
    assert (first.name, second.name) == ("block/a/relu", "block/a/relu_2")
    net.output(second)
    assert "block/a/relu_2" in repr(net)


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (lambda net, x: net.input("x", (2,)), "already has a tensor 'x'"),
        (lambda net, x: net.input("z", "f33[2]"), "no element type"),
        (lambda net, x: net.input("z", "f32 2"), "must be like"),
        (lambda net, x: net.input("z", "f32[n m]"), "a size must be"),
        (lambda net, x: [net.output(x, "x"), net.output(x, "x")], "already has an output 'x'"),
        (lambda net, x: net.tensor("y"), "no tensor 'y'"),
        (lambda net, x: net.graph(), "has no output"),
        (lambda net, x: net.convolution(x, normal(4, 2, 3, 3)), r"layer 'convolution'"),
        (lambda net, x: net.convolution(x, normal(4, 3, 3, 3), stride=(1, 2, 3)), "stride must be"),
        (lambda net, x: net.convolution(x, normal(4, 3, 3, 3), padding="full"), "padding must be"),
        (lambda net, x: net.convolution(x, normal(4, 3, 3)), "needs a window of 2 axes"),
        (lambda net, x: net.softmax(x, axis=4), "axis"),
        (lambda net, x: net.softmax(x, axis=-5), "an axis between -4 and 3"),
        (lambda net, x: net.one_hot([1, 2], 4, axis=2), "an axis between -2 and 1"),
        (lambda net, x: net.cumsum(x), "needs attribute"),
        (lambda net, x: net.cumsum(x, axis=1, size=3), "no attribute"),
        (lambda net, x: net.add(x, "two"), "must be a tensor, an array or a number|no element type|needs"),
        (lambda net, x: net.add(None, x), "as operand 0"),
        (lambda net, x: net.add(x, pelton.Network("other").input("y", (2,))), "belongs to another network, 'other'"),
        (lambda net, x: net.reshape(x, (5, -1)), "another number of elements"),
        (lambda net, x: net.reshape(x, (-1, -1)), "may be -1"),
        (lambda net, x: x[9], "got the index 9"),
        (lambda net, x: net.relu(object()), "an operand must be a tensor, an array or a number, got <object"),
        (lambda net, x: net.replace("y", x), "has no tensor 'y'"),
        (lambda net, x: net.gather(x, [9], axis=1), "gather: needs indices that an axis of . has, got 9 to 9"),
        (lambda net, x: net.gather(x, [0, -9], axis=-1), "needs indices that an axis of . has, got -9 to 0"),
        (
            lambda net, x: net.gather_nd(x, np.array([[0, 9]])),
            "gather_nd: needs indices that an axis of . has, got 9 to 9",
        ),
        (lambda net, x: net.scatter_nd(x, np.array([[9]]), x[:1]), "scatter_nd: needs indices that"),
        (lambda net, x: net.input("z", (None, 3)), "a size must be a number, or a name as in .*, got None"),
        (lambda net, x: net.input("z", (-1, 3)), "a size must not be below 0, got -1"),
        (lambda net, x: net.gather(net.input("z", "f32[n]"), [7]), "must fit an axis of n; set sizes"),
        (lambda net, x: x[0, 0, 0, 0, 0], "has 4 axes, got 5"),
        (lambda net, x: x["a"], "an index must be"),
        (lambda net, x: net.split(x, 2, axis=1), "cannot be split"),
        (lambda net, x: net.pad(x, [(0, 1)]), "for each of 4 axes"),
        (lambda net, x: net.constant([[1], [2, 3]]), "constant"),
        (lambda net, x: net.if_(x, lambda n: x, lambda n: x), "one bool"),
    ],
)
def test_wrong_layers_are_refused_where_they_are_written(wrong, reason):
    net = pelton.Network("net")
    with pytest.raises(pelton.InputError, match=reason):
        wrong(net, net.input("x", (1, 3, 8, 8)))


def test_unknown_operators_name_similar_ones():
    net = pelton.Network()
    with pytest.raises(AttributeError, match="did you mean 'relu'"):
        net.reluu(1)
    with pytest.raises(TypeError, match="no elements yet"):
        bool(net.input("x", (1,)))
    assert {"relu", "convolution", "linear"} <= set(dir(net))


def test_one_hot_puts_its_axis_where_it_is_told():
    net = pelton.Network()
    i = net.input("i", "i64[3]")
    net.output(net.one_hot(i, 5), "last")
    net.output(net.one_hot(i, 5, axis=0, on=2, off=-1), "first")
    found = run(net, i=np.array([4, 0, 2]))
    assert np.array_equal(found["last"], np.eye(5)[[4, 0, 2]])
    assert np.array_equal(found["first"], 3 * np.eye(5)[[4, 0, 2]].T - 1)


def test_the_methods_of_the_page_exist():
    """docs/network.md tells users of TensorRT and others what to call."""
    page = (Path(__file__).parents[1] / "docs" / "network.md").read_text()
    methods = set(re.findall(r"`net\.(\w+)", page))
    assert len(methods) > 80
    assert [m for m in sorted(methods) if not hasattr(pelton.Network(), m) and m != "its_name"] == []


def test_the_stubs_are_current():
    """`make operators` writes them."""
    assert stubs.page() == Path(stubs.__file__).with_name("operators.pyi").read_text()


def test_a_second_file_is_refused_where_there_is_one(tmp_path):
    net = pelton.Network()
    net.output(net.relu(net.input("x", (2,))))
    with pytest.raises(pelton.InputError, match="of the format network, leave it out"):
        pelton.build(net, weights=tmp_path / "w.bin")
