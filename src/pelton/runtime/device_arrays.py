"""Arrays on a GPU, in and out without a copy: DLPack and `__cuda_array_interface__`, of any library."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.backends.cuda.device import Device
from pelton.engine.engine import NUMPY_NAMES, SIZES, Port, numpy_dtype
from pelton.errors import InputError

from .arrays import check_shape

LEGACY = 1                                     # the default stream, where libraries know streams by numbers and 0 would be ambiguous (CU_STREAM_LEGACY)
ALIGN = 16                                     # bytes: kernels load so many at once; what does not lie so is copied on the GPU
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13           # DLDeviceType (dlpack.h)
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5}      # DLDataTypeCode
_DLPACK = {name: (_CODES[np.dtype(n).kind], 8 * SIZES[name]) for name, n in NUMPY_NAMES.items() if np.dtype(n).kind in _CODES}
_DLPACK |= {"bool": (6, 8), "bf16": (4, 16), "f8e4m3fn": (10, 8), "f8e4m3fnuz": (11, 8), "f8e5m2": (12, 8), "f8e5m2fnuz": (13, 8), "f8e8m0fnu": (14, 8)}
_NAMES = {kind: name for name, kind in _DLPACK.items()}
_TYPESTR = {np.dtype(n).str: name for name, n in NUMPY_NAMES.items() if name != "string"}


class _Tensor(ctypes.Structure):
    """DLTensor (dlpack.h)."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    """DLManagedTensor (dlpack.h)."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


@dataclass(frozen=True, eq=False)
class Foreign:
    """Memory of a GPU that somebody else keeps: an array as its library describes it. `strides` in elements; `stream`: what fills it is in order there."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: Sequence[float] | None
    writable: bool
    ordinal: int | None
    stream: int | None
    keeper: Any

    def check(self, port: Port, what: str, device: Device) -> None:
        """InputError unless it is what the port needs, on this device."""
        needs = f"{what} needs {port}"
        if self.dtype != port.dtype:
            raise InputError(f"{needs}, given {self.dtype} on the GPU; convert it there, results and inputs are not converted")
        check_shape(port, self.shape, needs)
        if 0 in self.shape:
            return
        if self.strides is not None and any(s != d for n, s, d in zip(self.shape, self.strides, _dense(self.shape)) if n != 1):
            raise InputError(f"{needs} contiguous in C order, given strides {list(self.strides)} (in elements) for shape {list(self.shape)}; "
                             "make it so with .contiguous() (torch) or ascontiguousarray")
        owner = device.owner(self.address) if self.ordinal in (None, device.ordinal) else self.ordinal
        if owner is None:
            raise InputError(f"{needs}, given an address ({self.address:#x}) that is no memory of a GPU")
        if owner != device.ordinal:
            raise InputError(f"{needs} on GPU {device.ordinal} ({device.name}), which this engine runs on, given an array on GPU {owner}; "
                             f"copy it there, or load the engine with device={owner}")


def _dense(shape: Sequence[int]) -> list[int]:
    """Strides in elements of an array that is contiguous in C order."""
    return [math.prod(shape[i + 1:]) for i in range(len(shape))]


def taken(value: Any, what: str, stream: int) -> Any:
    """An array of a GPU as `Foreign`, what fills it ordered before what comes on our stream (by who made it, or by `Foreign.stream`); an array of another
    library in the memory of the CPU as numpy's; anything else as it is."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    if hasattr(value, "__dlpack_device__"):
        kind, ordinal = value.__dlpack_device__()
        if kind in (CUDA, CUDA_MANAGED):
            return _from_dlpack(value, what, stream, int(ordinal))
        if kind not in (CPU, CUDA_HOST):
            raise InputError(f"{what} lies on a device of DLPack's kind {int(kind)}; arrays may lie in the memory of the CPU or of an NVIDIA GPU")
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as e:
            raise InputError(f"{what} cannot be read by DLPack: {e}") from None
    if hasattr(value, "__cuda_array_interface__"):
        return _from_interface(value, what)
    return value


