"""docs/onnxruntime.md, case by case: what ONNX Runtime's own Python tests exercise, on models of the same kind. Each row of the page has a function here of
the same name, and each function a row; those of GPUs, which no test here can run, are named as such."""
from __future__ import annotations

import inspect
import logging
import math
import re
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pelton as ort

PAGE = Path(__file__).parents[1] / "docs/onnxruntime.md"
GPU = {"test_set_providers", "test_set_providers_with_options", "test_ort_value_gh_issue9799", "test_run_model_with_cuda_copy_stream", "test_multiple_devices"}
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
tensor, node = helper.make_tensor_value_info, helper.make_node


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELTON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PELTON_LEVEL", "0")
        yield
    logging.getLogger("pelton").setLevel(logging.NOTSET)


def model(nodes, inputs, outputs, constants=(), opset: int = 17, **more) -> bytes:
    graph = helper.make_graph(nodes, "net", inputs, outputs, [numpy_helper.from_array(a, name) for name, a in dict(constants).items()])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more).SerializeToString()


def mul(**more) -> bytes:
    return model([node("Mul", ["X", "W"], ["Y"], name="mul")], [tensor("X", 1, [3, 2])], [tensor("Y", 1, [3, 2])], {"W": X}, **more)


def product(rows: int | str = 3) -> bytes:
    return model([node("MatMul", ["X", "W"], ["Y"])], [tensor("X", 1, [rows, 2])], [tensor("Y", 1, [rows, 1])],
                 {"W": np.array([[1], [2]], np.float32)})


def texts() -> bytes:
    return model([node("Identity", ["input:0"], ["output:0"])], [tensor("input:0", TensorProto.STRING, [2, 2])],
                 [tensor("output:0", TensorProto.STRING, [2, 2])])


def both() -> bytes:
    return model([node("And", ["input1:0", "input:0"], ["output:0"])], [tensor(name, TensorProto.BOOL, [2, 2]) for name in ("input1:0", "input:0")],
                 [tensor("output:0", TensorProto.BOOL, [2, 2])])


def squares(session, options=None) -> bool:
    return np.allclose(session.run([], {"X": X}, options)[0], X * X)


def sequence(name: str, kind: int, shape=None):
    return helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, shape)))


# --- the page

def rows() -> dict[str, str]:
    """Case → verdict."""
    return dict(re.findall(r"^\| `(\w+)`(?: \([^|]*\))? \| (same|differs|missing|GPU) \|", PAGE.read_text(), re.M))


def test_every_row_of_the_page_is_run():
    here = {name for name, value in vars(sys.modules[__name__]).items() if inspect.isfunction(value) and name.startswith("test")}
    assert rows().keys() == (here - {"test_every_row_of_the_page_is_run", "test_what_is_said_to_differ_says_how"}) | GPU
    assert {case for case, verdict in rows().items() if verdict == "GPU"} == GPU


def test_what_is_said_to_differ_says_how():
    for case, verdict, how in re.findall(r"^\| `(\w+)`[^|]*\| (\w+) \| (.*) \|$", PAGE.read_text(), re.M):
        assert verdict == "same" or len(how) > 20, case


# --- onnxruntime_test_python.py

def test_tvm_imported():
    assert "TvmExecutionProvider" not in ort.get_available_providers()


def test_get_version_string():
    assert ort.get_version_string() == ort.__version__


def test_get_build_info():
    assert "Build Info" in ort.get_build_info()


def test_model_serialization(tmp_path, caplog):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    assert squares(ort.InferenceSession(mul(), options)) and not (tmp_path / "optimized.onnx").exists() and "nothing is written" in caplog.text


def test_get_providers():
    assert "CPUExecutionProvider" in ort.get_available_providers() and ort.get_all_providers()[-1] == "CPUExecutionProvider"
    assert "CPUExecutionProvider" in ort.InferenceSession(mul(), providers=["CPUExecutionProvider"]).get_providers()


def test_enabling_and_disabling_telemetry():
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()


