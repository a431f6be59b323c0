"""Options of sessions: config entries, providers, disabled caching, engine files as models, and traces."""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from session_fixtures import cache  # noqa: F401  (fixtures)
from test_session import RNG, W, close, network

import pelton as ort
from pelton.options import Options
from pelton.compat.session import config, providers, settings


@pytest.fixture
def x() -> np.ndarray:
    return RNG.standard_normal((2, 4)).astype(np.float32)


def options(**given: str) -> ort.SessionOptions:
    made = ort.SessionOptions()
    for name, value in given.items():
        made.add_session_config_entry(f"pelton.{name}", value)
    return made


# --- config entries

EXAMPLES = {
    "level": ("2", 2),
    "budget": ("1.5", 1.5),
    "strict": ("1", True),
    "threads": ("1", 1),
    "memory": ("1000000", 10**6),
    "max_packed": ("1.5", 1.5),
    "max_iterations": ("7", 7),
    "check": ("true", True),
    "target": ("cpu:x86_64_v3", "cpu:x86_64_v3"),
    "precision": ("fp32", "fp32"),
    "hint": ("throughput", "throughput"),
    "cache_dir": ("here", "here"),
    "cache_limit": ("500MB", 500 * 10**6),
    "save_tactics": ("tactics.json", "tactics.json"),
    "load_tactics": ("tactics.json", "tactics.json"),
    "timing_cache": ("times.json", "times.json"),
    "cc": ("clang", "clang"),
    "image": ("8x8", "8x8"),
    "shapes": ("x=1x3,y=1..8..32x5", {"x": "1x3", "y": "1..8..32x5"}),
    "optimum": ("x=8x128", {"x": (8, 128)}),
    "values": ("axes=1,2;k=5", {"axes": "1,2", "k": "5"}),
    "weights": ("w.weights", "w.weights"),
    "detections": ("score=0.3,keep=9", "score=0.3,keep=9"),
    "outputs": ("a,b", ("a", "b")),
    "accept_conversion": ("1", True),
    "labels": ("cat, dog", ("cat", "dog")),
}
INT8 = {
    "max_drop": ("0.02", 0.02),
    "precision": ("int8", "int8"),
    "calibration": ("data.npz", "data.npz"),
    "save_calibration": ("table", "table"),
    "precision_of": ("head.*=fp32,stem=int8", {"head.*": "fp32", "stem": "int8"}),
    "weight_equalization": ("1", True),
    "bias_correction": ("0", False),
}


def test_entries_reach_every_option():
    """All but functions (progress is switched on and off by the entry of that name, a metric has none), and what is of
    use for engine files alone."""
    of_files = {"cache_capacity", "kv_cache", "metadata", "profiles", "refit", "strip_weights"}
    known = {f.name for f in fields(Options)} - of_files
    assert EXAMPLES.keys() | INT8.keys() | {"progress", "metric"} == known
    assert known - {"metric"} == config.READERS.keys() - {"on_miss", "retune"}
    of_int8 = options(**{name: text for name, (text, _) in INT8.items()}).read({}).options
    assert {name: getattr(of_int8, name) for name in INT8} == {name: value for name, (_, value) in INT8.items()}
    for name, (text, value) in EXAMPLES.items():
        assert getattr(options(**{name: text}).read({}).options, name) == value
        assert getattr(ort.SessionOptions().read({f"PELTON_{name.upper()}": text}).options, name) == value
    assert options(progress="0").read({}).progress is False and options(on_miss="fast").read({}).on_miss == "fast"
    assert options(retune="2.5").read({}).retune == 2.5 and options().read({"PELTON_RETUNE": "0"}).retune == 0


@pytest.mark.parametrize(
    "name, text",
    [
        ("shapes", "1x3"),
        ("optimum", "x=8xn"),
        ("values", "=3"),
        ("strict", "yes"),
        ("on_miss", "never"),
        ("memory", "1e9"),
    ],
)
def test_entries_that_cannot_be_read(name, text):
    with pytest.raises(ort.InputError, match=rf"pelton\.{name} must be .*, got '{text}'"):
        options(**{name: text}).read({})


