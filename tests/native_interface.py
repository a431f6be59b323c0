"""The public interface of the native library, declared to ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p

import numpy as np

from pelton import native
from pelton.engine.plan import numpy_dtype
from pelton.engine.plan_tables import DTYPES


class Port(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("rank", c_int),
        ("shape", c_int64 * 8),
        ("bytes", c_size_t),
    ]


def interface() -> ctypes.CDLL:
    lib = ctypes.CDLL(native.PATH)
    for name, result, arguments in (
        ("error", c_char_p, []),
        ("load", c_void_p, [c_char_p]),
        ("load_memory", c_void_p, [c_void_p, c_size_t]),
        ("engine_free", None, [c_void_p]),
        ("verify", c_int, [c_void_p]),
        ("name", c_char_p, [c_void_p]),
        ("inputs", c_int, [c_void_p]),
        ("outputs", c_int, [c_void_p]),
        ("input", POINTER(Port), [c_void_p, c_int]),
        ("output", POINTER(Port), [c_void_p, c_int]),
        ("range", c_int, [c_void_p, c_int, c_int, POINTER(c_int64), POINTER(c_int64)]),
        ("context_new", c_void_p, [c_void_p, c_int]),
        ("context_free", None, [c_void_p]),
        ("set_shapes", c_int, [c_void_p, c_void_p]),
        ("context_input", POINTER(Port), [c_void_p, c_int]),
        ("context_output", POINTER(Port), [c_void_p, c_int]),
        ("run", c_int, [c_void_p, c_void_p, c_void_p]),
        ("input_data", c_void_p, [c_void_p, c_int]),
        ("output_data", c_void_p, [c_void_p, c_int]),
        ("steps", c_int, [c_void_p]),
        ("step", c_char_p, [c_void_p, c_int]),
        ("profile", c_int, [c_void_p, c_void_p, c_void_p, POINTER(c_int64)]),
    ):
        function = getattr(lib, f"pelton_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


class Refused(Exception):
    """What pelton_error() says."""


class Session:
    """An engine and a context of it, by the public interface."""

    def __init__(self, data: bytes, threads: int = 0):
        self.lib = interface()
        room = np.zeros(len(data) + 64, np.uint8)
        self.data = room[-room.ctypes.data % 64 :][: len(data)]
        self.data[:] = np.frombuffer(data, np.uint8)
        self.context = None
        self.engine = self.lib.pelton_load_memory(self.data.ctypes.data, len(data))
        if not self.engine:
            raise Refused(self.lib.pelton_error().decode())
        self.context = self.lib.pelton_context_new(self.engine, threads)
        if not self.context:
            raise Refused(self.lib.pelton_error().decode())

    def check(self, result: int) -> None:
        if result:
            raise Refused(self.lib.pelton_error().decode())

    def shape(self, *shapes: tuple[int, ...]) -> None:
        arrays = [(c_int64 * max(1, len(s)))(*s) for s in shapes]
        pointers = (c_void_p * max(1, len(shapes)))(*map(ctypes.addressof, arrays))
        self.check(self.lib.pelton_set_shapes(self.context, pointers))

    def run(self, *inputs: np.ndarray, out: dict[int, np.ndarray] | None = None) -> list[np.ndarray]:
        """out: arrays of some outputs, by their numbers."""
        self.shape(*(a.shape for a in inputs))
        outs = []
        for i in range(self.lib.pelton_outputs(self.engine)):
            port = self.lib.pelton_context_output(self.context, i).contents
            own = np.full(port.shape[: port.rank], 7, numpy_dtype(DTYPES[port.dtype]))
            outs.append((out or {}).get(i, own))
            assert outs[-1].nbytes == port.bytes
        given, taken = ((c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays)) for arrays in (inputs, outs))
        self.check(self.lib.pelton_run(self.context, given, taken))
        return outs

    def results(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Outputs in memory of the context, copied: of a script, the data decides their sizes."""
        self.shape(*(a.shape for a in inputs))
        self.check(
            self.lib.pelton_run(self.context, (c_void_p * max(1, len(inputs)))(*(a.ctypes.data for a in inputs)), None)
        )
        found = []
        for i in range(self.lib.pelton_outputs(self.engine)):
            port = self.lib.pelton_context_output(self.context, i).contents
            dtype, shape = numpy_dtype(DTYPES[port.dtype]), tuple(port.shape[: port.rank])
            data = ctypes.string_at(self.lib.pelton_output_data(self.context, i), port.bytes)
            found.append(np.frombuffer(data, dtype).reshape(shape))
        return found

    def __del__(self) -> None:
        if self.context:
            self.lib.pelton_context_free(self.context)
        if getattr(self, "engine", None):
            self.lib.pelton_engine_free(self.engine)