def test_set_default_logger_callback():
    heard = []
    ort.set_default_logger_callback(lambda *record: heard.append(record), severity=0)
    try:
        assert squares(ort.InferenceSession(mul())) and heard and all([*map(type, record)] == [int, str, str, str, str] for record in heard)
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
    assert "mean nothing here" in caplog.text
    with pytest.raises(RuntimeError, match="pelton.timing_cache"):
        session.set_tuning_results(theirs, error_on_invalid=True)


def test_run_model_with_optional_sequence_input():
    kind = helper.make_optional_type_proto(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [5])))
    session = ort.InferenceSession(model([node("Identity", ["x"], ["y"])], [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)]))
    x = [np.arange(5, dtype=np.float32)]
    assert session.get_inputs()[0].type == "optional(seq(tensor(float)))" and np.array_equal(session.run(["y"], {"x": x})[0], x)


def test_run_model():
    session = ort.InferenceSession(mul())
    (given,), (result,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, result.name, result.shape) == ("X", [3, 2], "Y", [3, 2])
    assert len(session.get_input_memory_infos()) == len(session.get_output_memory_infos()) == len(session.get_input_epdevices()) == 1
    assert np.allclose(session.run(["Y"], {"X": X})[0], X * X)


def test_run_async():
    options, over, got = ort.SessionOptions(), threading.Event(), []
    options.intra_op_num_threads = 2
    ort.InferenceSession(mul(), options).run_async(["Y"], {"X": X}, lambda *found: (got.extend(found), over.set()), 123456)
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
        (name, [2, 2], "tensor(bool)") for name in ("input1:0", "input:0", "output:0")]
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
    with pytest.raises(ValueError, match=re.escape("Required inputs (['input1:0']) are missing from input feed (['input:0'])")):
        ort.InferenceSession(both()).run([], {"input:0": np.ones((2, 2), bool)})


def test_model_meta():
    meta = ort.InferenceSession(mul(producer_name="onnx-caffe2")).get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.graph_description) == ("onnx-caffe2", "net", "", "", "")


