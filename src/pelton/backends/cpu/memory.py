"""Memory for activations and constants: on cache lines, in huge pages where it is large."""
from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from ctypes import c_int, c_long, c_ssize_t, c_void_p, pythonapi

import numpy as np

from pelton.errors import EngineError

from .binding import library_with_the_lock

LINE = 64
HUGE_PAGE = 2 << 20
POPULATE_READ = 22                                       # MADV_POPULATE_READ of madvise(2), Linux 5.14 and newer


def allocate(size: int) -> np.ndarray:
    """`size` bytes of zeros as a uint8 array that starts on a cache line (on a huge page from 2 MB). EngineError where there is no such memory."""
    slack = HUGE_PAGE if size >= HUGE_PAGE else 0
    try:
        room = mmap.mmap(-1, max(size + slack, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)   # private: a forked child gets its own
    except (OSError, OverflowError, ValueError) as e:
        raise EngineError(f"the engine needs {size / 1e6:.1f} MB of memory, which the system refuses ({e})") from None
    if slack:
        try:
            room.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            slack = 0                                    # a kernel without huge pages: ordinary ones do
    whole = np.frombuffer(room, np.uint8)
    start = -address(whole) % HUGE_PAGE if slack else 0
    return whole[start:start + size]


def address(array: np.ndarray) -> int:
    """Where an array's first element lies."""
    return array.__array_interface__["data"][0]


def bind(arrays: list[np.ndarray], inputs: int, ports: ctypes.Array) -> int:
    """Puts where the arrays lie into `ports`. Gives the index of the first one that is not contiguous and aligned or, from `inputs` on, may not be written;
    their number if there is none."""
    return library_with_the_lock().pelton_bind(_PYTHON, arrays, inputs, len(arrays), ports)


def callable_of(program: int, ports: ctypes.Array, looks: Sequence[tuple[str, np.dtype, tuple[int, ...]]], inputs: int) -> Callable[[dict, dict], bool] | None:
    """A function that runs a native program on the arrays that two dictionaries, of inputs and of outputs, have by the names of its ports, and says whether it
    has: it has not where one is missing or is not what its port takes without a copy. None for types that numpy's interface for C does not tell apart.
    looks: (name, type, shape) of every port."""
    if any(dtype.kind not in _TOLD for _, dtype, _ in looks):
        return None
    described = (_Port * len(looks))()
    for at, (name, dtype, shape) in zip(described, looks):
        at.name, at.rank, at.kind, at.itemsize = id(name), len(shape), ord(dtype.kind), dtype.itemsize
        at.shape = (c_ssize_t * len(shape))(*shape)
    what = _Callable(ctypes.addressof(_PYTHON), described, ctypes.addressof(ports), program, inputs, len(looks))
    what.kept = described, ports, looks                  # it has but their addresses
    function, place = library_with_the_lock().pelton_call, ctypes.byref(what)
    return lambda given, made: function(place, given, made)


class _Port(ctypes.Structure):
    _fields_ = [("name", c_void_p), ("shape", ctypes.POINTER(c_ssize_t)), ("rank", c_int), ("kind", c_int), ("itemsize", c_int)]


class _Callable(ctypes.Structure):
    _fields_ = [("api", c_void_p), ("ports", ctypes.POINTER(_Port)), ("places", c_void_p), ("program", c_void_p), ("inputs", c_long), ("count", c_long)]


_TOLD = "biufc"                                          # kinds of types of which there is one of each size
_INTERFACE = sys.intern("__array_struct__")
_USED = (pythonapi.PyList_GetItem, pythonapi.PyDict_GetItemWithError, pythonapi.PyDict_Size, pythonapi.PyObject_Type, pythonapi.PyObject_GetAttr,
         pythonapi.PyCapsule_GetPointer, pythonapi.Py_IncRef, pythonapi.Py_DecRef, pythonapi.PyEval_SaveThread, pythonapi.PyEval_RestoreThread)
_PYTHON = (c_void_p * 12)(*(ctypes.cast(f, c_void_p).value for f in _USED), id(_INTERFACE), id(np.ndarray))


def populate(array: np.ndarray) -> None:
    """Has the pages under an array of a mapped file mapped all at once. Where the system does not know how, or refuses, they are one by one, when they are
    first read: with 134 MB of weights a first run took 58, 56 and 39 ms after that, 38, 31 and 42 after 6 to 10 ms for this."""
    start = address(array) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(c_void_p(start), ctypes.c_size_t(address(array) + array.nbytes - start), POPULATE_READ)


def aligned(data) -> np.ndarray:
    """The bytes of any buffer as a uint8 array on a cache line: the buffer itself where it lies so, else a copy."""
    view = np.frombuffer(data, np.uint8) if len(memoryview(data)) else np.empty(0, np.uint8)
    if address(view) % LINE == 0:
        return view
    room = allocate(view.size)
    room[:] = view
    return room
