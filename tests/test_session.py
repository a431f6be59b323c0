"""Sessions: ONNX Runtime's interface over engines that are built at a model's first use and then cached on disk."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from session_fixtures import builds, cache  # noqa: F401  (fixtures)

import pelton as ort
from pelton.system.cache import Cache
from pelton.engine.constants import DeferredConstants
from pelton.compat.session.engine_cache import EngineCache

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 3)).astype(np.float32)


def network(batch: int | str | None = "batch", **more) -> onnx.ModelProto:
    """probability = softmax(x · w), and the product itself, of which the model does not state the shape."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["probability"], axis=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [
            helper.make_tensor_value_info("probability", TensorProto.FLOAT, [batch, 3]),
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(W, "w")],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests", **more
    )
    made.metadata_props.add(key="names", value="a,b,c")
    return made


def expected(x) -> list[np.ndarray]:
    logits = np.asarray(x, np.float64) @ W
    e = np.exp(logits - logits.max(1, keepdims=True))
    return [e / e.sum(1, keepdims=True), logits]


def close(found, x) -> bool:
    return all(a.dtype == np.float32 and np.allclose(a, b, atol=1e-5) for a, b in zip(found, expected(x), strict=True))


def test_a_script_written_for_onnxruntime(tmp_path):
    """Nothing but the import line is ours."""
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(str(path), sess_options=options, providers=["CPUExecutionProvider"])
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [("x", "tensor(float)", ["batch", 4])]
    assert [(o.name, o.type, o.shape) for o in session.get_outputs()] == [
        ("probability", "tensor(float)", ["batch", 3]),
        ("logits", "tensor(float)", ["batch", 3]),
    ]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.custom_metadata_map) == ("tests", "net", {"names": "a,b,c"})
    assert (
        session.get_providers() == ort.get_available_providers() == ["CPUExecutionProvider"]
        and ort.get_device() == "CPU"
    )
    assert session.get_overridable_initializers() == []
    x = RNG.standard_normal((5, 4)).astype(np.float32)
    assert close(session.run(None, {"x": x}), x) and close(session.run([], {"x": x}, ort.RunOptions()), x)
    (logits,) = session.run(["logits"], {session.get_inputs()[0].name: x})
    assert close([session.run(["probability"], {"x": x})[0], logits], x)
    assert session._engine.meta["threads"] == 1


def test_every_public_name_is_there():
    for name in (
        *ort.__all__,
        "GraphOptimizationLevel",
        "ExecutionMode",
        "NodeArg",
        "ModelMetadata",
        "set_default_logger_severity",
        "disable_telemetry_events",
        "get_all_providers",
        "set_seed",
    ):
        assert hasattr(ort, name)


def test_open_sizes_are_tuned_for_what_comes_first(builds):
    model = network().SerializeToString()
    session = ort.InferenceSession(model)
    assert builds == []
    for rows in (6, 1, 9):
        x = RNG.standard_normal((rows, 4)).astype(np.float32)
        assert close(session.run(None, {"x": x}), x)
    assert builds == [(None, {"x": (6, 4)})]
    assert [(s.name, s.minimum, s.optimum) for s in session._engine.symbols] == [("batch", 1, 6)]
    for _ in range(2):
        # smaller than the engine for all sizes goes
        nothing = session.run(None, {"x": np.zeros((0, 4), np.float32)})
        assert [a.shape for a in nothing] == [(0, 3), (0, 3)] and builds[1:] == [(None, {"x": (0, 4)})]
    again = ort.InferenceSession(model)  # found on disk, with open sizes
    assert close(again.run(None, {"x": x}), x) and len(builds) == 2


def test_known_sizes_are_built_at_once(builds):
    ort.InferenceSession(network(2).SerializeToString())
    assert builds == [(None, None)]
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = ort.InferenceSession(network().SerializeToString(), options)
    assert len(builds) == 2 and session.get_inputs()[0].shape == [2, 4]
    with pytest.raises(ort.InputError, match="has 3 instead of 2"):
        session.run(None, {"x": np.zeros((3, 4), np.float32)})


