"""OrtValue, and IOBinding, which binds inputs and outputs to the caller's memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np

from pelton.engine.plan import ML_DTYPES_NAMES, NUMPY_NAMES, numpy_dtype
from pelton.errors import InputError
from pelton.runtime.in_process import InProcess

from .signature import NAMES, NodeArg

# TensorProto.DataType, the numbers of the ONNX format
_CODES = {
    1: "f32",
    2: "u8",
    3: "i8",
    4: "u16",
    5: "i16",
    6: "i32",
    7: "i64",
    8: "string",
    9: "bool",
    10: "f16",
    11: "f64",
    12: "u32",
    13: "u64",
    14: "c64",
    15: "c128",
    16: "bf16",
    17: "f8e4m3fn",
    18: "f8e4m3fnuz",
    19: "f8e5m2",
    20: "f8e5m2fnuz",
    21: "u4",
    22: "i4",
    23: "f4e2m1fn",
    24: "f8e8m0fnu",
    25: "u2",
    26: "i2",
    27: "f6e2m3fn",
    28: "f6e3m2fn",
}
_OURS = {name: ours for ours, name in (*NUMPY_NAMES.items(), *ML_DTYPES_NAMES.items())}


def _dtype_name(element_type: Any) -> str:
    """Returns Pelton's name of an element type of numpy or of onnx.TensorProto (a number)."""
    if isinstance(element_type, int) and element_type in _CODES:
        return _CODES[element_type]
    try:
        dtype = np.dtype(element_type)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in _OURS:
        raise InputError(f"an element type is numpy's or a number of onnx.TensorProto, got {element_type!r}")
    return _OURS[dtype.name]


