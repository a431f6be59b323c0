"""MaxUnpool: maxima return to their origins in MaxPool, whatever the size of the picture."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_checks import check
from onnx_models import model, node, one_node

import pelton
from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.passes import pipeline

SIZES = [(1, 1, 5, 7), (2, 3, 6, 9), (2, 2, 7), (1, 2, 5, 4, 7), (3, 1, 3, 3)]
WINDOWS = [
    dict(kernel=2, stride=2),
    dict(kernel=3, stride=2),
    dict(kernel=2, stride=3),
    dict(kernel=3, stride=2, pad=1),
    dict(kernel=3, stride=3, dilation=1),
]


def pooled_and_back(shape, *, kernel: int, stride: int, pad: int = 0, dilation: int = 1, opset: int = 17, sizes=None):
    """MaxPool, and MaxUnpool into the shape that was pooled."""
    space = len(shape) - 2
    how = dict(kernel_shape=[kernel] * space, strides=[stride] * space, pads=[pad] * 2 * space)
    dims = ", ".join(map(str, sizes or shape))
    return model(
        [
            node("Shape", "x", "s"),
            node("MaxPool", "x", "p i", **how, dilations=[dilation] * space),
            node("MaxUnpool", "p i s", "y", **how),
        ],
        {"x": f"f32[{dims}]"},
        ["y"],
        opset=opset,
    )


def kept(x: np.ndarray, *, kernel: int, stride: int, pad: int = 0, dilation: int = 1) -> np.ndarray:
    """x with zeros wherever it is not the largest of a window, the first of equals."""
    space, y = x.ndim - 2, np.zeros_like(x)
    counts = [(n + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for n in x.shape[2:]]
    for image in np.ndindex(x.shape[:2]):
        for window in np.ndindex(*counts):
            taps = (
                tuple(w * stride - pad + t * dilation for w, t in zip(window, tap))
                for tap in np.ndindex(*[kernel] * space)
            )
            places = [place for place in taps if all(0 <= p < n for p, n in zip(place, x.shape[2:]))]
            best = max(places, key=lambda place: x[image][place])
            y[image][best] = x[image][best]
    return y


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_maxima_come_back_to_their_places(shape, window, ties):
    rng = np.random.default_rng(len(shape))
    x = (rng.integers(1, 4, shape) if ties else rng.standard_normal(shape)).astype(np.float32)
    want = {"y": kept(x, **window)}
    assert np.count_nonzero(want["y"])
    check(pooled_and_back(shape, **window), want, {"x": x})
    names = [f"n{i}" for i in range(len(shape))]
    found = load(pooled_and_back(shape, **window, sizes=names)).graph
    for graph in (found, pipeline.run(found)[0]):
        np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], want["y"])


def test_an_engine_puts_maxima_back(kernel_cache):
    window = WINDOWS[0]
    m = pooled_and_back((1, 1, 5, 7), **window, sizes=("n", 2, "h", "w"))
    engine = pelton.build(m, level=0, cache_dir=kernel_cache)
    for seed, shape in enumerate([(1, 2, 5, 7), (2, 2, 6, 8), (3, 2, 9, 4)]):
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(engine.run({"x": x})["y"], kept(x, **window))


@pytest.mark.parametrize("rank_known", [True, False])
def test_the_shape_may_be_an_input(kernel_cache, rank_known):
    window = dict(kernel_shape=[2, 2], strides=[2, 2])
    m = model(
        [node("MaxPool", "x", "p i", **window), node("MaxUnpool", "p i s", "y", **window)],
        {"x": "f32[2, 3, 5, 7]", "s": "i64[4]" if rank_known else "i64[n]"},
        [],
    )
    m.graph.output.add(name="y").type.tensor_type.elem_type = 1
    for _ in range(4):
        m.graph.output[0].type.tensor_type.shape.dim.add()
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 7)).astype(np.float32)
    found = pelton.build(m, level=0, cache_dir=kernel_cache).run({"x": x, "s": np.array(x.shape)})
    np.testing.assert_array_equal(found["y"], kept(x, kernel=2, stride=2))


@pytest.mark.parametrize(
    "indices, flat",
    [
        ([[6, 8], [16, 18]], [6, 8, 16, 18]),  # of a picture of 5 × 5
        ([[5, 7], [13, 15]], [6, 8, 16, 18]),  # of one of 4 × 4, as in the onnx package's test
        ([[0, 24], [11, 7]], [0, 24, 11, 7]),  # of no windows
    ],
)
def test_indices_of_the_implied_shape_are_told_by_their_windows(indices, flat):
    m = one_node(
        "MaxUnpool",
        "f32[1, 1, 2, 2]",
        "i64[1, 1, 2, 2]",
        np.array([1, 1, 5, 5]),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    want = np.zeros(25, np.float32)
    want[flat] = 1, 2, 3, 4
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    check(m, {"y0": want.reshape(1, 1, 5, 5)}, {"x0": x, "x1": np.array(indices)[None, None]})


@pytest.mark.parametrize("indices, shape", [("i64[1, 2, 2, 3]", (1, 2, 5, 5)), ("i64[1, 2, 2, 2]", (1, 3, 5, 5))])
def test_other_indices_or_channels_than_those_of_the_maxima_are_refused(indices, shape):
    m = one_node("MaxUnpool", "f32[1, 2, 2, 2]", indices, np.array(shape), kernel_shape=[2, 2], strides=[2, 2])
    with pytest.raises(ModelError, match="an index for each element .* as many batches and channels"):
        load(m)
