"""Configurations: what is read of config.pbtxt, what is named as ignored, and what is refused."""

import threading

import numpy as np
import pytest
from serve_rest import half_plus_two, save, serving

import pelton
from pelton.errors import InputError
from pelton.serve import settings
from pelton.serve.requests import InferRequest

FULL = """
name: "half" max_batch_size: 8
dynamic_batching {
  preferred_batch_size: [4, 8] max_queue_delay_microseconds: 1000 priority_levels: 3 default_priority_level: 2
  default_queue_policy { default_timeout_microseconds: 5000 allow_timeout_override: true max_queue_size: 7 }
}
instance_group [{ count: 2 kind: KIND_CPU profile: "fast" }]
optimization { graph { level: 1 } }
parameters { key: "threads" value { string_value: "1" } }
parameters { key: "color" value { string_value: "red" } }
input [{ name: "x" data_type: TYPE_FP32 dims: [2] optional: true }]
"""


def mixed():
    """Rows that change each other: each is divided by the sum of all."""
    net = pelton.Network("mixed")
    x = net.input("x", "f32[batch=1..4..8, 2]")
    net.output(net.div(x, net.reduce_sum(net.mul(x, x), axes=(0,), keepdims=True)), "y")
    return net


def test_a_configuration_is_read_and_the_rest_named(tmp_path):
    save(tmp_path, "half", half_plus_two(), config=FULL)
    read = settings.read(tmp_path / "half", "half")
    assert read.ignored == ("input.optional", "instance_group.profile", "optimization", "parameters['color']")
    with serving(tmp_path, jobs=None, threads=None) as client:
        model = client.server.model("half")
        queue = model.queue
        assert (queue.jobs, queue.bound) == (2, 7)
        assert queue.batching == pelton.Batching(8, 0.001, None, (4, 8))
        assert model._order({}) == (2, 0.005) and model._order({"priority": 9, "timeout": 100}) == (3, 0.0001)
        config = client.get("/v2/models/half/config").json()
        assert config["dynamic_batching"]["preferred_batch_size"] == [4, 8] and config["max_batch_size"] == 8


def test_batched_requests_get_their_own_rows(tmp_path):
    save(tmp_path, "half", half_plus_two(), config="dynamic_batching { max_queue_delay_microseconds: 20000 }")
    wrong = []
    with serving(tmp_path) as client:

        def ask(seed):
            rng = np.random.default_rng(seed)
            for _ in range(20):
                x = rng.standard_normal((rng.integers(1, 4), 2)).astype(np.float32)
                running = client.server.begin(InferRequest("half", "", {"x": x}), 0)
                y = running.finish(lambda version, answers: answers[0][1])
                if not np.allclose(y, x / 2 + 2, atol=1e-5):
                    wrong.append(x)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = client.server.model("half").queue.stats()
        (report,) = client.server.statistics("half")
        config = client.get("/v2/models/half/config").json()
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 20000
    assert (report["execution_count"], report["inference_count"]) == (stats["executions"], stats["rows"])
    batches = {part["batch_size"]: part["compute_infer"] for part in report["batch_stats"]}
    assert {rows: part["count"] for rows, part in batches.items()} == stats["histogram"]
    assert all(part["ns"] > 0 for part in batches.values())
    assert not wrong and stats["runs"] == 120 and stats["executions"] < 120


def test_rows_that_change_each_other_are_not_batched(tmp_path, caplog):
    save(tmp_path / "asked", "mixed", mixed(), config="dynamic_batching {}")
    with serving(tmp_path / "asked") as client:
        assert "rows of a batch change each other's output 'y'" in client.server.reasons["mixed"]
    save(tmp_path / "silent", "mixed", mixed())
    with serving(tmp_path / "silent", batch=4) as client:
        model = client.server.model("mixed")
        assert model.queue is None or model.queue.batching is None
    assert "it is not batched" in caplog.text


@pytest.mark.parametrize(
    "text, message",
    [
        ("max_batch_size: many", "is no model configuration"),
        ('name: "other"', "configures 'other', but its folder is 'half'"),
        ("max_batch_size: -1", "max_batch_size is 0 or more, got -1"),
        ('output [{ name: "y" label_filename: "../names.txt" }]', "label_filename is a file beside it"),
        ('output [{ name: "y" label_filename: "names.txt" }]', "cannot be read"),
        ('parameters { key: "labels" value { string_value: "stable" } }', "parameter labels is like"),
        ('input [{ name: "z" data_type: TYPE_FP32 dims: [2] }]', "has input 'z', its engine 'x'"),
        ('input [{ name: "x" data_type: TYPE_INT8 dims: [2] }]', "is TYPE_INT8 in its configuration, TYPE_FP32 in"),
        ('input [{ name: "x" data_type: TYPE_FP32 dims: [3] }]', "has dims [3] in its configuration, [2] in"),
        ("version_policy { specific { versions: [7] } }", "has no version that its version_policy selects"),
        ('default_model_filename: "../1/model.pelton"', "which is not in"),
        (
            'sequence_batching { state [{ input_name: "s" output_name: "y" }] }',
            "names 's', which its engine does not have",
        ),
    ],
)
def test_refusals(tmp_path, text, message):
    save(tmp_path, "half", half_plus_two(), config=text)
    with serving(tmp_path) as client:
        assert message in client.server.reasons["half"] and not client.server.ready()


def test_fixed_batches_have_no_larger_one(tmp_path):
    net = pelton.Network("fixed")
    net.output(net.relu(net.input("x", "f32[2, 3]")), "y")
    save(tmp_path, "fixed", net, config="max_batch_size: 4")
    with serving(tmp_path) as client:
        assert "takes batches of one fixed size" in client.server.reasons["fixed"]
    with pytest.raises(InputError, match="is no model configuration"):
        (tmp_path / "fixed" / "config.pbtxt").write_bytes(b"\xff\xfe")
        settings.read(tmp_path / "fixed", "fixed")
