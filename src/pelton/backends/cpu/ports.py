"""Binds numpy arrays to the ports of native programs, by native functions on Python objects (native/ports.c)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_int64, c_ssize_t, c_void_p, py_object, pythonapi
from functools import lru_cache

import numpy as np

from pelton.engine.plan import Port

from pelton.native import library_with_the_lock

PortForm = tuple[str, np.dtype, tuple[int, ...]]
_DISTINCT_KINDS = "biufc"  # numpy's kinds with one type of each size
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


class _Indices(ctypes.Structure):
    _fields_ = [("input", c_int64), ("low", c_int64), ("high", c_int64)]


class _Callable(ctypes.Structure):
    _fields_ = [
        ("ports", ctypes.POINTER(_Port)),
        ("addresses", c_void_p),
        ("program", c_void_p),
        ("inputs", c_int64),
        ("count", c_int64),
        ("indices", ctypes.POINTER(_Indices)),
        ("indexing", c_int64),
    ]


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = [("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", c_char_p)]


def index_table(inputs: Sequence[Port]) -> ctypes.Array:
    """Builds the table of bounds of index inputs for `bind` and `callable_of`."""
    rows = [_Indices(i, p.indices.low, p.indices.high) for i, p in enumerate(inputs) if p.indices is not None]
    return (_Indices * len(rows))(*rows)


def bind(arrays: list[np.ndarray], inputs: int, ports: ctypes.Array, indices: ctypes.Array) -> int:
    """Writes the addresses of the arrays into `ports`. Returns the index of the first array that is not contiguous and
    aligned, has elements out of bounds or, from `inputs` on, is not writable; the number of arrays if all fit."""
    return _library().pelton_bind(arrays, inputs, len(arrays), ports, indices, len(indices))


def callable_of(
    program: int, ports: ctypes.Array, forms: Sequence[PortForm], inputs: int, indices: ctypes.Array
) -> Callable[[dict], dict[str, np.ndarray] | None] | None:
    """Returns a function that runs a native program on a dictionary of input arrays by name and returns one of new
    output arrays. It returns None, without a run, if an array is missing, needs a copy to fit its port, or has an index
    out of bounds.

    forms: name, type and shape of every port, the `inputs` inputs first. The caller keeps program and `ports` alive.
    Returns None for types that numpy's C interface does not distinguish.
    """
    if any(dtype.kind not in _DISTINCT_KINDS for _, dtype, _ in forms):
        return None
    described = (_Port * len(forms))()
    pairs = [(shape, dtype) for _, dtype, shape in forms]
    for at, (name, dtype, shape), arguments in zip(described, forms, pairs):
        at.name, at.arguments, at.rank, at.kind, at.itemsize = (
            id(name),
            id(arguments),
            len(shape),
            ord(dtype.kind),
            dtype.itemsize,
        )
        at.shape = (c_ssize_t * len(shape))(*shape)
    what = _Callable(described, ctypes.addressof(ports), program, inputs, len(forms), indices, len(indices))
    method = _call()  # concurrent threads may each have their own
    return _new_function(ctypes.addressof(method), (ctypes.addressof(what), method, what, ports, forms, pairs), None)


@lru_cache(maxsize=1)
def _library() -> ctypes.PyDLL:
    """Returns the native library, with the Python functions that it calls set."""
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
