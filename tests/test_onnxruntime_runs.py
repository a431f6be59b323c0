"""Cases of docs/onnxruntime.md: sessions, their inputs and outputs."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime_models import (  # noqa: F401  (the fixture)
    X,
    both,
    cache,
    model,
    mul,
    node,
    product,
    sequence,
    squares,
    tensor,
    texts,
)

import pelton as ort

# --- onnxruntime_test_python.py


def test_tvm_imported():
    assert "TvmExecutionProvider" not in ort.get_available_providers()


def test_get_version_string():
    assert ort.get_version_string() == ort.__version__


def test_get_build_info():
    assert "Build Info" in ort.get_build_info()


def with_external_weights(folder: Path, location: str) -> Path:
    """Writes the model with its constant in an external file, a path relative to the model's."""
    path = folder / "mul.onnx"
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    made = onnx.load_model_from_string(mul())
    onnx.save_model(made, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def check_nothing_is_written(model, caplog, folder: Path, optimized: str = "optimized.onnx", **entries: str) -> None:
    """A session runs, with a warning in place of the optimized model."""
    options, before = ort.SessionOptions(), sorted(folder.rglob("*"))
    options.optimized_model_filepath = optimized
    for name, value in entries.items():
        options.add_session_config_entry(f"session.{name}", value)
    assert squares(ort.InferenceSession(model, options))
    assert "nothing is written" in caplog.text and sorted(folder.rglob("*")) == before


def test_model_serialization(tmp_path, caplog):
    check_nothing_is_written(mul(), caplog, tmp_path, str(tmp_path / "optimized.onnx"))


def test_model_serialization_with_external_initializers(tmp_path, caplog):
    entry = {"optimized_model_external_initializers_file_name": "weights.bin"}
    check_nothing_is_written(mul(), caplog, tmp_path, str(tmp_path / "optimized.onnx"), **entry)


def test_model_serialization_with_external_initializers_to_directory(tmp_path, caplog):
    (tmp_path / "to").mkdir()
    entry = {"optimized_model_external_initializers_file_name": "weights.bin"}
    check_nothing_is_written(mul(), caplog, tmp_path, str(tmp_path / "to" / "optimized.onnx"), **entry)


def test_model_serialization_with_original_external_initializers_to_directory(tmp_path, caplog):
    (tmp_path / "to").mkdir()
    path = with_external_weights(tmp_path, "weights/mul.bin")
    check_nothing_is_written(path, caplog, tmp_path, str(tmp_path / "to" / "optimized.onnx"))


def test_model_serialization_with_original_external_initializers_to_current_directory(tmp_path, caplog, monkeypatch):
    path = with_external_weights(tmp_path, "mul.bin")
    monkeypatch.chdir(tmp_path)
    check_nothing_is_written(path.name, caplog, tmp_path)


def test_get_providers():
    assert (
        "CPUExecutionProvider" in ort.get_available_providers()
        and ort.get_all_providers()[-1] == "CPUExecutionProvider"
    )
    assert "CPUExecutionProvider" in ort.InferenceSession(mul(), providers=["CPUExecutionProvider"]).get_providers()


def test_enabling_and_disabling_telemetry(tmp_path):
    """Nothing is sent in either state (a network would end the process)."""
    program = (
        "import no_network; no_network.forbid()\nimport numpy as np, pelton as ort\n"
        "for switch in (ort.enable_telemetry_events, ort.disable_telemetry_events):\n    switch()\n"
        "    print(ort.InferenceSession('mul.onnx').run([], {'X': np.ones((3, 2), np.float32)})[0].sum())\n"
    )
    (tmp_path / "mul.onnx").write_bytes(mul())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0 and done.stdout.split() == [str(X.sum())] * 2, done.stderr


def test_set_default_logger_callback():
    heard = []
    ort.set_default_logger_callback(lambda *record: heard.append(record), severity=0)
    try:
        assert (
            squares(ort.InferenceSession(mul()))
            and heard
            and all([*map(type, record)] == [int, str, str, str, str] for record in heard)
        )
    finally:
        ort.set_default_logger_callback(None)
        ort.set_default_logger_severity(2)
    for wrong in ((print, 5), (print, -1), ("not callable", 2)):
        with pytest.raises(RuntimeError):
            ort.set_default_logger_callback(*wrong)


def test_deserialization_from_path_object(tmp_path):
    (tmp_path / "mul.onnx").write_bytes(mul())
    assert squares(ort.InferenceSession(tmp_path / "mul.onnx"))


def test_invalid_set_providers():
    with pytest.raises(RuntimeError, match="Unknown Provider Type: InvalidProvider"):
        ort.InferenceSession(mul(), providers=["CPUExecutionProvider"]).set_providers(["InvalidProvider"])


def test_session_providers():
    assert ort.InferenceSession(mul(), providers=["CPUExecutionProvider"]).get_providers() == ["CPUExecutionProvider"]


def test_get_and_set_tuning_results(caplog):
    session, theirs = ort.InferenceSession(mul()), [{"ep": "CUDAExecutionProvider", "results": {}, "validators": {}}]
    assert session.get_tuning_results() == []
    session.set_tuning_results(theirs)
    assert "have no effect" in caplog.text
    with pytest.raises(RuntimeError, match="pelton.timing_cache"):
        session.set_tuning_results(theirs, error_on_invalid=True)


def test_run_model_with_optional_sequence_input():
    kind = helper.make_optional_type_proto(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [5])))
    session = ort.InferenceSession(
        model(
            [node("Identity", ["x"], ["y"])], [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)]
        )
    )
    x = [np.arange(5, dtype=np.float32)]
    assert session.get_inputs()[0].type == "optional(seq(tensor(float)))" and np.array_equal(
        session.run(["y"], {"x": x})[0], x
    )


