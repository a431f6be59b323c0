"""ONNX Runtime's own tests of bindings on the CPU, onnxruntime_test_python_iobinding.py, run on Pelton."""

from __future__ import annotations


import numpy as np
import pytest
from onnx import helper
from onnxruntime_models import X, cache, model, mul, node, squares, tensor  # noqa: F401  (the fixture)

import pelton as ort


def test_bind_input_to_cpu_arr():
    session = ort.InferenceSession(mul())
    binding = session.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Y")
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], X * X)


def test_bind_input_types():
    for dtype in (
        np.float32,
        np.float64,
        np.int32,
        np.uint32,
        np.int64,
        np.uint64,
        np.int16,
        np.uint16,
        np.int8,
        np.uint8,
        np.float16,
        np.bool_,
    ):
        x, kind = np.arange(8).reshape(-1, 2).astype(dtype), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        session = ort.InferenceSession(
            model([node("Identity", ["X"], ["Y"])], [tensor("X", kind, [None, 2])], [tensor("Y", kind, [None, 2])])
        )
        for by_address in (False, True):
            binding = session.io_binding()
            if by_address:
                binding.bind_input("X", "cpu", 0, dtype, x.shape, x.ctypes.data)
            else:
                binding.bind_ortvalue_input("X", ort.OrtValue.ortvalue_from_numpy(x))
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
