"""Numpy arrays at the ports of native programs, by functions that know Python's objects (native/ports.c)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_int64, c_ssize_t, c_void_p, py_object, pythonapi
from functools import lru_cache

import numpy as np

from .binding import library_with_the_lock

PortForm = tuple[str, np.dtype, tuple[int, ...]]
_DISTINCT_KINDS = "biufc"  # kinds of types of which there is one of each size
_FASTCALL = 0x80  # METH_FASTCALL of Python's methodobject.h
_INTERFACE = sys.intern("__array_struct__")
_USED = (
    pythonapi.PyList_GetItem,
    pythonapi.PyTuple_GetItem,
    pythonapi.PyLong_AsVoidPtr,
    pythonapi.PyDict_GetItemWithError,
    pythonapi.PyDict_Size,
    pythonapi.PyDict_New,
    pythonapi.PyDict_SetItem,
    pythonapi.PyObject_CallObject,
    pythonapi.PyObject_Type,
    pythonapi.PyObject_GetAttr,
    pythonapi.PyCapsule_GetPointer,
    pythonapi.Py_IncRef,
    pythonapi.Py_DecRef,
    pythonapi.PyErr_Occurred,
    pythonapi.PyEval_SaveThread,
    pythonapi.PyEval_RestoreThread,
)
_new_function = ctypes.PYFUNCTYPE(py_object, c_void_p, py_object, c_void_p)(("PyCFunction_NewEx", pythonapi))


class _Port(ctypes.Structure):
    _fields_ = [
        ("name", c_void_p),
        ("arguments", c_void_p),
        ("shape", ctypes.POINTER(c_ssize_t)),
        ("rank", c_int),
        ("kind", c_int),
        ("itemsize", c_int),
    ]


class _Callable(ctypes.Structure):
    _fields_ = [
        ("ports", ctypes.POINTER(_Port)),
        ("addresses", c_void_p),
        ("program", c_void_p),
        ("inputs", c_int64),
        ("count", c_int64),
    ]


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = [("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", c_char_p)]


def bind(arrays: list[np.ndarray], inputs: int, ports: ctypes.Array) -> int:
    """Puts where the arrays lie into `ports`. Gives the index of the first one that is not contiguous and aligned or,
    from `inputs` on, may not be written; their number if there is none."""
    return _library().pelton_bind(arrays, inputs, len(arrays), ports)


def callable_of(
    program: int, ports: ctypes.Array, forms: Sequence[PortForm], inputs: int
) -> Callable[[dict], dict[str, np.ndarray] | None] | None:
    """A function that runs a native program on the arrays that a dictionary has by the names of its ports, and gives
    one of fresh arrays; it gives None, and runs nothing, where one is missing or is not what its port takes without a
    copy. None for types that numpy's interface for C does not tell apart. forms: (name, type, shape) of every port,
    inputs first. The program and `ports` are the caller's to keep."""
    if any(dtype.kind not in _DISTINCT_KINDS for _, dtype, _ in forms):
        return None
    described = (_Port * len(forms))()
    given = [(shape, dtype) for _, dtype, shape in forms]
    for at, (name, dtype, shape), arguments in zip(described, forms, given):
        at.name, at.arguments, at.rank, at.kind, at.itemsize = (
            id(name),
            id(arguments),
            len(shape),
            ord(dtype.kind),
            dtype.itemsize,
        )
        at.shape = (c_ssize_t * len(shape))(*shape)
    what = _Callable(described, ctypes.addressof(ports), program, inputs, len(forms))
    method = _call()  # of several threads that come first each has its own
    return _new_function(ctypes.addressof(method), (ctypes.addressof(what), method, what, ports, forms, given), None)


@lru_cache(maxsize=1)
def _library() -> ctypes.PyDLL:
    """The library, knowing Python."""
    library = library_with_the_lock()
    library.pelton_python(
        (c_void_p * (len(_USED) + 4))(
            *(ctypes.cast(f, c_void_p).value for f in _USED), *map(id, (_INTERFACE, np.ndarray, np.empty, None))
        )
    )
    return library


@lru_cache(maxsize=1)
def _call() -> _Method:
    return _Method(b"call", ctypes.cast(_library().pelton_call, c_void_p).value, _FASTCALL, None)