def test_run_model():
    session = ort.InferenceSession(mul())
    (given,), (result,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, result.name, result.shape) == ("X", [3, 2], "Y", [3, 2])
    assert (
        len(session.get_input_memory_infos())
        == len(session.get_output_memory_infos())
        == len(session.get_input_epdevices())
        == 1
    )
    assert np.allclose(session.run(["Y"], {"X": X})[0], X * X)


def test_run_async():
    options, over, got = ort.SessionOptions(), threading.Event(), []
    options.intra_op_num_threads = 2
    ort.InferenceSession(mul(), options).run_async(
        ["Y"], {"X": X}, lambda *found: (got.extend(found), over.set()), 123456
    )
    assert over.wait(60) and np.allclose(got[0][0], X * X) and got[1:] == [123456, ""]


def test_run_model_from_bytes():
    assert squares(ort.InferenceSession(mul()))


def test_run_model2():
    session = ort.InferenceSession(product())
    assert session.get_outputs()[0].shape == [3, 1] and np.allclose(session.run(["Y"], {"X": X})[0], [[5], [11], [17]])


def test_run_model2_contiguous():
    x = X[:, [1, 0]].copy()[:, [1, 0]]
    session = ort.InferenceSession(product())
    for given in (x, np.asfortranarray(X), np.ascontiguousarray(x)):
        assert np.allclose(session.run(["Y"], {"X": given})[0], [[5], [11], [17]])


