"""DLPack (dlpack.h): imports arrays of other libraries without a copy, and exports memory of a GPU to them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.engine.plan import NUMPY_NAMES, SIZES
from pelton.errors import InputError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
READ_ONLY = 1  # of the flags of DLManagedTensorVersioned
# the newest requested version; older libraries return tensors without a version
VERSION = (1, 0)
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5}  # DLDataTypeCode
DTYPES = {
    name: (_CODES[np.dtype(n).kind], 8 * SIZES[name]) for name, n in NUMPY_NAMES.items() if np.dtype(n).kind in _CODES
}
DTYPES |= {
    "bool": (6, 8),
    "bf16": (4, 16),
    "f8e4m3fn": (10, 8),
    "f8e4m3fnuz": (11, 8),
    "f8e5m2": (12, 8),
    "f8e5m2fnuz": (13, 8),
    "f8e8m0fnu": (14, 8),
}
_NAMES = {kind: name for name, kind in DTYPES.items()}
# raised by libraries that refuse to export an array
REFUSALS = (AssertionError, BufferError, RuntimeError, TypeError, ValueError)


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


@dataclass(frozen=True, eq=False)
class BorrowedArray:
    """An array as described by DLPack, kept alive by `keeper`. `strides` in elements; None if it is dense."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    writable: bool
    keeper: Any


def device_of(value: Any, what: str) -> tuple[int, int]:
    """Returns DLDeviceType and number of an array's device; (0, 0) without DLPack. Raises InputError if it fails."""
    if not hasattr(value, "__dlpack_device__"):
        return 0, 0
    try:
        kind, ordinal = value.__dlpack_device__()
    except REFUSALS as e:
        raise InputError(f"{what} cannot be read by DLPack: {e}") from None
    return int(kind), int(ordinal)


def import_array(value: Any, what: str, **arguments: Any) -> BorrowedArray:
    """Imports the array exported by `value.__dlpack__(**arguments)`; InputError if it refuses, or for other types."""
    try:
        try:
            capsule = value.__dlpack__(**arguments, max_version=VERSION)
        except TypeError:  # a library older than versions
            capsule = value.__dlpack__(**arguments)
        versioned = _is_valid(id(capsule), b"dltensor_versioned")
        # the capsule is not consumed: its producer releases the tensor with it
        address = _get_pointer(id(capsule), b"dltensor_versioned" if versioned else b"dltensor")
    except REFUSALS as e:
        raise InputError(f"{what} cannot be read by DLPack: {e}") from None
    managed = ctypes.cast(address, ctypes.POINTER(_Versioned if versioned else _Managed)).contents
    if versioned and managed.major != VERSION[0]:
        raise InputError(f"{what} has DLPack version {managed.major}.{managed.minor}, expected {VERSION[0]}.x")
    tensor = managed.tensor
    if tensor.lanes != 1 or (tensor.code, tensor.bits) not in _NAMES:
        raise InputError(
            f"{what} has unsupported elements: DLPack type {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        )
    rank = range(tensor.ndim)
    return BorrowedArray(
        (tensor.data or 0) + tensor.byte_offset,
        _NAMES[tensor.code, tensor.bits],
        tuple(tensor.shape[i] for i in rank),
        tuple(tensor.strides[i] for i in rank) if tensor.strides else None,
        not (versioned and managed.flags & READ_ONLY),
        (capsule, value),
    )


def dense(shape: Sequence[int]) -> list[int]:
    """Returns the strides, in elements, of an array of this shape that is contiguous in C order."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


# address of an exported DLManagedTensor → the objects it refers to, until its consumer deletes it
_exported: dict[int, tuple[Any, ...]] = {}


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(managed: int, exported: dict[int, tuple[Any, ...]] = _exported) -> None:
    exported.pop(managed, None)


# consumers may outlive this module when the interpreter ends
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_delete))


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _unused(capsule: int) -> None:
    """Destroys a capsule; one that still has its first name was not consumed."""
    if _is_valid(capsule, b"dltensor"):
        _exported.pop(_get_pointer(capsule, b"dltensor"), None)


_NAME = ctypes.c_char_p(b"dltensor")  # capsules keep the address of their name


def capsule(address: int, dtype: str, shape: Sequence[int], ordinal: int, keeper: Any) -> Any:
    """Creates a DLPack capsule over dense memory of GPU `ordinal`, which keeps `keeper` alive."""

    def longs(numbers: Sequence[int]) -> Any:
        return (ctypes.c_int64 * max(len(numbers), 1))(*numbers)

    sizes, strides = longs(shape), longs(dense(shape))
    code, bits = DTYPES[dtype]
    tensor = _Tensor(
        address,
        CUDA,
        ordinal,
        len(shape),
        code,
        bits,
        1,
        ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
        0,
    )
    managed = _Managed(tensor, None, _delete)
    at = ctypes.addressof(managed)
    _exported[at] = (managed, sizes, strides, keeper)
    return _new(at, _NAME, ctypes.cast(_unused, ctypes.c_void_p))