def _from_dlpack(value: Any, what: str, stream: int, ordinal: int) -> Foreign:
    try:
        capsule = value.__dlpack__(stream=stream)                    # the maker sees to it that our stream waits for theirs
        address = _get_pointer(id(capsule), b"dltensor")             # it stays the maker's, who takes it back when the capsule goes
    except (AssertionError, BufferError, RuntimeError, TypeError, ValueError) as e:
        raise InputError(f"{what} cannot be read by DLPack: {e}") from None
    tensor = ctypes.cast(address, ctypes.POINTER(_Managed)).contents.tensor
    if tensor.lanes != 1 or (tensor.code, tensor.bits) not in _NAMES:
        raise InputError(f"{what} has elements of DLPack's kind {tensor.code} with {tensor.bits} bits, {tensor.lanes} at a time, which no engine takes")
    rank = range(tensor.ndim)
    return Foreign((tensor.data or 0) + tensor.byte_offset, _NAMES[tensor.code, tensor.bits], tuple(tensor.shape[i] for i in rank),
                   tuple(tensor.strides[i] for i in rank) if tensor.strides else None, True, ordinal, None, (capsule, value))


def _from_interface(value: Any, what: str) -> Foreign:
    try:
        told = value.__cuda_array_interface__
        name, shape, strides = _TYPESTR[told["typestr"]], tuple(map(int, told["shape"])), told.get("strides")
        address, fixed = told["data"]
        stream = told.get("stream")
        steps = None if strides is None else tuple(int(s) / SIZES[name] for s in strides)
        if len(shape) != len(steps or shape) or told.get("mask") is not None or stream == 0:
            raise ValueError("it has a mask, the stream 0, or strides that are not those of its shape")
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as e:
        raise InputError(f"{what} cannot be read by its __cuda_array_interface__ ({type(e).__name__}: {e})") from None
    return Foreign(int(address or 0), name, shape, steps, not fixed, None, stream, value)


class DeviceArray:
    """A result on the GPU, for other libraries by DLPack and `__cuda_array_interface__`. It is memory of its context, which the context's next run writes
    again, and filled when what has been put on the context's `stream` is done."""

    def __init__(self, port: Port, address: int, memory: Any, device: Device, stream: int):
        self.dtype, self.shape, self.nbytes, self.address = port.dtype, tuple(map(int, port.shape)), port.nbytes, address
        self.stream, self._memory, self._device = stream, memory, device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype not in NUMPY_NAMES:
            raise AttributeError(f"__cuda_array_interface__ has no name for {self.dtype}; DLPack has")
        return {"shape": self.shape, "typestr": numpy_dtype(self.dtype).str, "data": (self.address if self.nbytes else 0, False), "strides": None,
                "version": 3, "stream": self.stream}

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._device.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """A capsule with a DLManagedTensor; work that comes later on `stream` (None: the legacy default stream, -1: no matter) waits for the array."""
        if self.dtype not in _DLPACK:
            raise BufferError(f"DLPack has no elements of {self.dtype}")
        if stream != -1:
            with self._device as device:
                filled = device.event()
                device.record(filled, self.stream)
                device.wait(LEGACY if stream is None else stream, filled)
        return _capsule(self)

    def numpy(self) -> np.ndarray:
        """A copy in the memory of the CPU; waits for the array to be filled."""
        array = np.empty(self.shape, numpy_dtype(self.dtype))
        with self._device as device:
            if self.nbytes:
                device.download(array.__array_interface__["data"][0], self.address, self.nbytes, self.stream)
            device.synchronize(self.stream)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on the GPU cannot become numpy's without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<pelton.DeviceArray {self.dtype}{list(self.shape)} on GPU {self._device.ordinal}>"


_given: dict[int, tuple[Any, ...]] = {}        # address of a DLManagedTensor → what it needs, until its consumer is done with it


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(managed: int, given: dict[int, tuple[Any, ...]] = _given) -> None:
    given.pop(managed, None)


ctypes.pythonapi.Py_IncRef(ctypes.py_object(_delete))        # consumers may outlive this module when the interpreter ends


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _unused(capsule: int) -> None:
    """The destructor of capsules: nobody has taken what is in one that still has its first name."""
    if _is_valid(capsule, b"dltensor"):
        _given.pop(_get_pointer(capsule, b"dltensor"), None)


_NAME = ctypes.c_char_p(b"dltensor")           # capsules keep the address of their name


def _capsule(array: DeviceArray) -> Any:
    """`array` in a capsule of DLPack, which keeps its memory."""
    def longs(numbers: Sequence[int]) -> Any:
        return (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
    shape, strides = longs(array.shape), longs(_dense(array.shape))
    code, bits = _DLPACK[array.dtype]
    tensor = _Tensor(array.address, CUDA, array._device.ordinal, len(array.shape), code, bits, 1, ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
                     ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)), 0)
    managed = _Managed(tensor, None, _delete)
    address = ctypes.addressof(managed)
    _given[address] = (managed, shape, strides, array._memory)
    return _new(address, _NAME, ctypes.cast(_unused, ctypes.c_void_p))