def test_lists_become_arrays_and_arrays_have_to_fit():
    session = ort.InferenceSession(network().SerializeToString())
    x = [[1, 2, 3, 4], [0.5, 0, 0, 1]]
    assert close(session.run(None, {"x": x}), x)
    value = ort.OrtValue.ortvalue_from_numpy(np.asarray(x, np.float32))
    assert close(session.run(None, {"x": value}), x)
    (probability,) = session.run_with_ort_values(["probability"], {"x": value})
    assert (
        probability.data_type() == "tensor(float)" and probability.shape() == [2, 3] and probability.element_type() == 1
    )
    for wrong, says in (
        ({"x": np.ones((2, 4))}, "got float64"),
        ({"x": np.ones((2, 3), np.float32)}, "has 3 instead of 4"),
        ({"x": np.ones(4, np.float32)}, "1 dimensions instead of 2"),
        ({}, r"Required inputs \(\['x'\]\) are missing"),
        ({"x": x, "k": x}, "Invalid input name: k"),
        ({"x": [["a"] * 4]}, "numbers that make an array"),
        ([x], "as a dict"),
    ):
        for kind in (ValueError, RuntimeError, ort.InputError):
            with pytest.raises(kind, match=says):
                session.run(None, wrong)
    with pytest.raises(ValueError, match="Invalid output name: q"):
        session.run(["q"], {"x": x})


def test_what_is_wrong_is_said_when_a_session_is_made(tmp_path):
    with pytest.raises(RuntimeError, match="No such file"):
        ort.InferenceSession(str(tmp_path / "none.onnx"))
    with pytest.raises(ort.ModelError, match="is no valid ONNX model"):
        ort.InferenceSession(b"\x08abc")
    with pytest.raises(TypeError, match="path of a model"):
        ort.InferenceSession(3)
    broken = network()
    broken.graph.node[0].op_type = "Nonsense"
    with pytest.raises(ort.ModelError, match="no operator Nonsense"):
        ort.InferenceSession(broken.SerializeToString())


def test_values_in_the_model_are_no_inputs():
    model = network(2)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    session = ort.InferenceSession(model.SerializeToString())
    assert [a.name for a in session.get_inputs()] == ["x"] and [
        a.name for a in session.get_overridable_initializers()
    ] == ["w"]
    with pytest.raises(ort.InputError, match="remove its initializer"):
        session.run(None, {"x": np.ones((2, 4), np.float32), "w": W})


def test_bindings():
    session = ort.InferenceSession(network().SerializeToString())
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("logits")
    binding.bind_output("probability")
    session.run_with_iobinding(binding)
    logits, probability = binding.copy_outputs_to_cpu()
    assert close([probability, logits], x) and [v.shape() for v in binding.get_outputs()] == [[2, 3], [2, 3]]
    own, value = np.zeros((2, 3), np.float32), ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("probability", "cpu", 0, np.float32, own.shape, own.ctypes.data)
    binding.bind_ortvalue_output("logits", value)
    session.run_with_iobinding(binding)
    assert close([own, value.numpy()], x)
    x[:] = 1
    session.run_with_iobinding(binding)
    assert close([own, value.numpy()], x)
    for wrong in (
        lambda: binding.bind_cpu_input("q", x),
        lambda: binding.bind_output("q"),
        lambda: binding.bind_output("logits", "cuda"),
        lambda: binding.bind_input("x", "cpu", 0, np.float32, x.shape, 0),
        lambda: binding.bind_input("x", "cpu", 0, "thing", x.shape, 1),
        lambda: ort.InferenceSession(network(2).SerializeToString()).run_with_iobinding(binding),
    ):
        with pytest.raises(ort.InputError):
            wrong()
    value.update_inplace(np.ones((2, 3), np.float32))
    with pytest.raises(ort.InputError, match="needs arrays of that type"):
        value.update_inplace(np.ones((2, 3)))


