"""Metrics of the caller's in INT8 builds: reported before and after, and warned of where they tell nothing."""

import numpy as np
import pytest
from test_int8 import build

import pelton
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
    assert ("cannot tell whether INT8 is accurate" in caplog.text) == warned
    said = dict(described(engine))["int8"]
    assert f"metric {accuracy['metric_fp32']:.6g} in fp32, {accuracy['metric']:.6g} in int8" in said


def test_a_metric_that_cannot_judge_a_constant_answer_is_not_warned_of(classifier, caplog):
    source, data = classifier
    answers = []

    def metric(engine: pelton.Engine) -> float:
        answers.append(len(set(engine.run(data)["scores"].argmax(1).tolist())))
        return 1 / (answers[-1] - 1)

    engine = build(source, data, metric=metric)
    assert 1 in answers and "cannot tell whether" not in caplog.text
    assert "metric" in engine.meta["int8"]["accuracy"]
    assert "metric" not in build(source, data).meta["int8"]["accuracy"]