def profiled(prefix: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    return ort.InferenceSession(mul(), options)


def test_profiler_with_session_options(tmp_path):
    session = profiled(tmp_path / "trace")
    assert squares(session)
    first, *between, last = Path(session.end_profiling()).read_text().splitlines()
    assert "[" in first and "]" in last and between and all(tag in line for line in between for tag in ("pid", "dur", "ts", "ph", "X", "name", "args"))


def test_profiler_get_start_time_ns(tmp_path):
    starts = [profiled(tmp_path / "trace").get_profiling_start_time_ns() for _ in range(3)]
    assert starts == sorted(starts) and starts[0] > 0


def test_graph_optimization_level():
    options = ort.SessionOptions()
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED and squares(ort.InferenceSession(mul(), options))


def test_sequence_length():
    session = ort.InferenceSession(model([node("SequenceLength", ["X"], ["Y"])], [sequence("X", 1)], [tensor("Y", TensorProto.INT64, [])]))
    assert [(a.name, a.type) for a in (*session.get_inputs(), *session.get_outputs())] == [("X", "seq(tensor(float))"), ("Y", "tensor(int64)")]
    for x in ([X, X], [X], []):
        assert session.run(["Y"], {"X": x})[0] == len(x)
    for wrong in (X, (X,), [X.astype(np.float64)]):
        with pytest.raises(RuntimeError):
            session.run(["Y"], {"X": wrong})


def test_sequence_construct():
    names, x = ("tensor1", "tensor2"), np.arange(6).reshape(2, 3)
    session = ort.InferenceSession(model([node("SequenceConstruct", names, ["output_sequence"])], [tensor(n, TensorProto.INT64, [2, 3]) for n in names],
                                         [sequence("output_sequence", TensorProto.INT64)]))
    (found,) = session.run(["output_sequence"], {"tensor1": x, "tensor2": x + 1})
    assert session.get_outputs()[0].type == "seq(tensor(int64))" and isinstance(found, list) and np.array_equal(found, [x, x + 1])


def test_sequence_insert():
    session = ort.InferenceSession(model([node("SequenceInsert", ["input_seq", "tensor"], ["output_sequence"])],
                                         [sequence("input_seq", TensorProto.INT64), tensor("tensor", TensorProto.INT64, [2, 3])],
                                         [sequence("output_sequence", TensorProto.INT64)]))
    x = np.arange(6).reshape(2, 3)
    assert np.array_equal(session.run(["output_sequence"], {"tensor": x, "input_seq": []})[0], [x])
    assert np.array_equal(session.run(["output_sequence"], {"tensor": x, "input_seq": [x + 1]})[0], [x + 1, x])


def test_ort_execution_mode():
    options = ort.SessionOptions()
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL


def test_loading_session_options_from_model(monkeypatch):
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    told = onnx.ModelProto.FromString(mul())
    told.metadata_props.add(key="ort_config", value='{"session_options": {"intra_op_num_threads": 5}}')
    assert ort.InferenceSession(told.SerializeToString()).get_session_options().intra_op_num_threads == 0


def free(**sizes: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for name, size in sizes.items():
        add = options.add_free_dimension_override_by_denotation if name.startswith("DATA") else options.add_free_dimension_override_by_name
        add(name, size)
    told = onnx.ModelProto.FromString(model([node("Abs", ["x"], ["y"])], [tensor("x", 1, ["Dim1", "Dim2", 5])], [tensor("y", 1, ["Dim1", "Dim2", 5])]))
    for d, denotation in zip(told.graph.input[0].type.tensor_type.shape.dim, ("DATA_BATCH", "DATA_CHANNEL")):
        d.denotation = denotation
    return ort.InferenceSession(told.SerializeToString(), options)


def test_session_options_add_free_dimension_override_by_denotation():
    assert free(DATA_BATCH=3, DATA_CHANNEL=5).get_inputs()[0].shape == [3, 5, 5]


def test_session_options_add_free_dimension_override_by_name():
    assert free(Dim1=4, Dim2=6).get_inputs()[0].shape == [4, 6, 5]


def test_session_options_add_config_entry():
    options = ort.SessionOptions()
    options.add_session_config_entry("CONFIG_KEY", "CONFIG_VAL")
    assert options.get_session_config_entry("CONFIG_KEY") == "CONFIG_VAL"


def test_invalid_session_options_config_entry():
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: INVALID_KEY"):
        ort.SessionOptions().get_session_config_entry("INVALID_KEY")


def test_session_options_add_initializer():
    options, w = ort.SessionOptions(), X[:, ::-1].copy()
    options.add_initializer("W", ort.OrtValue.ortvalue_from_numpy(w))
    assert np.array_equal(ort.InferenceSession(mul(), options).run(["Y"], {"X": X})[0], X * w)


def external(options: ort.SessionOptions) -> np.ndarray:
    told = onnx.ModelProto.FromString(mul())
    w = told.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="not_on_disk.bin")
    return ort.InferenceSession(told.SerializeToString(), options).run(None, {"X": X})[0]


def test_session_options_add_external_initializers():
    options = ort.SessionOptions()
    options.add_external_initializers(["W"], [ort.OrtValue.ortvalue_from_numpy(3 * X)])
    assert np.array_equal(external(options), 3 * X * X)


def test_session_options_add_external_initializers_from_files_in_memory():
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["not_on_disk.bin"], [X.tobytes()], [X.nbytes])
    assert np.array_equal(external(options), X * X)


def test_register_custom_ops_library():
    with pytest.raises(RuntimeError, match="as functions"):
        ort.SessionOptions().register_custom_ops_library("./libcustom_op_library.so")


def test_ort_value():
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.device_name(), value.shape(), value.data_type(), value.is_tensor(), value.tensor_size_in_bytes()) == ("cpu", [3, 2], "tensor(float)", True, 24)
    session = ort.InferenceSession(mul())
    assert np.array_equal(session.run(["Y"], {"X": value})[0], X * X) and np.array_equal(value.numpy(), X)
    assert isinstance(session.run_with_ort_values(["Y"], {"X": value})[0], ort.OrtValue)
    typed = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, TensorProto.FLOAT)
    assert typed.is_tensor() and typed.element_type() == TensorProto.FLOAT and typed.shape() == [3, 2]
    with pytest.raises(RuntimeError, match="4 bytes each"):
        ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X.astype(np.float16), TensorProto.FLOAT)
    with pytest.raises(RuntimeError, match="memory of the CPU"):
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)


