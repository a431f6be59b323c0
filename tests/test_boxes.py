"""Box suppression: the native one equals the reference, for all possible inputs."""

import numpy as np
import pytest

import pelton
from pelton.backends.cpu.boxes import non_max_suppression
from pelton.reference import functions


def drawn(rng, batch: int, classes: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of all kinds (some turned round, some without area, some alike) with scores of which many are equal."""
    at, size = rng.uniform(0, 20, (batch, n, 2)), rng.uniform(-6, 6, (batch, n, 2))
    boxes = np.concatenate([at, at + size * (rng.random((batch, n, 1)) > 0.1)], -1).astype(np.float32)
    boxes[:, n // 2 : n // 2 + n // 8] = boxes[:, : n // 8]
    return boxes, rng.integers(0, max(n // 2, 2), (batch, classes, n)).astype(np.float32) / max(n, 1)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_the_reference_is(seed):
    rng = np.random.default_rng(seed)
    boxes, scores = drawn(rng, *rng.integers(0, 4, 2), int(rng.choice([0, 1, 2, 7, 60, 300])))
    if seed % 3 == 0 and scores.size:
        scores.reshape(-1)[::7] = np.nan
        boxes.reshape(-1)[::11] = rng.choice([np.nan, np.inf, -np.inf])
    for most in (None, 0, -3, 1, 5, 1000):
        for least in (None, 0.0, 0.3):
            given = [
                boxes,
                scores,
                *(
                    None if x is None else np.array([x], t)
                    for x, t in ((most, np.int64), (rng.choice([0, 0.3, 0.5, 1]), np.float32), (least, np.float32))
                ),
            ]
            for center in (False, True):
                with np.errstate(all="ignore"):
                    (want,), (got,) = (
                        functions.non_max_suppression(*given, center=center),
                        non_max_suppression(*given, center=center),
                    )
                np.testing.assert_array_equal(got, want)
                assert got.dtype == np.int64


def test_what_does_not_fit_is_refused_before_native_code_sees_it():
    for boxes, scores in (
        ((1, 5, 4), (1, 2, 6)),
        ((2, 5, 4), (1, 2, 5)),
        ((1, 5, 3), (1, 2, 5)),
        ((5, 4), (1, 2, 5)),
        ((1, 5, 4), (2, 5)),
    ):
        with pytest.raises(ValueError, match="boxes .batch, n, 4"):
            non_max_suppression(np.zeros(boxes, np.float32), np.zeros(scores, np.float32), np.array([3]))
    onnx = pytest.importorskip("onnx")
    helper, f32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("NonMaxSuppression", ["b", "s", "m"], ["y"], "nms")],
        "g",
        [
            helper.make_tensor_value_info("b", f32, [1, None, 4]),
            helper.make_tensor_value_info("s", f32, [1, 2, None]),
            helper.make_tensor_value_info("m", onnx.TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [None, 3])],
    )
    engine = pelton.build(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), level=0)
    assert engine.run({"b": np.zeros((1, 3, 4), np.float32), "s": np.ones((1, 2, 3), np.float32), "m": np.array([2])})[
        "y"
    ].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    with pytest.raises(pelton.Error, match="nms"):
        engine.run({"b": np.zeros((1, 3, 4), np.float32), "s": np.ones((1, 2, 5), np.float32), "m": np.array([2])})