def test_run_model_multiple_threads():
    session, right = ort.InferenceSession(mul()), []

    def work(name: str) -> None:
        options = ort.RunOptions()
        options.logid = name
        right.append(all(squares(session, options) for _ in range(20)))

    threads = [threading.Thread(target=work, args=(f"thread{i}",)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert right == [True] * 4


def test_list_as_input():
    assert np.allclose(ort.InferenceSession(mul()).run([], {"X": X.tolist()})[0], X * X)


def test_string_list_as_input():
    x = [["this", "is"], ["identity", "test"]]
    assert ort.InferenceSession(texts()).run([], {"input:0": x})[0].tolist() == x


def test_run_device():
    assert ort.get_device() in ("CPU", "GPU")


def test_run_model_symbolic_input():
    session = ort.InferenceSession(product("None"))
    assert session.get_inputs()[0].shape == ["None", 2] and session.get_outputs()[0].shape == ["None", 1]
    assert np.allclose(session.run(["Y"], {"X": X})[0], [[5], [11], [17]])


def test_boolean_inputs():
    session = ort.InferenceSession(both())
    assert [(a.name, a.shape, a.type) for a in (*session.get_inputs(), *session.get_outputs())] == [
        (name, [2, 2], "tensor(bool)") for name in ("input1:0", "input:0", "output:0")
    ]
    a, b = np.array([[True, True], [False, False]]), np.array([[True, False], [True, False]])
    assert np.array_equal(session.run(["output:0"], {"input1:0": a, "input:0": b})[0], a & b)


def test_string_input1():
    session, x = ort.InferenceSession(texts()), np.array([["this", "is"], ["identity", "test"]])
    assert session.get_inputs()[0].type == session.get_outputs()[0].type == "tensor(string)"
    assert np.array_equal(session.run(["output:0"], {"input:0": x})[0], x)


def test_string_input2():
    x = np.array([["Olá", "你好"], ["여보세요", "hello"]])
    assert np.array_equal(ort.InferenceSession(texts()).run(None, {"input:0": x})[0], x)


def test_input_bytes():
    x = np.array([[b"this", b"is"], [b"identity", b"test"]])
    assert np.array_equal(ort.InferenceSession(texts()).run(None, {"input:0": x})[0].astype("|S8"), x)


def test_input_object():
    x = np.array([["this", "is"], ["identity", "test"]], object)
    assert np.array_equal(ort.InferenceSession(texts()).run(None, {"input:0": x})[0], x)


def test_input_void():
    x = np.array([b"must", b"have", b"same", b"size"], np.void).reshape(2, 2)
    assert ort.InferenceSession(texts()).run(None, {"input:0": x})[0].tolist() == [["must", "have"], ["same", "size"]]


def test_raise_wrong_num_inputs():
    with pytest.raises(
        ValueError, match=re.escape("Required inputs (['input1:0']) are missing from input feed (['input:0'])")
    ):
        ort.InferenceSession(both()).run([], {"input:0": np.ones((2, 2), bool)})


def test_model_meta():
    meta = ort.InferenceSession(mul(producer_name="onnx-caffe2")).get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.graph_description) == (
        "onnx-caffe2",
        "net",
        "",
        "",
        "",
    )


def test_sequence_length():
    session = ort.InferenceSession(
        model([node("SequenceLength", ["X"], ["Y"])], [sequence("X", 1)], [tensor("Y", TensorProto.INT64, [])])
    )
    assert [(a.name, a.type) for a in (*session.get_inputs(), *session.get_outputs())] == [
        ("X", "seq(tensor(float))"),
        ("Y", "tensor(int64)"),
    ]
    for x in ([X, X], [X], []):
        assert session.run(["Y"], {"X": x})[0] == len(x)
    for wrong in (X, (X,), [X.astype(np.float64)]):
        with pytest.raises(RuntimeError):
            session.run(["Y"], {"X": wrong})


def test_sequence_construct():
    names, x = ("tensor1", "tensor2"), np.arange(6).reshape(2, 3)
    session = ort.InferenceSession(
        model(
            [node("SequenceConstruct", names, ["output_sequence"])],
            [tensor(n, TensorProto.INT64, [2, 3]) for n in names],
            [sequence("output_sequence", TensorProto.INT64)],
        )
    )
    (found,) = session.run(["output_sequence"], {"tensor1": x, "tensor2": x + 1})
    assert (
        session.get_outputs()[0].type == "seq(tensor(int64))"
        and isinstance(found, list)
        and np.array_equal(found, [x, x + 1])
    )


def test_sequence_insert():
    session = ort.InferenceSession(
        model(
            [node("SequenceInsert", ["input_seq", "tensor"], ["output_sequence"])],
            [sequence("input_seq", TensorProto.INT64), tensor("tensor", TensorProto.INT64, [2, 3])],
            [sequence("output_sequence", TensorProto.INT64)],
        )
    )
    x = np.arange(6).reshape(2, 3)
    assert np.array_equal(session.run(["output_sequence"], {"tensor": x, "input_seq": []})[0], [x])
    assert np.array_equal(session.run(["output_sequence"], {"tensor": x, "input_seq": [x + 1]})[0], [x + 1, x])


def test_tree_ensemble_logistic():
    for modes, values, true, false, weights, base, wanted in (
        (["BRANCH_LT", "LEAF", "LEAF"], [0.5, 0.0, 0.0], [1, 0, 0], [2, 0, 0], [0.3, -0.3], -0.405, -0.105),
        (["LEAF"], [0.0], [0], [0], [0.0], -0.405, -0.405),
        (["LEAF"], [0.0], [0], [0], [-0.405], 0.0, -0.405),
    ):
        n, leaves = len(modes), [i for i, mode in enumerate(modes) if mode == "LEAF"]
        tree = node(
            "TreeEnsembleClassifier",
            ["X"],
            ["label", "probs"],
            domain="ai.onnx.ml",
            base_values=[base],
            nodes_treeids=[0] * n,
            nodes_nodeids=[*range(n)],
            nodes_featureids=[0] * n,
            nodes_values=values,
            nodes_modes=modes,
            nodes_truenodeids=true,
            nodes_falsenodeids=false,
            nodes_missing_value_tracks_true=[0] * n,
            nodes_hitrates=[1.0] * n,
            class_treeids=[0] * len(weights),
            class_nodeids=leaves,
            class_ids=[0] * len(weights),
            class_weights=weights,
            classlabels_int64s=[0, 1],
            post_transform="LOGISTIC",
        )
        session = ort.InferenceSession(
            model(
                [tree],
                [tensor("X", 1, [None, 3])],
                [tensor("label", TensorProto.INT64, [None]), tensor("probs", 1, [None, 2])],
                opset=15,
            )
        )
        assert session.run(None, {"X": np.array([[0.1, 0, 0]], np.float32)})[1][0][1] == pytest.approx(
            1 / (1 + math.exp(-wanted)), abs=1e-5
        )
