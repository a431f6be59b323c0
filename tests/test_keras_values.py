"""Keras operations on dynamic axes, and with computed places; expected values are from Keras 3.15."""

import keras_files as made
import numpy as np
import pytest

import pelton
from pelton.importers.keras import UnknownPart, read
from pelton.importers.network import imported
from pelton.ir.evaluate import evaluate

RNG = np.random.default_rng(9)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def operation(kind, *args, module="numpy", **options):
    """A call of an operation: "x" is a tensor, lists are numbers or parts of a key."""
    found = made.layer(kind, "y", module=f"keras.src.ops.{module}")
    given = [made.tensors(a) if isinstance(a, str) else a for a in args]
    return found | {"config": {"name": "y", **options}, "inbound_nodes": [{"args": given, "kwargs": {}}]}


def net_of(layer, **inputs):
    layers = []
    for name, (dtype, shape) in inputs.items():
        layers.append(made.given(name, *shape[1:], dtype=dtype))
        layers[-1]["config"]["batch_shape"] = list(shape)
    return read(made.archive(made.functional([*layers, layer], list(inputs), ["y"]), {}))


def run(net, **feeds):
    (found,) = evaluate(imported(net).graph, feeds).values()
    return found


def key(*parts):
    def described(p):
        return {"class_name": "__slice__", "config": dict(start=p.start, stop=p.stop, step=p.step)}

    return [described(p) if isinstance(p, slice) else p for p in parts]


EVERY = slice(None)


@pytest.mark.parametrize(
    "parts, steps",
    [
        ((EVERY, -1), (1, 6)),
        ((EVERY, 2), (3, 6)),
        ((EVERY, slice(2, None), slice(None, None, 2)), (3, 6)),
        ((EVERY, slice(None, -1)), (2, 7)),
        ((EVERY, slice(-3, -1)), (3, 5)),
    ],
)
def test_elements_of_a_dynamic_axis(parts, steps):
    net = net_of(operation("GetItem", "x", key(*parts)), x=("float32", (None, None, 4)))
    for n in steps:
        x = normal(2, n, 4)
        np.testing.assert_array_equal(run(net, x=x), x[parts])


def test_sequences_too_short_for_what_is_picked_are_refused():
    net = net_of(operation("GetItem", "x", key(EVERY, 2)), x=("float32", (None, None, 4)))
    engine = pelton.build(net, level=0, threads=1)
    with pytest.raises(pelton.InputError, match="axis 1 of input 'x'"):
        engine.run({"x": normal(2, 2, 4)})


def test_parts_of_a_dynamic_axis():
    first = operation("Split", "x", indices_or_sections=[2, 3], axis=1)
    net = net_of(first, x=("float32", (None, None, 4)))
    for n in (3, 8):
        x = normal(2, n, 4)
        np.testing.assert_array_equal(run(net, x=x), x[:, :2])


@pytest.mark.parametrize("starts", [(0, 1, 2), (1, 3, 0)])
def test_slices_from_computed_places(starts):
    begin, shape = np.asarray(starts, np.int32), (1, 3, 2)
    at = tuple(slice(s, s + n) for s, n in zip(starts, shape))
    inputs, x, u = dict(x=("float32", (2, 6, 4)), s=("int32", (3,))), normal(2, 6, 4), normal(*shape)
    net = net_of(operation("Slice", "x", "s", module="core", shape=list(shape)), **inputs)
    np.testing.assert_array_equal(run(net, x=x, s=begin), x[at])
    net = net_of(operation("Slice", "x", list(starts), module="core", shape=list(shape)), x=inputs["x"])
    np.testing.assert_array_equal(run(net, x=x), x[at])
    net = net_of(operation("SliceUpdate", "x", "s", "u", module="core"), **inputs, u=("float32", shape))
    want = x.copy()
    want[at] = u
    np.testing.assert_array_equal(run(net, x=x, s=begin, u=u), want)


def test_elements_along_an_axis_are_broadcast():
    inputs = dict(x=("float32", (None, None, 4)), i=("int32", (None, 5, 1)))
    net = net_of(operation("TakeAlongAxis", "x", "i", axis=1), **inputs)
    x, i = normal(2, 6, 4), RNG.integers(0, 6, (2, 5, 1)).astype(np.int32)
    np.testing.assert_array_equal(run(net, x=x, i=i), np.take_along_axis(x, np.broadcast_to(i, (2, 5, 4)), 1))


def test_starts_that_do_not_fit_are_refused():
    layer = operation("Slice", "x", [0, 1], module="core", shape=[1, 3, 2])
    with pytest.raises(UnknownPart, match="needs a start for each of 3 axes, got"):
        net_of(layer, x=("float32", (2, 6, 4)))
