"""cuBLASLt, the library of its wheel (nvidia-cublas) or of the system, by ctypes: its version, and products by its
proposed algorithms.

The numbers are those of cublasLt.h, the same from CUDA 11.4 to 13. The library works in columns, and computes Dᵀ = Bᵀ ·
Aᵀ.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from pelton.engine.library import spoken
from pelton.engine.product import MatmulDescriptor
from pelton.engine.work import CHOICES, KINDS
from pelton.errors import EngineError

from .wheels import located

# workspace bytes of an algorithm, as recommended by NVIDIA for GPUs of sm_90
WORKSPACE = 32 << 20
_TYPES = {"f32": 0, "tf32": 0, "f16": 2, "bf16": 14}  # CUDA_R_32F, …
_ENDS = (1, 2, 32)  # CUBLASLT_EPILOGUE_DEFAULT, RELU, GELU (by tanh); BIAS is 4 more
_SUMS_IN_F32, _OF_TF32 = 68, 77  # CUBLAS_COMPUTE_32F: of f32 without TF32; CUBLAS_COMPUTE_32F_FAST_TF32
# CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: parts of sums in f32, added in one order
_IN_WORKSPACE = 2
_TRANSA, _TRANSB, _EPILOGUE, _BIAS, _BIAS_TYPE = 3, 4, 7, 8, 26  # CUBLASLT_MATMUL_DESC_…
_BATCH, _STEP = 5, 6  # CUBLASLT_MATRIX_LAYOUT_…
_MOST_WORKSPACE, _REDUCTIONS, _LEAST_ALIGNED = 1, 3, (5, 6, 7, 8)  # CUBLASLT_MATMUL_PREF_…
_STATUS = {
    1: "it is not initialized",
    3: "it is out of memory",
    7: "a value is not valid",
    8: "the GPU is not of an architecture that it knows",
    11: "memory cannot be reached",
    13: "a kernel failed",
    14: "an internal error",
    15: "it does not support that",
    16: "a license is missing",
}


class Heuristic(ctypes.Structure):
    """A proposed algorithm of the library: cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", c_char * 64),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "Create": (c_void_p,),
    "Destroy": (c_void_p,),
    "MatmulDescCreate": (c_void_p, c_int, c_int),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulDescDestroy": (c_void_p,),
    "MatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutDestroy": (c_void_p,),
    "MatmulPreferenceCreate": (c_void_p,),
    "MatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulPreferenceDestroy": (c_void_p,),
    "MatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, POINTER(Heuristic), POINTER(c_int)),
    "Matmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


@lru_cache(maxsize=1)
def loaded() -> ctypes.CDLL:
    """Returns the library. Raises EngineError if it is missing."""
    return bound(located("cublasLt", "cuBLASLt", "nvidia-cublas"))


def bound(path: str) -> ctypes.CDLL:
    """Loads the library in a file and declares its functions. Raises EngineError for another file."""
    try:
        library = ctypes.CDLL(path)
        for name, parameters in _PARAMETERS.items():
            getattr(library, "cublasLt" + name).argtypes = parameters
        library.cublasLtGetVersion.restype = c_size_t
    except (OSError, AttributeError) as e:
        raise EngineError(f"{path} is no cuBLASLt ({e}); install it by pip install nvidia-cublas") from None
    return library


@lru_cache(maxsize=1)
def version() -> int:
    """Returns the version of the library here, as 130100. Raises EngineError if it is missing."""
    return int(loaded().cublasLtGetVersion())


class CublasLtLibrary:
    """cuBLASLt for the GPU whose context is this thread's, now and at each use."""

    def __init__(self, library: ctypes.CDLL):
        self.functions = library
        self.version = int(library.cublasLtGetVersion())
        self.handle = self.made(self, "Create", "Destroy")

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.functions, "cublasLt" + name)(*arguments)
        if status:
            raise EngineError(
                f"cuBLASLt {spoken(self.version)} refuses cublasLt{name}:"
                f" {_STATUS.get(status, 'for no reason that is known')} (status {status})"
            )

    def made(self, owner: object, create: str, destroy: str, *arguments: Any) -> c_void_p:
        """Creates a handle of the library, destroyed with its owner."""
        handle = c_void_p()
        self.call(create, byref(handle), *arguments)
        function: Callable[[c_void_p], int] = getattr(self.functions, "cublasLt" + destroy)
        weakref.finalize(owner, function, handle).atexit = False
        return handle

    def plan(self, product: MatmulDescriptor, aligned: Sequence[int]) -> CublasLtPlan:
        """Prepares a product. Raises EngineError if this version is not the one that was timed, or cannot compute
        it."""
        if product.version != self.version:
            raise EngineError(f"cuBLASLt {spoken(self.version)} is installed")
        return CublasLtPlan(self, product, aligned)