def test_sizes_outputs_and_values_by_entries(x):
    session = ort.InferenceSession(network().SerializeToString(), options(shapes="x=2x4", outputs="logits"))
    assert (
        session.get_inputs()[0].shape == [2, 4]
        and [o.name for o in session.get_outputs()] == ["logits"]
        and session._engine is not None
    )
    (logits,) = session.run(None, {"x": x})
    assert np.allclose(logits, x @ W, atol=1e-5)
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("axes", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    session = ort.InferenceSession(model, options(values="axes=1"))
    assert [i.name for i in session.get_inputs()] == ["x"] and np.allclose(
        session.run(None, {"x": x})[0], x.sum(1), atol=1e-5
    )


@pytest.mark.parametrize("entries_given, environment", [({"usual": "x=7x4"}, {}), ({}, {"PELTON_USUAL": "x=7x4"})])
def test_the_former_spelling_of_an_entry_works_and_warns(entries_given, environment):
    with pytest.warns(DeprecationWarning, match="write pelton.optimum or PELTON_OPTIMUM instead"):
        assert options(**entries_given).read(environment).options.optimum == {"x": (7, 4)}


def test_engines_are_tuned_for_the_optimum_of_an_entry(x):
    session = ort.InferenceSession(network().SerializeToString(), options(optimum="x=7x4"))
    assert close(session.run(None, {"x": x}), x) and [s.optimum for s in session._engine.symbols] == [7]


# --- what changes in the model


def test_initializers_in_place_of_the_models(x, caplog):
    changed = ort.SessionOptions()
    changed.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(3 * W))
    changed.add_initializer("nowhere", ort.OrtValue.ortvalue_from_numpy(W))
    model = network(2).SerializeToString()
    assert close(ort.InferenceSession(model).run(None, {"x": x}), x)
    assert close(ort.InferenceSession(model, changed).run(None, {"x": x}), 3 * x) and "ignores 'nowhere'" in caplog.text
    assert close(ort.InferenceSession(model).run(None, {"x": x}), x)
    with pytest.raises(ort.InputError, match="must be an OrtValue"):
        changed.add_initializer("w", W)


def test_external_data_from_memory(tmp_path, x):
    path = tmp_path / "net.onnx"
    onnx.save(network(2), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").unlink()
    given = ort.SessionOptions()
    given.add_external_initializers_from_files_in_memory(["weights.bin"], [data + b"more"], [len(data)])
    assert close(ort.InferenceSession(path, given).run(None, {"x": x}), x)
    given = ort.SessionOptions()
    given.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(2 * W)])
    assert close(ort.InferenceSession(path, given).run(None, {"x": x}), 2 * x)
    short = ort.SessionOptions()
    short.add_external_initializers_from_files_in_memory(["weights.bin"], [data], [8])
    with pytest.raises(ort.ModelError, match="weights.bin, a file of 8"):
        ort.InferenceSession(path, short)


def test_sizes_by_denotation(x):
    model = network()
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    fixed = ort.SessionOptions()
    fixed.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    session = ort.InferenceSession(model.SerializeToString(), fixed)
    assert session.get_inputs()[0].shape == [2, 4] and close(session.run(None, {"x": x}), x)


# --- providers


@pytest.fixture
def gpus(monkeypatch) -> list[int]:
    """A machine with two GPUs, as far as anybody asks."""
    asked = []

    def gpu(number):
        asked.append(number)
        if number > 1:
            raise ort.InputError(f"there is no GPU {number}")

    monkeypatch.setattr(providers, "_gpu_error", gpu)
    return asked


