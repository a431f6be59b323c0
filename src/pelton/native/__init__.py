"""The native library and its ctypes declarations."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from ctypes import (
    POINTER,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_uint32,
    c_void_p,
    py_object,
)
from functools import lru_cache
from typing import TypeVar

from pelton.errors import EngineError

PATH = os.path.join(os.path.dirname(__file__), "libpelton.so")

_Library = TypeVar("_Library", bound=ctypes.CDLL)
_SIGNATURES = {
    "pelton_program": (c_void_p, [c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "pelton_program_free": (None, [c_void_p]),
    "pelton_program_run": (None, [c_void_p, c_void_p]),
    "pelton_program_profile": (None, [c_void_p, c_void_p, c_void_p]),
    "pelton_program_time": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
    "pelton_file_check": (c_bool, [c_void_p, c_size_t, c_char_p]),
    "pelton_plan_new": (c_void_p, [c_char_p, c_size_t, c_int64, c_char_p]),
    "pelton_plan_free": (None, [c_void_p]),
    "pelton_plan_resolve": (c_bool, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_char_p]),
    "pelton_engine_of": (c_void_p, [c_void_p, c_char_p, c_size_t, c_void_p, c_char_p]),
    "pelton_engine_free": (None, [c_void_p]),
    "pelton_context_of": (c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "pelton_context_free": (None, [c_void_p]),
    "pelton_prepare": (c_void_p, [c_void_p, c_void_p, POINTER(c_bool), c_char_p]),
    "pelton_prepared_free": (None, [c_void_p]),
    "pelton_prepared_shapes": (None, [c_void_p, c_void_p]),
    "pelton_prepared_buffer": (c_void_p, [c_void_p, c_int32]),
    "pelton_prepared_program": (c_void_p, [c_void_p, c_int32, c_int32]),
    "pelton_sha256": (None, [c_char_p, c_size_t, c_bool, c_char_p]),
    "pelton_suppress": (
        c_int64,
        [c_void_p, c_void_p, c_int64, c_float, c_float, c_bool, c_int64, c_void_p, c_void_p, c_void_p],
    ),
    "pelton_code_load": (c_void_p, [c_void_p, c_size_t, c_char_p, c_char_p, c_size_t]),
    "pelton_code_symbol": (c_void_p, [c_void_p, c_char_p]),
    "pelton_code_unload": (None, [c_void_p]),
    "pelton_cpuid": (None, [c_uint32, c_uint32, c_uint32 * 4]),
    "pelton_cpu_feature": (c_char_p, [c_size_t]),
    "pelton_cpu_model": (None, [c_char_p]),
    "pelton_cpu_architecture": (c_char_p, []),
}
_WITH_THE_LOCK = {  # these use Python objects
    "pelton_python": (None, [c_void_p]),
    "pelton_bind": (c_int64, [py_object, c_int64, c_int64, c_void_p, c_void_p, c_int64]),
    "pelton_call": (py_object, [py_object, c_void_p, c_ssize_t]),
}
REASON = 512  # maximum bytes of a reason for a rejection
Stamps = c_int64  # the type of time stamps and times


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Returns the loaded library; raises EngineError if it is not installed. Calls release the interpreter's lock."""
    return _open(ctypes.CDLL, _SIGNATURES)


@lru_cache(maxsize=1)
def library_with_the_lock() -> ctypes.PyDLL:
    """Returns the same library for calls that keep the interpreter's lock."""
    return _open(ctypes.PyDLL, _WITH_THE_LOCK)


def _open(kind: type[_Library], signatures: Mapping[str, tuple]) -> _Library:
    try:
        lib = kind(PATH)
    except OSError as e:
        raise EngineError(
            f"the native library of the runtime cannot be loaded ({e}); install Pelton again, or in a source tree run "
            "`pip install -e .`"
        ) from None
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Handle:
    """A native object, freed when this one is collected; not at exit, where threads may still use it."""

    def __init__(self, address: int, kind: str):
        self.address = address
        weakref.finalize(self, getattr(library(), f"pelton_{kind}_free"), address).atexit = False
