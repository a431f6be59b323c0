"""INT8 builds' reports on their deciding data: its size, a metric's values, and useless metrics."""

import numpy as np
import pytest
from models import small_cnn
from test_int8 import build

import pelton
from pelton.cli import main
from pelton.cli.build import described


@pytest.fixture(scope="module")
def classifier():
    """A network that gives samples different answers, and samples."""
    rng = np.random.default_rng(5)
    net = pelton.Network("classifier")
    x = net.input("x", "f32[n, 16]")
    hidden = net.relu(net.matmul(x, net.constant(rng.standard_normal((16, 64)).astype(np.float32))))
    net.output(net.matmul(hidden, net.constant(rng.standard_normal((64, 5)).astype(np.float32))), "scores")
    return net, {"x": rng.standard_normal((60, 16)).astype(np.float32)}


@pytest.mark.parametrize("what, warned", [("the model's own", False), ("alike", True), ("never right", True)])
def test_a_metric_that_a_constant_answer_satisfies_is_warned_of(classifier, caplog, what, warned):
    """The metric's values are in the record either way: of FP32, and of the engine."""
    source, data = classifier
    own = pelton.build(source, level=0).run(data)["scores"].argmax(1)
    assert len(set(own.tolist())) == 5

    def metric(engine: pelton.Engine) -> float:
        found = engine.run(data)["scores"].argmax(1)
        rates = {"the model's own": found == own, "alike": found == found[0], "never right": found == -1}
        return float(np.mean(rates[what]))

    engine = build(source, data, metric=metric, max_drop=0.3)
    accuracy = engine.meta["int8"]["accuracy"]
    assert accuracy["metric_fp32"] == round(metric(pelton.build(source, level=0)), 6)
    assert accuracy["metric"] == round(metric(engine), 6)
    assert ("cannot measure the accuracy of INT8" in caplog.text) == warned
    said = dict(described(engine))["int8"]
    assert f"metric {accuracy['metric_fp32']:.6g} in fp32, {accuracy['metric']:.6g} in int8" in said


def test_a_metric_that_cannot_judge_a_constant_answer_is_not_warned_of(classifier, caplog):
    source, data = classifier
    answers = []

    def metric(engine: pelton.Engine) -> float:
        answers.append(len(set(engine.run(data)["scores"].argmax(1).tolist())))
        return 1 / (answers[-1] - 1)

    engine = build(source, data, metric=metric)
    assert 1 in answers and "cannot measure" not in caplog.text
    assert "metric" in engine.meta["int8"]["accuracy"]
    assert "metric" not in build(source, data).meta["int8"]["accuracy"]


def test_what_was_calibrated_with_is_always_said(classifier, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    source, data = classifier
    assert "calibrated with 60 samples" in dict(described(build(source, data)))["int8"]
    (tmp_path / "pictures" / "more").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (7, 12, 12, 3), np.uint8)
    for i, picture in enumerate(pixels):
        pillow.fromarray(picture).save(tmp_path / "pictures" / ("more" if i % 2 else "") / f"{i}.png")
    (tmp_path / "pictures" / "labels.txt").write_text("no picture")
    (tmp_path / "m.onnx").write_bytes(small_cnn(size=12).SerializeToString())
    for precision in ("int8", "best"):
        given = ["--precision", precision, "--calibration", str(tmp_path / "pictures"), "--image", "12x12 rgb"]
        target = str(tmp_path / "m.pelton")
        assert main(["build", str(tmp_path / "m.onnx"), "-o", target, "--level", "0", *given, "--max-drop", "9"]) == 0
        assert "calibrated with 7 pictures" in capsys.readouterr().out
        assert main(["inspect", target]) == 0 and "calibrated with 7 pictures" in capsys.readouterr().out