class CublasLtPlan:
    """A product by an algorithm, called with the parameters of a step and a stream. `workspace`: its bytes. aligned:
    for each operand, the alignment of its address."""

    def __init__(self, library: CublasLtLibrary, product: MatmulDescriptor, aligned: Sequence[int]):
        self.library, self.product = library, product
        p, kind, out = product, _TYPES[KINDS[product.kind]], _TYPES[KINDS[product.out]]
        # the bias' address is the descriptor's, which contexts of all threads share
        self._setting = threading.Lock()
        self._what = library.made(
            self,
            "MatmulDescCreate",
            "MatmulDescDestroy",
            _OF_TF32 if KINDS[p.kind] == "tf32" else _SUMS_IN_F32,
            _TYPES["f32"],
        )
        self._set(self._what, _TRANSA, c_int32(p.b_transposed))
        self._set(self._what, _TRANSB, c_int32(p.a_transposed))
        self._set(self._what, _EPILOGUE, c_uint32(_ENDS[p.end] & ~1 | 4 if p.bias else _ENDS[p.end]))
        a, b, *more, d = aligned
        if p.bias:
            self._set(self._what, _BIAS_TYPE, c_int32(out))
            # the library derives alignment from the address (its manual)
            self._set(self._what, _BIAS, c_uint64(more[0]))
        self._a = self._layout(kind, (p.m, p.k) if p.a_transposed else (p.k, p.m), p.a_line, p.a_step)
        self._b = self._layout(kind, (p.k, p.n) if p.b_transposed else (p.n, p.k), p.b_line, p.b_step)
        self._d = self._layout(out, (p.n, p.m), p.d_line, p.d_step)
        self._c = self._layout(out, (p.n, p.m), p.c_line, p.c_step) if p.added else self._d
        self._scale, self._beta = c_float(struct.unpack("f", struct.pack("I", p.scale))[0]), c_float(p.added)
        self._found = self._proposed((b, a, more[-1] if p.added else d, d))
        self.workspace = int(self._found.workspace)

    def _set(self, thing: c_void_p, attribute: int, value: Any, kind: str = "MatmulDesc") -> None:
        self.library.call(kind + "SetAttribute", thing, attribute, byref(value), ctypes.sizeof(value))

    def _layout(self, kind: int, lengths: tuple[int, int], line: int, step: int) -> c_void_p:
        """Describes a matrix in columns: their length and number."""
        made = self.library.made(self, "MatrixLayoutCreate", "MatrixLayoutDestroy", kind, *lengths, line)
        if self.product.batch > 1:
            self._set(made, _BATCH, c_int32(self.product.batch), "MatrixLayout")
            self._set(made, _STEP, c_int64(step), "MatrixLayout")
        return made

    def _proposed(self, aligned: Sequence[int]) -> Heuristic:
        """Returns the chosen algorithm among the library's proposals, for matrices in its own order."""
        wants = self.library.made(self, "MatmulPreferenceCreate", "MatmulPreferenceDestroy")
        self._set(wants, _MOST_WORKSPACE, c_uint64(WORKSPACE), "MatmulPreference")
        self._set(wants, _REDUCTIONS, c_uint32(_IN_WORKSPACE), "MatmulPreference")
        for attribute, nbytes in zip(_LEAST_ALIGNED, aligned):
            self._set(wants, attribute, c_uint32(nbytes), "MatmulPreference")
        heuristics, count = (Heuristic * CHOICES)(), c_int()
        self.library.call(
            "MatmulAlgoGetHeuristic",
            self.library.handle,
            self._what,
            self._b,
            self._a,
            self._c,
            self._d,
            wants,
            CHOICES,
            heuristics,
            byref(count),
        )
        chosen = heuristics[self.product.choice]
        if self.product.choice >= count.value or chosen.status or chosen.workspace > WORKSPACE:
            p = self.product
            raise EngineError(
                f"cuBLASLt {spoken(self.library.version)} proposes {count.value} algorithms for a product of"
                f" {p.m}×{p.k} by {p.k}×{p.n}, number {p.choice} was asked for"
            )
        return chosen

    def __call__(self, words: np.ndarray, stream: int) -> None:
        """Enqueues the product on a stream; the words are the addresses of its operands, its dims and the two trailing
        pointers."""
        p = self.product
        a, b, *more, d = words[: 3 + p.bias + p.added].tolist()
        with self._setting:
            if p.bias:
                self._set(self._what, _BIAS, c_uint64(more[0]))
            self.library.call(
                "Matmul",
                self.library.handle,
                self._what,
                byref(self._scale),
                b,
                self._b,
                a,
                self._a,
                byref(self._beta),
                more[-1] if p.added else d,
                self._c,
                d,
                self._d,
                byref(self._found),
                int(words[-2]) if self.workspace else None,
                self.workspace,
                stream,
            )
