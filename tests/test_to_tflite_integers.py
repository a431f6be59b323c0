"""Programs of integers as TFLite models: shared scales, parts that are too far apart, clipping by the range."""

import numpy as np
import pytest

import pelton
from pelton import importers
from pelton.exporters import tflite, to_tflite
from pelton.ir.evaluate import evaluate


def last(a):
    return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if a.ndim > 3 else a


def conv(net, x, channels, gain=1.0, seed=0):
    rng = np.random.default_rng(seed)
    depth = x.shape[1]
    w = gain * rng.standard_normal((channels, depth, 3, 3)) / np.sqrt(9 * depth)
    return net.convolution(x, w.astype(np.float32), np.zeros(channels, np.float32), padding=1)


def written(write, ports=False, seed=0):
    """The file of a network calibrated on random inputs, its outputs by integers and by floats, in the file's order."""
    net = pelton.Network("net")
    x = net.input("x", "f32[1, 3, 12, 12]")
    for i, y in enumerate(write(net, x)):
        net.output(y, f"y{i}")
    floats = tflite.prepared(net.graph(), integers=True)
    feeds = {"x": np.random.default_rng(seed).standard_normal((1, 3, 12, 12)).astype(np.float32)}
    values = {v.name: v for v in (*floats.inputs, *(v for n in floats.nodes for v in n.outputs))}
    names = tflite.calibrated_values(floats)
    observed = evaluate(floats.replace(outputs=tuple(values[n] for n in names)), feeds)
    ranges = {k: (float(a.min()), float(a.max())) for k, a in observed.items()}
    graph = tflite.quantized(floats, ranges, ports=ports)
    file = to_tflite(graph)
    by_floats = {k: last(a) for k, a in evaluate(net.graph(), feeds).items()}
    if ports:
        return file, None, by_floats
    program = importers.load(file.data, {k: last(a).shape for k, a in feeds.items()}).graph
    found = evaluate(program, {k: last(a) for k, a in feeds.items()})
    for k, a in evaluate(graph, feeds).items():
        np.testing.assert_allclose(found[k], last(a), rtol=1e-5, atol=1e-5 * np.abs(a).max())
    return file, found, by_floats


def names(file):
    return [op.operator for op in file.operators]


def of(file, name):
    return [op for op in file.operators if op.operator == name]


def test_operands_of_concatenations_have_its_scale():
    def write(net, x):
        a, b = net.relu(conv(net, x, 8, 1.0)), net.relu(conv(net, x, 8, 1.2, seed=1))
        skip = net.max_pool(a, 2, stride=2)
        inner = net.concat([b, a], axis=1)
        most = net.relu(conv(net, inner, 4, 1.0, seed=2))
        return net.concat([inner, most], axis=1), net.relu(conv(net, skip, 4))

    file, found, wanted = written(write)
    assert names(file).count("QUANTIZE") == 1  # of the input
    joins = of(file, "CONCATENATION")
    assert len(joins) == 2 and len({t.scaling for op in joins for t in (*op.inputs, *op.outputs)}) == 1
    for k, w in wanted.items():
        assert np.abs(found[k] - w).max() < 0.05 * np.abs(w).max()


def test_a_value_with_other_readers_takes_no_much_larger_step():
    def write(net, x):
        small, large = conv(net, x, 8, 0.2), conv(net, x, 8, 1.0, seed=1)
        return conv(net, net.concat([small, large], axis=1), 8, seed=2), conv(net, small, 8, seed=3)

    file, _, _ = written(write)
    (join,) = of(file, "CONCATENATION")
    assert names(file).count("QUANTIZE") == 2 and len({t.scaling for t in join.inputs}) == 1
    assert of(file, "QUANTIZE")[1].inputs[0].scaling.scale[0] < 0.5 * join.outputs[0].scaling.scale[0]


def test_concatenations_take_the_scale_that_their_operands_must_have():
    def write(net, x):
        gates = [net.sigmoid(conv(net, x, 4, 2.0, seed=i)) for i in range(3)]
        flat = [net.transpose(net.reshape(g, (1, 4, 144)), perm=(0, 2, 1)) for g in gates]
        return (net.concat(flat, axis=1),)

    file, _, _ = written(write)
    assert names(file).count("QUANTIZE") == 1
    assert of(file, "CONCATENATION")[0].outputs[0].scaling.scale == (1 / 256,)


