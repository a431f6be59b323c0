"""Models that ONNX Runtime saved with channels in blocks, beside the same ones of ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model

from pelton.errors import ModelError
from pelton.importers.onnx.load import load
from pelton.importers.onnx.microsoft import nchwc
from pelton.importers.onnx.microsoft.nchwc import NCHWC
from pelton.ir.evaluate import evaluate


def whole(channels: int, block: int) -> int:
    return -(-channels // block) * block


def packed(w: np.ndarray, block: int, by_output: bool = False) -> np.ndarray:
    """Weights as ONNX Runtime orders them, element by element: blocks of outputs, of inputs (unless `by_output`), then
    the window, then inputs and outputs within their blocks. Padding is zero."""
    outputs, inputs = whole(w.shape[0], block), w.shape[1] if by_output else whole(w.shape[1], block)
    height, width = w.shape[2:]
    flat = np.zeros(outputs * inputs * height * width, np.float32)
    inner = 1 if by_output else block
    for o, i, y, x in np.ndindex(*w.shape):
        at = (o // block * (inputs // inner) + i // inner) * height + y
        flat[((at * width + x) * inner + i % inner) * block + o % block] = w[o, i, y, x]
    return flat.reshape(outputs, inputs, height, width)


def padded(b: np.ndarray, block: int) -> np.ndarray:
    return np.pad(b, (0, whole(b.size, block) - b.size))


def N(op: str, inputs: str, output: str, **attrs) -> onnx.NodeProto:
    return helper.make_node(op, ["" if n == "_" else n for n in inputs.split()], [output], domain=NCHWC, **attrs)


def plain(op: str, inputs: str, output: str, **attrs) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attrs)


def weights(rng, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


Pair = tuple[onnx.ModelProto, onnx.ModelProto]


def network(rng, block: int, channels: int) -> Pair:
    """Convolutions of images, of blocks, of one channel each and of groups, with a sum and activations; pooling."""
    w1, b1, w2, b2, w3, w4 = weights(
        rng, (channels, 3, 3, 3), (channels,), (32, channels, 1, 1), (32,), (32, 1, 3, 3), (32, 16, 1, 3)
    )
    ends = {"x": "f32[2, 3, 9, 8]"}
    same = dict(pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    across = dict(group=2, pads=[0, 1, 0, 1])
    pool = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    ours = model(
        [
            N("Conv", "x w1 b1", "a", activation="Relu", auto_pad="NOTSET", **same),
            N("MaxPool", "a", "p", **pool),
            N("Conv", "p w2 b2", "c", activation="LeakyRelu", activation_params=[0.1]),
            N("Conv", "c w3", "d", group=32, activation="HardSwish", **same),
            N("Conv", "d w4 _ c", "e", activation="Clip", activation_params=[-1.0, 2.0], **across),
            N("AveragePool", "e", "f", kernel_shape=[2, 2], count_include_pad=1, pads=[1, 0, 1, 0]),
            N("GlobalAveragePool", "f", "g"),
            N("GlobalMaxPool", "f", "h"),
            N("ReorderOutput", "p", "y0", channels=channels),
            N("ReorderOutput", "g", "y1", channels=32),
            N("ReorderOutput", "h", "y2", channels=32),
            N("ReorderOutput", "f", "y3", channels=32, channels_last=1),
        ],
        ends,
        ["y0", "y1", "y2", "y3"],
        {
            "w1": packed(w1, block, by_output=True),
            "b1": padded(b1, block),
            "w2": packed(w2, block),
            "b2": b2,
            "w3": packed(w3, block, by_output=True),
            "w4": packed(w4, block),
        },
        domains={NCHWC: 1},
    )
    theirs = model(
        [
            plain("Conv", "x w1 b1", "a0", **same),
            plain("Relu", "a0", "a"),
            plain("MaxPool", "a", "y0", **pool),
            plain("Conv", "y0 w2 b2", "c0"),
            plain("LeakyRelu", "c0", "c", alpha=0.1),
            plain("Conv", "c w3", "d0", group=32, **same),
            plain("HardSwish", "d0", "d"),
            plain("Conv", "d w4", "e0", **across),
            plain("Add", "e0 c", "e1"),
            plain("Clip", "e1 low high", "e"),
            plain("AveragePool", "e", "f", kernel_shape=[2, 2], count_include_pad=1, pads=[1, 0, 1, 0]),
            plain("GlobalAveragePool", "f", "y1"),
            plain("GlobalMaxPool", "f", "y2"),
            plain("Transpose", "f", "y3", perm=[0, 2, 3, 1]),
        ],
        ends,
        ["y0", "y1", "y2", "y3"],
        {"w1": w1, "b1": b1, "w2": w2, "b2": b2, "w3": w3, "w4": w4, "low": np.float32(-1), "high": np.float32(2)},
    )
    return ours, theirs


def resized(rng, block: int) -> Pair:
    """Images of 12 channels, the last axis; they are padded, and back in blocks, larger, beside ONNX's own nodes."""
    (w,) = weights(rng, (24, 12, 1, 1))
    ways = [("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"), ("linear", "asymmetric")]
    scales = np.array([1, 1, 2, 3], np.float32)
    ours = [N("ReorderInput", "x", "a", channels_last=1), N("Conv", "a w", "b"), plain("Add", "b b", "c")]
    theirs = [plain("Transpose", "x", "a", perm=[0, 3, 1, 2]), plain("Conv", "a w", "b"), plain("Add", "b b", "c")]
    for i, (mode, coordinates) in enumerate(ways):
        more = dict(mode=mode, coordinate_transformation_mode=coordinates)
        ours += [N("Upsample", "c", f"u{i}", scales=[1, 1, 2, 3], **more)]
        ours += [N("ReorderOutput", f"u{i}", f"y{i}", channels=24)]
        floor = dict(nearest_mode="floor") if mode == "nearest" else {}
        theirs += [helper.make_node("Resize", ["c", "", "s"], [f"y{i}"], **more, **floor)]
    ends, outputs = {"x": "f32[1, 4, 5, 12]"}, [f"y{i}" for i in range(len(ways))]
    return (
        model(ours, ends, outputs, {"w": packed(w, block)}, domains={NCHWC: 1}),
        model(theirs, ends, outputs, {"w": w, "s": scales}),
    )


