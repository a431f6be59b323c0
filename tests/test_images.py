"""Image and volume sampling in whole engines: without host steps, and as in the references."""

import numpy as np
import pytest
from compare import assert_close
from draw import examples, operands
from test_dynamic import agree, built, drawn  # noqa: F401  (a fixture)

from pelton.ir import text
from pelton.ir.builder import Builder
from pelton.ir.evaluate import evaluate
from pelton.ir.types import TensorType
from pelton.ops import get

OPS = (
    "convolution",
    "conv_transpose",
    "max_pool",
    "average_pool",
    "max_pool_places",
    "resize",
    "blend",
    "grid_sample",
    "roi_align",
    "deform_convolution",
)


@pytest.mark.parametrize("name", OPS)
def test_every_example_runs_in_kernels(built, name):
    """All examples of an op in one program, every operand an input: nothing is known of filters, grids and rois before
    a run."""
    b, outputs, inputs = Builder(), [], {}
    for example, op, types, attrs in examples():
        # these become products of such matrices
        if op.name == name and not (op.name.startswith("conv") and types[0].dtype.value in ("i32", "f64")):
            given = [b.input(t, f"{example}.{i}") for i, t in enumerate(types)]
            inputs.update((v.name, a) for v, a in zip(given, operands(op, types, attrs)))
            outputs += b.emit(op, given, attrs, names=[example])
    graph = b.graph(outputs)
    engine = built(graph)
    assert not engine.meta["host_steps"]
    got, want = engine.run(inputs), evaluate(graph, inputs)
    for v in outputs:
        assert_close(got[v.name], want[v.name], about=v.name)


RESIZING = (
    "graph main[h: 1..5..64, w: 1..6..64](%x: f32[2, 9, h, w]) {{\n"
    "  %y: f32[2, 9, {height}, {width}] = resize(%x)"
    " {{shape=(2, 9, [{height}], [{width}]), scales=(1.0, 1.0, {scales}), {how}}}\n"
    "  return %y\n}}\n"
)
HOW = [
    ("2*h", "3*w", "2.0, 3.0", 'mode="nearest", coordinates="asymmetric", nearest="floor"'),
    ("2*h", "w", "2.0, 1.0", 'mode="nearest"'),
    ("w", "h", "0.0, 0.0", 'mode="nearest", nearest="round_prefer_ceil"'),
    ("2*h", "w//2 + 1", "2.0, 0.0", 'mode="nearest", coordinates="align_corners", nearest="ceil"'),
    ("2*h", "13", "2.0, 0.0", 'mode="linear"'),
    ("2*h", "w + 1", "2.0, 0.0", 'mode="linear", coordinates="align_corners"'),
    ("h", "w + 1", "1.0, 0.0", 'mode="linear", coordinates="pytorch_half_pixel"'),
    ("3*h//2", "w + 1", "1.5, 0.0", 'mode="cubic", coordinates="asymmetric", cubic_a=-0.5, exclude_outside=true'),
    ("3*h//2", "w + 1", "1.5, 0.0", 'mode="cubic", coordinates="half_pixel_symmetric"'),
    ("(h + 1)//2", "w", "0.5, 1.0", 'mode="linear", antialias=true'),
]


@pytest.mark.parametrize("height, width, scales, how", HOW)
def test_feature_maps_of_any_size_are_resized(built, height, width, scales, how):
    graph = text.parse(RESIZING.format(height=height, width=width, scales=scales, how=how))
    engine = built(graph)
    assert not engine.meta["host_steps"]
    for h, w in ((5, 6), (1, 1), (17, 3), (2, 40)):
        agree(engine, graph, drawn({"x": (2, 9, h, w)}))


def test_volumes_go_through_a_network(built):
    """Convolution, activation, pooling, a transposed convolution and a join, as networks for volumes have them."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input(TensorType.parse("f32[1, 8, 5, 9, 11]"), "x")

    def weights(*shape):
        return b.constant((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def conv(v, channels):
        (y,) = b.emit(
            get("convolution"),
            [v, weights(channels, v.type.shape[1], 3, 3, 3), weights(channels)],
            dict(strides=(1, 1, 1), pads=(1,) * 6, dilations=(1, 1, 1)),
        )
        return b.emit(get("relu"), [y])[0]

    skipped = conv(x, 12)
    (small,) = b.emit(
        get("max_pool"), [skipped], dict(kernel=(2, 2, 2), strides=(2, 2, 2), pads=(0,) * 6, dilations=(1, 1, 1))
    )
    (large,) = b.emit(
        get("conv_transpose"),
        [conv(small, 16), weights(16, 12, 2, 2, 2), weights(12)],
        dict(strides=(2, 2, 2), pads=(0,) * 6, dilations=(1, 1, 1), output_padding=(1, 1, 1)),
    )
    (joined,) = b.emit(get("concat"), [skipped, large], dict(axis=1))
    graph = b.graph([conv(joined, 8)])
    engine = built(graph)
    assert not engine.meta["host_steps"]
    agree(engine, graph, drawn({"x": (1, 8, 5, 9, 11)}))