def shared(value) -> ort.OrtValue:
    found = ort.OrtValue.from_dlpack(value)
    assert found.data_ptr() == (value.data_ptr() if isinstance(value, ort.OrtValue) else value.ctypes.data) or not found.numpy().size
    return found


def test_ort_value_dlpack():
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    assert value.__dlpack_device__() == (1, 0) and np.array_equal(shared(value).numpy(), X)
    with pytest.raises(RuntimeError, match="with __dlpack__"):
        ort.OrtValue.from_dlpack(value.__dlpack__())


def test_ort_value_dlpack_zero_size():
    for shape in ((1, 8, 0, 128), (0,), (0, 4), (4, 0)):
        assert shared(ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))).shape() == [*shape]


def test_ort_value_array_protocol():
    for x in (X.copy(), np.array([1, 2, 3]), np.array([True, False])):
        value = ort.OrtValue.ortvalue_from_numpy(x)
        assert np.asarray(value).ctypes.data == value.data_ptr() == np.asarray(value, dtype=x.dtype).ctypes.data
        assert np.array_equal(np.array(value), x) and np.asarray(value, dtype=np.float64).dtype == np.float64


def test_run_output_does_not_alias_input_passthrough():
    given = tensor("input_0", 1, [1, 2])
    session = ort.InferenceSession(model([node("Add", ["input_0", "ten"], ["plus_10"])], [given], [tensor("plus_10", 1, [1, 2]), given],
                                         {"ten": np.array(10, np.float32)}))
    feeds = [np.full((1, 2), float(i), np.float32) for i in range(7)]
    found = [session.run(None, {"input_0": x}) for x in feeds]
    for x, (plus, same) in zip(feeds, found):
        assert np.array_equal(plus, x + 10) and np.array_equal(same, x) and not np.shares_memory(same, x)


def test_run_session_owned_output_is_zero_copy():
    (y,) = ort.InferenceSession(mul()).run(None, {"X": X})
    assert y.base is None and y.flags.owndata


def test_ort_value_dlpack_protocol():
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    assert value.__dlpack_device__() == (1, 0) and np.array_equal(np.from_dlpack(value), X)


def test_ort_value_from_dlpack_protocol_object():
    x = np.array([1, 2, 3, 4], np.float32)
    assert np.array_equal(shared(shared(x)).numpy(), x)


def test_ort_value_from_dlpack_bool():
    for x in (np.array([True, False, True]), np.array([1, 2, 255], np.uint8)):
        found = shared(ort.OrtValue.ortvalue_from_numpy(x)).numpy()
        assert np.array_equal(found, x) and found.dtype == x.dtype


def test_sparse_tensor_coo_format():
    assert not hasattr(ort, "SparseTensor") and not hasattr(ort.OrtValue, "ort_value_from_sparse_tensor")
    assert not ort.OrtValue.ortvalue_from_numpy(X).is_sparse_tensor()


def test_sparse_tensor_csr_format():
    test_sparse_tensor_coo_format()


def test_ort_device():
    cpu, cuda = ort.OrtDevice.make("cpu", 0), ort.OrtDevice.make("cuda", 0)
    assert (cpu.device_id(), cpu.device_type(), cpu.device_vendor_id(), cpu.device_mem_type()) == (0, 0, ort.OrtDeviceVendorId.NONE, 0)
    assert cuda.device_vendor_id() == ort.OrtDeviceVendorId.NVIDIA == 0x10DE
    with pytest.raises(RuntimeError, match="Unsupported device type: tpu"):
        ort.OrtDevice.make("tpu", 0)


def cpu_memory(made: ort.OrtMemoryInfo, name: str) -> bool:
    return (made.name, made.device_id, made.mem_type, made.allocator_type, made.device_mem_type, made.device_vendor_id) == (
        name, 0, ort.OrtMemType.DEFAULT, ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtDeviceMemoryType.DEFAULT, 0)


def test_ort_memory_info():
    assert cpu_memory(ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT), "Cpu")