# of these, the channels say how large blocks are, or they do not
MODELS: dict[str, Callable[..., Pair]] = {
    "20-channels": lambda rng, block: network(rng, block, 20),
    "32-channels": lambda rng, block: network(rng, block, 32),
    "resized": resized,
}


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_a_layout(name, block, monkeypatch):
    says = name != "32-channels"
    monkeypatch.setattr(nchwc, "_block_here", lambda: 24 - block if says else block)
    ours, theirs = MODELS[name](np.random.default_rng(0), block)
    found = load(ours)
    assert bool(found.info.warnings) is not says
    if not says:
        assert (
            f"blocks of {block} channels" in found.info.warnings[0] and "ORT_ENABLE_EXTENDED" in found.info.warnings[0]
        )
    (port,) = theirs.graph.input
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    got, want = evaluate(found.graph, feeds), evaluate(load(theirs).graph, feeds)
    for output, expected in want.items():
        assert got[output].shape == expected.shape
        assert np.allclose(got[output], expected, rtol=1e-5, atol=1e-5), output


def one_conv(shape: tuple[int, ...], channels: int, more=(), **attrs) -> onnx.ModelProto:
    nodes = [N("Conv", "x w", "a", **attrs), *more, N("ReorderOutput", "a", "y", channels=channels)]
    size = shape[1] * attrs.get("group", 1)
    constants = {"w": np.ones(shape, np.float32), "v": np.ones((24, 3, 1, 1), np.float32)}
    return model(nodes, {"x": f"f32[1, {size}, 5, 5]"}, ["y"], constants, domains={NCHWC: 1})


@pytest.mark.parametrize(
    "m, says",
    [
        # 24 outputs are blocks of 8, and 10 inputs that are not in blocks of 16
        (one_conv((32, 10, 1, 1), 32, [N("Conv", "x v", "b")]), "blocks of 8 and of 16"),
        (one_conv((20, 3, 1, 1), 20), "weights in blocks of"),
        (one_conv((32, 3, 1, 1), 33), "channels from 1 to 32, got 33"),
        (one_conv((32, 3, 1, 1), 32, activation="Mystery"), "activation 'Mystery'"),
        (one_conv((32, 3, 1, 1), 32, padding=1), "has no attribute 'padding'"),
    ],
)
def test_refusals(m, says):
    with pytest.raises(ModelError, match=says):
        load(m)


def test_the_size_here_is_that_of_onnx_runtime(tmp_path):
    """Where it is installed: what it saves for this CPU gives what it gives itself."""
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    w, v = weights(rng, (32, 16, 3, 3), (48, 32, 1, 1))
    nodes = [plain("Conv", "x w", "a", pads=[1] * 4), plain("Relu", "a", "b"), plain("Conv", "b v", "y")]
    m = model(nodes, {"x": "f32[1, 16, 7, 9]"}, ["y"], {"w": w, "v": v})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    x = rng.standard_normal((1, 16, 7, 9)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(m.SerializeToString(), options).run(None, {"x": x})
    saved = onnx.load(tmp_path / "saved.onnx")
    if not any(n.domain == NCHWC for n in saved.graph.node):
        pytest.skip("ONNX Runtime has no blocks on this CPU")
    assert np.allclose(evaluate(load(saved).graph, {"x": x})["y"], want, rtol=1e-4, atol=1e-4)