def test_asynchronous_runs():
    import threading

    session, done, got = ort.InferenceSession(network().SerializeToString()), threading.Event(), []
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    session.run_async(
        None, {"x": x}, lambda results, data, error: (got.append((results, data, error)), done.set()), "mine"
    )
    assert done.wait(60) and close(got[0][0], x) and got[0][1:] == ("mine", "")


class Strange:
    def __array__(self, *_, **__):
        raise OSError("no array today")


def test_whatever_goes_wrong_in_a_thread_is_told():
    import threading

    session, done, got = ort.InferenceSession(network().SerializeToString()), threading.Event(), []
    session.run_async(
        None, {"x": Strange()}, lambda results, data, error: (got.append((results, error)), done.set()), None
    )
    assert done.wait(60) and got[0][0] == [] and "no array today" in got[0][1]


def test_a_model_that_changes_before_it_is_built(tmp_path):
    path, x = tmp_path / "m.onnx", RNG.standard_normal((2, 4)).astype(np.float32)
    path.write_bytes(network().SerializeToString())
    session = ort.InferenceSession(path)
    other = network()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(2 * W, "w"))
    path.write_bytes(other.SerializeToString())
    with pytest.raises(ort.ModelError, match="has changed since the session was made"):
        session.run(None, {"x": x})
    path.write_bytes(network().SerializeToString())
    assert close(ort.InferenceSession(path).run(None, {"x": x}), x)  # nothing wrong was kept


def test_locks_end_with_their_block(cache, monkeypatch):
    engines = EngineCache(Cache(cache))
    with engines.lock("k"):
        held = os.fork()
        if not held:
            time.sleep(60)
            os._exit(0)
    try:
        # at once, though a forked child still has the file open
        with engines.lock("k"):
            pass
    finally:
        os.kill(held, 9)
        os.waitpid(held, 0)

    def no_locks(file, how):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with engines.lock("k"):
        pass


def test_forked_children_do_not_wait_for_threads_of_the_parent():
    session = ort.InferenceSession(network().SerializeToString())
    constants = DeferredConstants(64, lambda out: iter(()))
    held, done = threading.Event(), threading.Event()

    def build():
        with session._engines._lock, constants.lock:
            held.set()
            done.wait()

    builder = threading.Thread(target=build)
    builder.start()
    assert held.wait(timeout=10)
    child = os.fork()
    if not child:
        os._exit(0 if session._engines._lock.acquire(timeout=5) and constants.lock.acquire(timeout=5) else 1)
    done.set()
    builder.join()
    assert os.waitpid(child, 0)[1] == 0


def test_options(caplog, monkeypatch):
    options = ort.SessionOptions()
    options.add_session_config_entry("pelton.level", "1")
    options.add_session_config_entry("pelton.strict", "1")
    built = options.read({"PELTON_LEVEL": "4", "PELTON_BUDGET": "2.5"}).options
    assert (built.level, built.strict, built.budget) == (1, True, 2.5) and options.get_session_config_entry(
        "pelton.level"
    ) == "1"
    with pytest.raises(ort.InputError, match="there is no config entry 'pelton.nothing'"):
        options.add_session_config_entry("pelton.nothing", "1")
    with pytest.raises(ort.InputError, match="PELTON_LEVEL must be an integer, got 'high'"):
        ort.SessionOptions().read({"PELTON_LEVEL": "high"})
    with pytest.raises(AttributeError):
        options.nothing = 1
    with pytest.raises(ort.InputError, match="as functions"):
        options.register_custom_ops_library("ops.so")
    options.optimized_model_filepath = "model.onnx"
    ort.InferenceSession(
        network(2).SerializeToString(),
        options,
        providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"],
    )
    assert all(text in caplog.text for text in ("nothing is written to model.onnx", "no CUDAExecutionProvider"))