def test_ort_memory_info_create_v2():
    assert cpu_memory(ort.OrtMemoryInfo.create_v2("Test", ort.OrtMemoryInfoDeviceType.CPU, 0, 0, ort.OrtDeviceMemoryType.DEFAULT, 128,
                                                  ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR), "Test")


def test_shared_allocator_using_create_and_register_allocator():
    ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT), None)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    assert squares(ort.InferenceSession(mul(), options))


def test_memory_arena_shrinkage():
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0" and squares(ort.InferenceSession(mul()), options)


def test_check_and_normalize_provider_args(caplog):
    from pelton.session.providers import normal
    cases = (((None, None), {}), ((["a"], None), {"a": {}}), ((["a", "b"], None), {"a": {}, "b": {}}), (([("a", {1: 2}), "b"], None), {"a": {"1": "2"}, "b": {}}),
             ((["a", "b"], [{1: 2}, {}]), {"a": {"1": "2"}, "b": {}}), ((["a", "b", "a"], [{"x": 1}, {}, {"y": 2}]), {"a": {"x": "1"}, "b": {}}))
    for given, wanted in cases:
        assert normal(*given) == wanted
    assert "named twice" in caplog.text
    for wrong in ((3, None), ([3], None), (["a"], 3), (["a"], ["not dict"]), (["a", "b"], [{1: 2}]), ([("a", {1: 2})], [{3: 4}])):
        with pytest.raises(ValueError):
            normal(*wrong)


def test_create_allocator():
    made = ort.OrtArenaCfg(8, 0, 4, 2)
    assert (made.max_mem, made.arena_extend_strategy, made.initial_chunk_size_bytes, made.max_dead_bytes_per_chunk) == (8, 0, 4, 2)
    named = {"max_mem": 32, "arena_extend_strategy": 11, "initial_chunk_size_bytes": 18, "max_dead_bytes_per_chunk": 14,
             "initial_growth_chunk_size_bytes": 12, "max_power_of_two_extend_bytes": 17}
    assert vars(ort.OrtArenaCfg(named)) == named
    with pytest.raises(ValueError, match="Invalid OrtArenaCfg option: size"):
        ort.OrtArenaCfg({"size": 1})


def test_adater_export_read():
    assert not hasattr(ort, "AdapterFormat")


def test_run_with_adapter():
    with pytest.raises(RuntimeError, match="add_initializer"):
        ort.RunOptions().add_active_adapter(object())


def test_run_base_model():
    told = onnx.ModelProto.FromString(mul())
    told.graph.input.append(tensor("W", 1, [3, 2]))                    # what an adapter would feed
    session = ort.InferenceSession(told.SerializeToString())
    assert squares(session) and [a.name for a in session.get_overridable_initializers()] == ["W"]


def test_get_graph_provider_assignment_info():
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with pytest.raises(RuntimeError, match="pelton explain"):
        ort.InferenceSession(mul(), options).get_provider_graph_assignment_info()


def test_get_graph_provider_assignment_info_not_enabled():
    with pytest.raises(RuntimeError, match="compiled together"):
        ort.InferenceSession(mul()).get_provider_graph_assignment_info()


def test_tree_ensemble_logistic():
    for modes, values, true, false, weights, base, wanted in (
            (["BRANCH_LT", "LEAF", "LEAF"], [0.5, 0.0, 0.0], [1, 0, 0], [2, 0, 0], [0.3, -0.3], -0.405, -0.105),
            (["LEAF"], [0.0], [0], [0], [0.0], -0.405, -0.405), (["LEAF"], [0.0], [0], [0], [-0.405], 0.0, -0.405)):
        n, leaves = len(modes), [i for i, mode in enumerate(modes) if mode == "LEAF"]
        tree = node("TreeEnsembleClassifier", ["X"], ["label", "probs"], domain="ai.onnx.ml", base_values=[base], nodes_treeids=[0] * n,
                    nodes_nodeids=[*range(n)], nodes_featureids=[0] * n, nodes_values=values, nodes_modes=modes, nodes_truenodeids=true,
                    nodes_falsenodeids=false, nodes_missing_value_tracks_true=[0] * n, nodes_hitrates=[1.0] * n, class_treeids=[0] * len(weights),
                    class_nodeids=leaves, class_ids=[0] * len(weights), class_weights=weights, classlabels_int64s=[0, 1], post_transform="LOGISTIC")
        session = ort.InferenceSession(model([tree], [tensor("X", 1, [None, 3])], [tensor("label", TensorProto.INT64, [None]), tensor("probs", 1, [None, 2])],
                                             opset=15))
        assert session.run(None, {"X": np.array([[0.1, 0, 0]], np.float32)})[1][0][1] == pytest.approx(1 / (1 + math.exp(-wanted)), abs=1e-5)