def _check_cpu(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise InputError(f"arrays are in the memory of the CPU here, not on {device_type!r}; use device_type='cpu'")


class OrtValue:
    """An input or output of a session: an array, whose memory is shared, or a list, a dict or None."""

    def __init__(self, value: Any):
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        held = f"{value.dtype.name}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        return f"<pelton.OrtValue {held}>"

    @staticmethod
    def ortvalue_from_numpy(
        array: np.ndarray, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        _check_cpu(device_type)
        if not isinstance(array, np.ndarray):
            raise InputError(f"an OrtValue is made from a numpy array, got {type(array).__name__}")
        return OrtValue(array if array.flags.c_contiguous else np.ascontiguousarray(array))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """Wraps the bytes of `data` as elements of another type of the same size, which numpy may lack
        (onnx.TensorProto.BFLOAT16 is 16)."""
        dtype = numpy_dtype(_dtype_name(onnx_element_type))
        if (
            not isinstance(data, np.ndarray)
            or dtype.hasobject
            or data.dtype.hasobject
            or data.dtype.itemsize != dtype.itemsize
        ):
            raise InputError(
                f"elements of type {onnx_element_type} are read from an array of {dtype.itemsize} bytes per element,"
                f" got {data.dtype if isinstance(data, np.ndarray) else type(data).__name__}"
            )
        return OrtValue(np.ascontiguousarray(data).view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Allocates an array of zeros."""
        _check_cpu(device_type)
        return OrtValue(np.zeros(tuple(shape), numpy_dtype(_dtype_name(element_type))))

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        """Shares the memory of another library's array on the CPU."""
        if not hasattr(data, "__dlpack__"):
            raise InputError(f"expected an array with __dlpack__ and __dlpack_device__, got {type(data).__name__}")
        try:
            return OrtValue.ortvalue_from_numpy(np.from_dlpack(data))
        except (BufferError, RuntimeError, TypeError, ValueError) as e:
            raise InputError(f"the memory of {type(data).__name__} cannot be shared: {e}") from None

    @property
    def _array(self) -> np.ndarray:
        if not isinstance(self._value, np.ndarray):
            raise InputError(
                f"Only OrtValues that are Tensors are currently supported, this one is {type(self._value).__name__}"
            )
        return self._value

    def numpy(self) -> np.ndarray:
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._array, dtype) if copy is None else np.array(self._array, dtype, copy=copy)

    def __dlpack__(self, **asked: Any) -> Any:
        return self._array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    @property
    def _ortvalue(self) -> OrtValue:
        """ONNX Runtime's native value: libraries call its `to_dlpack`."""
        return self

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    def shape(self) -> list[int]:
        return [*self._array.shape]

    def data_type(self) -> str:
        return _type_of(self._value)

    def element_type(self) -> int:
        return next(code for code, ours in _CODES.items() if ours == _element_type(self._array))

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list) and all(isinstance(v, np.ndarray) for v in self._value)

    def is_sparse_tensor(self) -> bool:
        return False

    def update_inplace(self, data: np.ndarray | OrtValue) -> None:
        """Copies other elements into the same memory."""
        array = data.numpy() if isinstance(data, OrtValue) else data
        if not isinstance(array, np.ndarray) or array.shape != self._array.shape or array.dtype != self._array.dtype:
            got = f"{array.dtype}{[*array.shape]}" if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(
                f"an OrtValue of {self._array.dtype}{self.shape()} needs arrays of that type and shape, got {got}"
            )
        self._array[...] = array


def _element_type(array: np.ndarray) -> str:
    """Returns Pelton's name of an array's element type."""
    return "string" if array.dtype.kind in "OUS" else _dtype_name(array.dtype)


def _type_of(value: Any) -> str:
    """Returns the type of a value in ONNX Runtime's notation."""
    if isinstance(value, np.ndarray):
        return NAMES[_element_type(value)]
    if isinstance(value, list):
        return f"seq({_type_of(value[0])})" if value else "seq()"
    if isinstance(value, dict):
        return f"map({'string' if any(isinstance(k, str) for k in value) else 'int64'},tensor(float))"
    return ""


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies each value of `src` into the memory of the corresponding one of `dst`."""
    if len(src) != len(dst):
        raise InputError(f"expected as many values to copy from as to copy to, got {len(src)} and {len(dst)}")
    for one, other in zip(src, dst):
        other.update_inplace(one)


class HasPorts(Protocol):
    """The methods of a session that a binding calls."""

    def get_inputs(self) -> list[NodeArg]: ...

    def get_outputs(self) -> list[NodeArg]: ...


class IOBinding(InProcess):
    """Arrays bound to a session's inputs and outputs, run after run."""

    def __init__(self, session: HasPorts):
        self.session = session
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, np.ndarray | None] = {}  # None: a fresh array in every run
        self.results: dict[str, np.ndarray] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        self._check_name(name, [a.name for a in self.session.get_inputs()])
        self.inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds the elements at the address `buffer_ptr`; every run reads them."""
        self.bind_cpu_input(name, _array_at(buffer_ptr, device_type, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bind_cpu_input(name, ortvalue._value)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds memory at the address `buffer_ptr`; without an address, every run returns a fresh array."""
        self._check_name(name, [a.name for a in self.session.get_outputs()])
        _check_cpu(device_type)
        if buffer_ptr and (element_type is None or shape is None):
            raise InputError(f"output {name!r} is bound to an address without an element_type and shape; pass both")
        self.outputs[name] = _array_at(buffer_ptr, device_type, element_type, shape or ()) if buffer_ptr else None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._check_name(name, [a.name for a in self.session.get_outputs()])
        self.outputs[name] = ortvalue.numpy()

    def synchronize_inputs(self) -> None:
        """Returns at once: arrays are in CPU memory."""

    def synchronize_outputs(self) -> None:
        """Returns at once: a run returns when its outputs are written."""

    def get_outputs(self) -> list[OrtValue]:
        """Returns the outputs of the last run, in binding order."""
        return [OrtValue(self.results[name]) for name in self.outputs if name in self.results]

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return [copy(self.results[name]) for name in self.outputs if name in self.results]

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()
        self.results = {}

    @staticmethod
    def _check_name(name: str, names: Sequence[str]) -> None:
        if name not in names:
            raise InputError(
                f"Failed to find NodeArg with name: {name}; there are {', '.join(map(repr, names)) or 'none'}"
            )


def _array_at(address: int, device_type: str, element_type: Any, shape: Sequence[int]) -> np.ndarray:
    """Returns the array at an address, whose memory the caller keeps alive."""
    _check_cpu(device_type)
    if (
        not isinstance(address, int)
        or address <= 0
        or any(not isinstance(d, (int, np.integer)) or d < 0 for d in shape)
    ):
        raise InputError(f"memory is bound by its address and a shape of whole numbers, got {address!r} and {shape!r}")
    dtype = numpy_dtype(_dtype_name(element_type))
    if dtype.hasobject:
        raise InputError("strings cannot be bound by their address; use bind_cpu_input")
    memory: Any = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return np.ndarray(tuple(shape), dtype, memory)