@pytest.mark.parametrize("ports", [False, True])
def test_outputs_of_parts_that_are_far_apart_stay_floats(ports):
    def write(net, x):
        boxes, scores = conv(net, x, 4, 300.0), net.sigmoid(conv(net, x, 2, 2.0, seed=1))
        return (net.reshape(net.concat([boxes, scores], axis=1), (1, 6, 144)),)

    file, found, wanted = written(write, ports)
    join = of(file, "CONCATENATION")[0]
    assert {t.dtype.value for t in (*join.inputs, *join.outputs)} == {"i8" if ports else "f32"}
    if not ports:
        off = np.abs(found["y0"] - wanted["y0"])[:, 4:]
        assert off.max() < 0.05  # by one scale, each would be 0 or a step of 4


def test_a_hard_sigmoid_is_part_of_its_convolution():
    def write(net, x):
        return (net.hard_sigmoid(conv(net, x, 8, 4.0), alpha=1 / 6, beta=0.5),)

    file, found, wanted = written(write)
    assert names(file) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]
    assert wanted["y0"].min() == 0 and wanted["y0"].max() == 1
    assert np.abs(found["y0"] - wanted["y0"]).max() < 0.02
    assert found["y0"].min() == 0 and abs(found["y0"].max() - 1) < 1e-6


def test_a_hard_sigmoid_of_a_value_with_other_readers_is_not():
    def write(net, x):
        y = conv(net, x, 8, 4.0)
        return net.hard_sigmoid(y, alpha=1 / 6, beta=0.5), net.relu(y)

    file, found, wanted = written(write)
    assert "MUL" in names(file)
    for k, w in wanted.items():
        assert np.abs(found[k] - w).max() < 0.05 * np.abs(w).max()


@pytest.mark.parametrize("high", [0.7, 1.0, 6.0, 20.0])
def test_clips_of_layers_are_integers(high):
    def write(net, x):
        y = net.clip(conv(net, x, 8, 8.0), 0.0, high)
        return (net.concat([y, conv(net, x, 4, 3.0, seed=1)], axis=1),)

    file, found, wanted = written(write)
    assert {t.dtype.value for op in of(file, "CONV_2D") for t in op.outputs} == {"i8"}
    assert names(file).count("DEQUANTIZE") == 1
    scale = of(file, "CONCATENATION")[0].outputs[0].scaling.scale[0]
    assert np.abs(found["y0"] - wanted["y0"]).max() < 0.06 * np.abs(wanted["y0"]).max()
    assert found["y0"][..., :8].min() >= 0 and found["y0"][..., :8].max() <= high + scale


def test_products_and_sums_for_each_channel_are_one_layer():
    rng = np.random.default_rng(3)
    a, b, c = (rng.uniform(0.5, 2, (n, 1, 1)).astype(np.float32) for n in (8, 8, 1))

    def write(net, x):
        y = net.add(net.mul(net.max_pool(conv(net, x, 8), 2, stride=2), a), b)
        return net.relu(net.sub(c, net.div(y, -b))), net.mul(net.max_pool(x, 3, stride=3), c)

    file, found, wanted = written(write)
    kinds = names(file)
    assert kinds.count("DEPTHWISE_CONV_2D") == 1 and kinds.count("MUL") == 1 and not {"ADD", "SUB", "RELU"} & {*kinds}
    for k, w in wanted.items():
        assert np.abs(found[k] - w).max() < 0.03 * np.abs(w).max()


def test_products_and_sums_with_other_readers_stay():
    a = np.full((8, 1, 1), 1.5, np.float32)

    def write(net, x):
        y = net.mul(conv(net, net.max_pool(x, 2, stride=2), 8), a)
        z = net.add(net.relu(y), a)
        return y, net.mul(z, z), net.add(net.mul(net.max_pool(x, 3, stride=3), np.float32(3)), rng_rows)

    rng_rows = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    file, found, wanted = written(write)
    assert "DEPTHWISE_CONV_2D" not in names(file)
    for k, w in wanted.items():
        assert np.abs(found[k] - w).max() < 0.05 * np.abs(w).max()


def test_pools_of_whole_images_are_means_with_a_scale_of_their_own():
    def write(net, x):
        y = net.relu(conv(net, x, 8))
        return net.reshape(net.average_pool(y, 12), (1, 8)), net.average_pool(y, 3, stride=3)

    file, found, wanted = written(write)
    assert names(file).count("MEAN") == 1 and names(file).count("AVERAGE_POOL_2D") == 1
    (mean,) = of(file, "MEAN")
    assert mean.outputs[0].scaling.scale[0] < 0.5 * mean.inputs[0].scaling.scale[0]
    for k, w in wanted.items():
        assert np.abs(found[k] - w).max() < 0.02 * np.abs(w).max()


def test_pools_for_outputs_keep_the_order_of_axes():
    file, _, _ = written(lambda net, x: (net.average_pool(conv(net, x, 8), 12),))
    assert names(file).count("AVERAGE_POOL_2D") == 1 and file.outputs["y0"].shape == (1, 1, 1, 8)