# --- onnxruntime_test_python_iobinding.py, on the CPU

def test_bind_input_to_cpu_arr():
    session = ort.InferenceSession(mul())
    binding = session.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Y")
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], X * X)


def test_bind_input_types():
    for dtype in (np.float32, np.float64, np.int32, np.uint32, np.int64, np.uint64, np.int16, np.uint16, np.int8, np.uint8, np.float16, np.bool_):
        x, kind = np.arange(8).reshape(-1, 2).astype(dtype), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        session = ort.InferenceSession(model([node("Identity", ["X"], ["Y"])], [tensor("X", kind, [None, 2])], [tensor("Y", kind, [None, 2])]))
        for bind in (lambda b: b.bind_ortvalue_input("X", ort.OrtValue.ortvalue_from_numpy(x)),
                     lambda b: b.bind_input("X", "cpu", 0, dtype, x.shape, x.ctypes.data)):
            binding = session.io_binding()
            bind(binding)
            binding.bind_output("Y")
            session.run_with_iobinding(binding)
            found = binding.get_outputs()[0].numpy()
            assert np.array_equal(found, x) and found.dtype == x.dtype


def bound(out: bool) -> None:
    """Inputs by their address, twice; outputs in memory of their own or of the caller."""
    session, y = ort.InferenceSession(mul()), ort.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    binding = session.io_binding()
    for x in (X.copy(), 2 * X):
        binding.bind_input("X", "cpu", 0, np.float32, [3, 2], x.ctypes.data)
        binding.synchronize_inputs()
        if out:
            binding.bind_output("Y", "cpu", 0, np.float32, [3, 2], y.data_ptr())
        else:
            binding.bind_output("Y")
        session.run_with_iobinding(binding)
        for value in (*binding.get_outputs(), *([y] if out else [])):
            assert value.device_name() == "cpu" and np.array_equal(value.numpy(), x * X)
        assert np.array_equal(binding.copy_outputs_to_cpu()[0], x * X)


def test_bind_input_only():
    bound(False)
    with pytest.raises(RuntimeError, match="memory of the CPU"):
        ort.InferenceSession(mul()).io_binding().bind_input("X", "cuda", 0, np.float32, [3, 2], 1)


def test_bind_input_and_preallocated_output():
    bound(True)


def test_bind_input_and_non_preallocated_output():
    bound(False)


def test_bind_input_and_bind_output_with_ortvalues():
    session, y = ort.InferenceSession(mul()), ort.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_output("Y", y)
    for x in (X, 2 * X):
        binding.bind_ortvalue_input("X", ort.OrtValue.ortvalue_from_numpy(x))
        session.run_with_iobinding(binding)
        assert np.array_equal(y.numpy(), x * X)


# --- onnxruntime_test_python_mlops.py

def zipped(**labels) -> tuple[str, list]:
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key, helper.make_tensor_type_proto(1, [])))
    session = ort.InferenceSession(model([node("ZipMap", ["X"], ["Z"], domain="ai.onnx.ml", **labels)], [tensor("X", 1, [None, 3])],
                                         [helper.make_value_info("Z", kind)]))
    return session.get_outputs()[0].type, session.run(["Z"], {"X": np.array([[1, 0, 3], [44, 23, 11]], np.float32)})[0]


def test_ZipMapStringFloat():
    assert zipped(classlabels_strings=["class1", "class2", "class3"]) == (
        "seq(map(string,tensor(float)))", [{"class1": 1.0, "class2": 0.0, "class3": 3.0}, {"class1": 44.0, "class2": 23.0, "class3": 11.0}])


