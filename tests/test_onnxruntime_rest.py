"""Cases of docs/onnxruntime.md: options, values and devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnxruntime_models import X, cache, model, mul, node, squares, tensor  # noqa: F401  (the fixture)

import pelton as ort


def profiled(prefix: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    return ort.InferenceSession(mul(), options)


def test_profiler_with_session_options(tmp_path):
    session = profiled(tmp_path / "trace")
    assert squares(session)
    first, *between, last = Path(session.end_profiling()).read_text().splitlines()
    assert (
        "[" in first
        and "]" in last
        and between
        and all(tag in line for line in between for tag in ("pid", "dur", "ts", "ph", "X", "name", "args"))
    )


def test_profiler_get_start_time_ns(tmp_path):
    starts = [profiled(tmp_path / "trace").get_profiling_start_time_ns() for _ in range(3)]
    assert starts == sorted(starts) and starts[0] > 0


def test_graph_optimization_level():
    options = ort.SessionOptions()
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED and squares(
        ort.InferenceSession(mul(), options)
    )


def test_ort_execution_mode():
    options = ort.SessionOptions()
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL


def test_loading_session_options_from_model(monkeypatch):
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    model = onnx.ModelProto.FromString(mul())
    model.metadata_props.add(key="ort_config", value='{"session_options": {"intra_op_num_threads": 5}}')
    assert ort.InferenceSession(model.SerializeToString()).get_session_options().intra_op_num_threads == 0


def free(**sizes: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for name, size in sizes.items():
        add = (
            options.add_free_dimension_override_by_denotation
            if name.startswith("DATA")
            else options.add_free_dimension_override_by_name
        )
        add(name, size)
    labelled = onnx.ModelProto.FromString(
        model([node("Abs", ["x"], ["y"])], [tensor("x", 1, ["Dim1", "Dim2", 5])], [tensor("y", 1, ["Dim1", "Dim2", 5])])
    )
    for d, denotation in zip(labelled.graph.input[0].type.tensor_type.shape.dim, ("DATA_BATCH", "DATA_CHANNEL")):
        d.denotation = denotation
    return ort.InferenceSession(labelled.SerializeToString(), options)


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
    model = onnx.ModelProto.FromString(mul())
    w = model.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="not_on_disk.bin")
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"X": X})[0]


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
    assert (value.device_name(), value.shape(), value.data_type()) == ("cpu", [3, 2], "tensor(float)")
    assert value.is_tensor() and value.tensor_size_in_bytes() == 24
    session = ort.InferenceSession(mul())
    assert np.array_equal(session.run(["Y"], {"X": value})[0], X * X) and np.array_equal(value.numpy(), X)
    assert isinstance(session.run_with_ort_values(["Y"], {"X": value})[0], ort.OrtValue)
    typed = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, TensorProto.FLOAT)
    assert typed.is_tensor() and typed.element_type() == TensorProto.FLOAT and typed.shape() == [3, 2]
    with pytest.raises(RuntimeError, match="4 bytes per element"):
        ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X.astype(np.float16), TensorProto.FLOAT)
    with pytest.raises(RuntimeError, match="memory of the CPU"):
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)


def shared(value) -> ort.OrtValue:
    found = ort.OrtValue.from_dlpack(value)
    assert (
        found.data_ptr() == (value.data_ptr() if isinstance(value, ort.OrtValue) else value.ctypes.data)
        or not found.numpy().size
    )
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
    session = ort.InferenceSession(
        model(
            [node("Add", ["input_0", "ten"], ["plus_10"])],
            [given],
            [tensor("plus_10", 1, [1, 2]), given],
            {"ten": np.array(10, np.float32)},
        )
    )
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
    assert (cpu.device_id(), cpu.device_type(), cpu.device_vendor_id(), cpu.device_mem_type()) == (
        0,
        0,
        ort.OrtDeviceVendorId.NONE,
        0,
    )
    assert cuda.device_vendor_id() == ort.OrtDeviceVendorId.NVIDIA == 0x10DE
    with pytest.raises(RuntimeError, match="Unsupported device type: tpu"):
        ort.OrtDevice.make("tpu", 0)


def cpu_memory(made: ort.OrtMemoryInfo, name: str) -> bool:
    return (
        made.name,
        made.device_id,
        made.mem_type,
        made.allocator_type,
        made.device_mem_type,
        made.device_vendor_id,
    ) == (name, 0, ort.OrtMemType.DEFAULT, ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtDeviceMemoryType.DEFAULT, 0)


def test_ort_memory_info():
    assert cpu_memory(
        ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT), "Cpu"
    )


def test_ort_memory_info_create_v2():
    assert cpu_memory(
        ort.OrtMemoryInfo.create_v2(
            "Test",
            ort.OrtMemoryInfoDeviceType.CPU,
            0,
            0,
            ort.OrtDeviceMemoryType.DEFAULT,
            128,
            ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        ),
        "Test",
    )


def test_shared_allocator_using_create_and_register_allocator():
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT), None
    )
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    assert squares(ort.InferenceSession(mul(), options))


def test_memory_arena_shrinkage():
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0" and squares(
        ort.InferenceSession(mul()), options
    )


def test_check_and_normalize_provider_args(caplog):
    from pelton.compat.session.providers import normalize

    cases = (
        ((None, None), {}),
        ((["a"], None), {"a": {}}),
        ((["a", "b"], None), {"a": {}, "b": {}}),
        (([("a", {1: 2}), "b"], None), {"a": {"1": "2"}, "b": {}}),
        ((["a", "b"], [{1: 2}, {}]), {"a": {"1": "2"}, "b": {}}),
        ((["a", "b", "a"], [{"x": 1}, {}, {"y": 2}]), {"a": {"x": "1"}, "b": {}}),
    )
    for given, wanted in cases:
        assert normalize(*given) == wanted
    assert "named twice" in caplog.text
    for wrong in (
        (3, None),
        ([3], None),
        (["a"], 3),
        (["a"], ["not dict"]),
        (["a", "b"], [{1: 2}]),
        ([("a", {1: 2})], [{3: 4}]),
    ):
        with pytest.raises(ValueError):
            normalize(*wrong)


def test_create_allocator():
    made = ort.OrtArenaCfg(8, 0, 4, 2)
    assert (made.max_mem, made.arena_extend_strategy, made.initial_chunk_size_bytes, made.max_dead_bytes_per_chunk) == (
        8,
        0,
        4,
        2,
    )
    named = {
        "max_mem": 32,
        "arena_extend_strategy": 11,
        "initial_chunk_size_bytes": 18,
        "max_dead_bytes_per_chunk": 14,
        "initial_growth_chunk_size_bytes": 12,
        "max_power_of_two_extend_bytes": 17,
    }
    assert vars(ort.OrtArenaCfg(named)) == named
    with pytest.raises(ValueError, match="Invalid OrtArenaCfg option: size"):
        ort.OrtArenaCfg({"size": 1})


def test_adater_export_read():
    assert not hasattr(ort, "AdapterFormat")


def test_run_with_adapter():
    with pytest.raises(RuntimeError, match="add_initializer"):
        ort.RunOptions().add_active_adapter(object())


def test_run_base_model():
    model = onnx.ModelProto.FromString(mul())
    model.graph.input.append(tensor("W", 1, [3, 2]))  # what an adapter would feed
    session = ort.InferenceSession(model.SerializeToString())
    assert squares(session) and [a.name for a in session.get_overridable_initializers()] == ["W"]


def test_get_graph_provider_assignment_info():
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with pytest.raises(RuntimeError, match="pelton explain"):
        ort.InferenceSession(mul(), options).get_provider_graph_assignment_info()


def test_get_graph_provider_assignment_info_not_enabled():
    with pytest.raises(RuntimeError, match="compiled together"):
        ort.InferenceSession(mul()).get_provider_graph_assignment_info()
