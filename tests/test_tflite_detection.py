"""Box selection in TFLite models, beside loops over boxes."""

from __future__ import annotations

import numpy as np
import pytest
from tflite_detection import CASES, detected, detector, suppressed, suppression

import pelton
from pelton.errors import ModelError
from pelton.importers.network import imported
from pelton.importers.tflite import read
from pelton.ir.evaluate import evaluate


@pytest.mark.parametrize("background", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_detections(case, background):
    data, feeds, anchors, options = detector(background, **CASES[case])
    got, want = evaluate(imported(read(data)).graph, feeds), detected(**feeds, anchors=anchors, o=options)
    count = len(want["classes"])
    assert got["number"].tolist() == [count] and (count > 0) == (case != "none")
    for name, expected in want.items():
        np.testing.assert_allclose(got[name][0, :count], expected, rtol=1e-5, atol=1e-6)
        assert not got[name][0, count:].any()


def test_an_engine_of_a_detector_has_no_host_steps():
    data, feeds, anchors, options = detector(1)
    engine = pelton.build(data, level=0, threads=1)
    got, want = engine.run(feeds), detected(**feeds, anchors=anchors, o=options)
    assert not engine.meta.get("host_steps")
    np.testing.assert_allclose(got["found"][0, : len(want["found"])], want["found"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "given, match",
    [
        (dict(max_classes_per_detection=3), "only a max_classes_per_detection of 1"),
        (dict(nms_iou_threshold=0.0), "an overlap of 0.0"),
        (dict(y_scale=0.0), "scales of"),
        (dict(max_detections=0), "the limits 0"),
        (dict(num_classes=4), "4 classes of 6"),
    ],
)
def test_options_that_are_refused(given, match):
    data, *_ = detector(1, **dict(num_classes=5) | given) if "num_classes" not in given else detector(2, **given)
    with pytest.raises(ModelError, match=match):
        read(data)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("threshold", [0.2, 2.0, -np.inf])
def test_suppression(version, threshold):
    data, feeds, _ = suppression(version, threshold)
    got, want = evaluate(imported(read(data)).graph, feeds), suppressed(**feeds, threshold=threshold)
    assert got["number"] == len(want) and (len(want) > 3) == (threshold < 1)
    assert got["indices"].tolist() == want + [0] * (20 - len(want))
    if version == 5:
        np.testing.assert_array_equal(got["kept"][: len(want)], feeds["scores"][want])


def test_soft_suppression_is_refused():
    data, *_ = suppression(5, sigma=0.5)
    with pytest.raises(ModelError, match="soft_nms_sigma"):
        read(data)