def test_providers_are_targets(gpus):
    assert (
        ort.get_available_providers() == ort.get_all_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
        and ort.get_device() == "GPU"
    )
    found = providers.choose(
        [
            ("TensorrtExecutionProvider", {}),
            ("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 1}),
            "CPUExecutionProvider",
        ]
    )
    assert (found.target, found.device, found.names) == ("cuda", 1, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    read = ort.SessionOptions()
    read.intra_op_num_threads = 2
    built = read.read({"PELTON_THREADS": "2"}, found).options
    assert (built.target, built.precision, built.threads) == ("cuda", "tf32", None)
    assert read.read({}, providers.choose(["CPUExecutionProvider", "CUDAExecutionProvider"])).options.target == "cpu"
    with pytest.raises(ort.InputError, match="no GPU 2"):
        providers.choose([("CUDAExecutionProvider", {"device_id": 2})])
    with pytest.raises(ort.InputError, match="number of a GPU"):
        providers.choose(["CUDAExecutionProvider"], [{"device_id": "first"}])


def test_providers_that_there_are_not(caplog, monkeypatch):
    monkeypatch.setattr(providers, "_gpu_error", lambda number: ort.EngineError("no driver"))
    session = ort.InferenceSession(
        network(2).SerializeToString(), providers=["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    )
    assert session.get_providers() == ["CPUExecutionProvider"] and session.get_provider_options() == {
        "CPUExecutionProvider": {}
    }
    assert "no TensorrtExecutionProvider" in caplog.text and "no driver" in caplog.text
    with pytest.raises(RuntimeError, match="Unknown Provider Type: InvalidProvider"):
        session.set_providers(["InvalidProvider"])
    session.set_providers([("CPUExecutionProvider", {"use_arena": 1})])
    assert session.get_provider_options() == {"CPUExecutionProvider": {"use_arena": "1"}}


@pytest.mark.parametrize(
    "given",
    [(3,), ([3],), ("CPUExecutionProvider",), (["a"], 3), (["a"], ["b"]), (["a", "b"], [{}]), ([("a", {})], [{}])],
)
def test_providers_that_cannot_be_read(given):
    with pytest.raises(ValueError, match="provider"):
        providers.choose(*given)


def test_session_options_may_name_providers(x):
    named = ort.SessionOptions()
    assert not named.has_providers()
    named.add_provider("CPUExecutionProvider", {"a": "b"})
    session = ort.InferenceSession(network(2).SerializeToString(), named)
    assert named.has_providers() and session.get_provider_options() == {"CPUExecutionProvider": {"a": "b"}}


# --- traces


def test_a_trace_of_what_a_session_does(tmp_path, x):
    traced = ort.SessionOptions()
    traced.enable_profiling, traced.profile_file_prefix = True, str(tmp_path / "trace")
    session = ort.InferenceSession(network(2).SerializeToString(), traced)
    for _ in range(2):
        assert close(session.run(None, {"x": x}), x)
    path = session.end_profiling()
    assert (
        session.end_profiling() == ""
        and Path(path).parent == tmp_path
        and re.search(r"trace_[\d-]{10}_[\d-]{8}_\d{3}\.json$", path)
    )
    events = json.loads(Path(path).read_text())
    assert all(
        {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"} == e.keys() and e["ph"] == "X" and e["dur"] >= 0
        for e in events
    )
    runs = [e for e in events if e["name"] == "model_run"]
    assert events[0]["name"] == "session_initialization" and len(runs) == 2
    steps = [s.name for s in session._engine.steps]
    for run in runs:
        inside = [
            e
            for e in events
            if e["cat"] == "Node" and run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"]
        ]
        assert [e["name"] for e in inside] == [f"{name}_kernel_time" for name in steps]
        assert all(e["args"]["provider"] == "CPUExecutionProvider" and e["args"]["tactic"] for e in inside)
    lines = Path(path).read_text().splitlines()  # as ONNX Runtime's: one event a line
    assert lines[0] == "[" and lines[-1] == "]" and len(lines) == len(events) + 2


def test_traces_start_in_order_and_may_be_off(x):
    traced = ort.SessionOptions()
    traced.enable_profiling = True
    starts = [
        ort.InferenceSession(network(2).SerializeToString(), traced).get_profiling_start_time_ns() for _ in range(3)
    ]
    plain = ort.InferenceSession(network(2).SerializeToString())
    assert (
        0 < starts[0] <= starts[1] <= starts[2]
        and plain.get_profiling_start_time_ns() == 0
        and plain.end_profiling() == ""
    )
    traced.profile_file_prefix = "/nowhere/trace"
    with pytest.raises(RuntimeError, match="cannot be written.*profile_file_prefix"):
        ort.InferenceSession(network(2).SerializeToString(), traced).end_profiling()


# --- the log


def test_a_function_that_hears_the_log():
    heard = []
    settings.set_default_logger_callback(lambda *record: heard.append(record), severity=0)
    try:
        ort.InferenceSession(network(2).SerializeToString())
        assert heard and all([type(part) for part in record] == [int, str, str, str, str] for record in heard)
        assert {severity for severity, *_ in heard} >= {0, 2}
        with pytest.raises(RuntimeError):
            settings.set_default_logger_callback("no function")
        for severity in (-1, 5):
            with pytest.raises(RuntimeError):
                settings.set_default_logger_callback(print, severity)
    finally:
        settings.set_default_logger_callback(None)
    count = len(heard)
    ort.InferenceSession(network(3).SerializeToString())
    assert len(heard) == count and logging.getLogger("pelton").propagate


def test_a_severity_is_that_of_one_session(x, caplog, monkeypatch):
    """Of its making, its builds and its runs, in all threads, whatever comes later."""
    monkeypatch.setattr(providers, "_gpu_error", lambda number: ort.EngineError("no driver"))
    quiet, loud, wanted = ort.SessionOptions(), ort.SessionOptions(), ["CUDAExecutionProvider"]
    quiet.log_severity_level, loud.log_severity_level = 3, 0

    def made(model, given=None):
        caplog.clear()
        return ort.InferenceSession(model.SerializeToString(), given, providers=wanted), caplog.text

    silent, said = made(network(), quiet)
    assert not said and logging.getLogger("pelton").level == logging.NOTSET
    _, said = made(network(3))
    assert "there is no CUDAExecutionProvider" in said and "DEBUG" not in said
    assert "session of the given model on" in made(network(4), loud)[1]
    caplog.clear()
    ended = threading.Event()
    silent.run_async(None, {"x": x}, lambda *_: ended.set(), None)  # it builds the engine
    assert ended.wait(60)
    silent.run(None, {"x": np.repeat(x, 2, 0)})
    silent.set_providers(wanted)
    silent.set_tuning_results([{}])
    assert not caplog.text


def test_runs_that_are_not_to_be(x):
    session, ended = ort.InferenceSession(network(2).SerializeToString()), ort.RunOptions()
    ended.terminate = True
    with pytest.raises(RuntimeError, match="terminate flag"):
        session.run(None, {"x": x}, ended)
    with pytest.raises(ort.InputError, match="RunOptions"):
        session.run(None, {"x": x}, 3)
    with pytest.raises(ort.InputError, match=r"write \['logits'\]"):
        session.run("logits", {"x": x})