def test_ZipMapInt64Float():
    assert zipped(classlabels_int64s=[10, 20, 30]) == ("seq(map(int64,tensor(float)))", [{10: 1.0, 20: 0.0, 30: 3.0}, {10: 44.0, 20: 23.0, 30: 11.0}])


def test_DictVectorizer():
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    nodes = [node("DictVectorizer", ["float_input"], ["v"], domain="ai.onnx.ml", int64_vocabulary=[0, 1, 2, 3, 4]),
             node("MatMul", ["v", "w"], ["variable1"])]
    session = ort.InferenceSession(model(nodes, [helper.make_value_info("float_input", kind)], [tensor("variable1", 1, [1, 1])],
                                         {"w": np.arange(5, dtype=np.float32)[:, None]}))
    assert [(a.name, a.type, a.shape) for a in (*session.get_inputs(), *session.get_outputs())] == [
        ("float_input", "map(int64,tensor(float))", []), ("variable1", "tensor(float)", [1, 1])]
    x = {0: 25.0, 1: 5.13, 2: 0.0, 3: 0.453, 4: 5.966}
    for key, value in ((int, float), (np.int64, np.float32), (np.int64, np.float64), (np.int32, np.float64)):
        (y,) = session.run(["variable1"], {"float_input": {key(k): value(v) for k, v in x.items()}})
        assert np.allclose(y, sum(k * v for k, v in x.items()), rtol=1e-5)
    with pytest.raises(RuntimeError, match="a dict from i64 to f32"):
        session.run(None, {"float_input": {**x, "a": 5.6}})


def test_LabelEncoder():
    session = ort.InferenceSession(model([node("LabelEncoder", ["input"], ["variable"], domain="ai.onnx.ml", keys_strings=["1", "4"], values_int64s=[0, 3])],
                                         [tensor("input", TensorProto.STRING, [1, 1])], [tensor("variable", TensorProto.INT64, [1, 1])]))
    assert session.get_inputs()[0].type == "tensor(string)" and session.get_outputs()[0].type == "tensor(int64)"
    for x in (np.array([["4"]]), np.array(["4"], ndmin=2, dtype=object)):
        assert session.run(["variable"], {"input": x})[0].tolist() == [[3]]


def test_run_model_mlnet():
    """Texts with zeros in them, as numpy's void type hands them over."""
    session = ort.InferenceSession(model([node("OneHotEncoder", ["C1"], ["C12"], domain="ai.onnx.ml", cats_strings=["B\0B\0", "x", "C\0C\0", "y"], zeros=1)],
                                         [tensor("C1", TensorProto.STRING, [1, 3])], [tensor("C12", 1, None)]))
    c1 = np.array([b"A\0A\0", b"B\0B\0", b"C\0C\0"], np.void).reshape(1, 3)
    assert session.run(None, {"C1": c1})[0].tolist() == [[[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]]
    longer = np.array([b"A\0A\0\0", b"B\0B\0\0", b"C\0C\0\0"], np.void).reshape(1, 3)
    assert session.run(None, {"C1": longer})[0].sum() == 0


def test_run_model_tree_ensemble_aionnxml_3():
    def tensor_of(name, values):
        return helper.make_tensor(name, TensorProto.DOUBLE, [len(values)], values)
    tree = node("TreeEnsembleRegressor", ["X"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0] * 3, nodes_nodeids=[0, 1, 2],
                nodes_featureids=[2, 0, 0], nodes_values_as_tensor=tensor_of("v", [1.7999999523, 0, 0]), nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
                nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0],
                target_weights_as_tensor=tensor_of("w", [0.25, 0.75]))
    session = ort.InferenceSession(model([tree], [tensor("X", TensorProto.DOUBLE, [None, 4])], [tensor("y", TensorProto.DOUBLE, [None, 1])]))
    x = np.array([[0, 1, 1.7999999523162842, 3], [0, 1, 1.7999999523, 3], [0, 1, 1.79999995232, 3]])
    for given, wanted in ((x, [0.75, 0.25, 0.75]), (x.astype(np.float32).astype(np.float64), [0.75] * 3)):
        (y,) = session.run(None, {"X": given})
        assert y.dtype == np.float64 and y[:, 0].tolist() == wanted


