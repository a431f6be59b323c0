"""cuDNN, the library of its wheel (nvidia-cudnn) or of the system, by ctypes: its version, and convolutions by its
proposed engines.

The numbers are those of cudnn_graph.h, the same in all of cuDNN 9. An operation graph defines the computation: a
convolution, then sums with Z and with the bias, then ReLU. In this order the library has kernels for all of it at once;
others, and sums or ReLU without a bias, would need compilation.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from ctypes import byref, c_bool, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from pelton.engine.convolution import ConvolutionDescriptor
from pelton.engine.library import spoken
from pelton.engine.work import ENDS, KINDS
from pelton.errors import EngineError

from . import cublaslt
from .wheels import located

MAJOR = 9  # of the library whose numbers these are
WORKSPACE = 64 << 20  # maximum workspace bytes of an engine
PROPOSED = 8  # number of examined engines, the most promising first
_TYPES = {"f32": 0, "tf32": 0, "f16": 2, "bf16": 9}  # CUDNN_DATA_FLOAT, …
(
    _POINTWISE,
    _CONVOLUTION,
    _ENGINE,
    _CONFIG,
    _HEURISTICS,
    _PLAN,
    _FORWARD,
    _APPLY,
    _GRAPH,
    _POINTERS,
    _TENSOR,
    _DEVICE,
) = (
    0,
    1,
    2,
    3,
    4,
    5,
    10,
    13,
    15,
    16,
    17,
    38,
)  # CUDNN_BACKEND_…_DESCRIPTOR
_HANDLE, _KIND, _FLAG, _I64, _F32, _POINTER, _CROSS, _MODE, _NOTE, _POINTWISE_MODE, _DESCRIPTOR, _BEHAVIOUR, _TEXT = (
    (0, c_void_p),
    (1, c_int),
    (2, c_bool),
    (3, c_int64),
    (4, c_float),
    (6, c_void_p),
    (7, c_int),
    (8, c_int),
    (11, c_int),
    (14, c_int),
    (15, c_void_p),
    (19, c_int),
    (24, c_char),
)  # CUDNN_TYPE_…
_ADD, _RELU = 0, 100  # CUDNN_POINTWISE_…
# CUDNN_CROSS_CORRELATION, CUDNN_HEUR_MODE_A
_CORRELATION, _BY_RULES = 1, 3
# CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION
_TENSOR_CORES, _COMPILES = 0, 0
# Inputs or sums rounded to fewer digits, Fourier transforms, a different order of sums every time, and Winograd's
# transforms.
_INEXACT = frozenset(range(1, 9))
_X, _W, _BIAS, _Z, _Y, _BETWEEN = 1, 2, 3, 4, 5, 6  # our own names of tensors

_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "Create": (c_void_p,),
    "Destroy": (c_void_p,),
    "SetStream": (c_void_p, c_void_p),
    "GetLastErrorString": (c_void_p, c_size_t),
    "BackendCreateDescriptor": (c_int, c_void_p),
    "BackendDestroyDescriptor": (c_void_p,),
    "BackendSetAttribute": (c_void_p, c_int, c_int, c_int64, c_void_p),
    "BackendGetAttribute": (c_void_p, c_int, c_int, c_int64, c_void_p, c_void_p),
    "BackendFinalize": (c_void_p,),
    "BackendExecute": (c_void_p, c_void_p, c_void_p),
}


@lru_cache(maxsize=1)
def loaded() -> ctypes.CDLL:
    """Returns the library. Raises EngineError if it or one of its dependencies is missing."""
    library = bound(located("cudnn", "cuDNN", "nvidia-cudnn-cu13"))
    # it ends the process if cuBLASLt is missing
    cuda, other = int(library.cudnnGetCudartVersion()) // 1000, cublaslt.version() // 10000
    if cuda != other:
        raise EngineError(
            f"the cuDNN here is for CUDA {cuda}, the cuBLASLt that it needs for CUDA {other}; install both for one"
            " version of CUDA"
        )
    return library


def bound(path: str) -> ctypes.CDLL:
    """Loads the library in a file and declares its functions. Raises EngineError for another file."""
    try:
        library = ctypes.CDLL(path)
        for name, parameters in _PARAMETERS.items():
            getattr(library, "cudnn" + name).argtypes = parameters
        library.cudnnGetVersion.restype = library.cudnnGetCudartVersion.restype = c_size_t
    except (OSError, AttributeError) as e:
        raise EngineError(f"{path} is no cuDNN {MAJOR} ({e}); install it by pip install nvidia-cudnn-cu13") from None
    if (number := int(library.cudnnGetVersion())) // 10000 != MAJOR:
        raise EngineError(f"{path} is cuDNN {spoken(number)}; install version {MAJOR} by pip install nvidia-cudnn-cu13")
    return library


@lru_cache(maxsize=1)
def version() -> int:
    """Returns the version of the library here, as 92800. Raises EngineError if it is missing."""
    return int(loaded().cudnnGetVersion())


class Descriptor:
    """A descriptor of the backend API, destroyed with this object; it keeps the descriptors that it refers to alive."""

    def __init__(self, library: CudnnLibrary, kind: int):
        self.library, self.handle, self.held = library, c_void_p(), list[Descriptor]()
        library.call("BackendCreateDescriptor", kind, byref(self.handle))
        weakref.finalize(self, library.functions.cudnnBackendDestroyDescriptor, self.handle).atexit = False

    def set(self, attribute: int, kind: tuple[int, Any], *values: Any) -> None:
        number, form = kind
        self.held += [v for v in values if isinstance(v, Descriptor)]
        array = (form * len(values))(*(v.handle.value if isinstance(v, Descriptor) else v for v in values))
        self.library.call("BackendSetAttribute", self.handle, attribute, number, len(values), array)

    def get(self, attribute: int, kind: tuple[int, Any], most: int) -> list[Any]:
        (number, form), count = kind, c_int64()
        array = (form * most)()
        self.library.call("BackendGetAttribute", self.handle, attribute, number, most, byref(count), array)
        return list(array)[: count.value]

    def read(self, attribute: int, into: Sequence[Descriptor]) -> int:
        """Lets the library fill these descriptors for an attribute; returns their number."""
        count = c_int64()
        array = (c_void_p * len(into))(*(d.handle.value for d in into))
        self.library.call("BackendGetAttribute", self.handle, attribute, _DESCRIPTOR[0], len(into), byref(count), array)
        return min(count.value, len(into))

    def made(self) -> Descriptor:
        self.library.call("BackendFinalize", self.handle)
        return self


class CudnnLibrary:
    """cuDNN for the GPU whose context is this thread's, now and at each use; or, for plans only, for a described GPU
    (`device`, JSON of the library's own)."""

    def __init__(self, library: ctypes.CDLL, device: str | None = None):
        self.functions = library
        self.version = int(library.cudnnGetVersion())
        # a plan costs milliseconds
        self.plans: weakref.WeakValueDictionary[Any, CudnnPlan] = weakref.WeakValueDictionary()
        # the stream is the handle's, which contexts of all threads share
        self.using = threading.Lock()
        self.handle, self.device = c_void_p(), None
        if device is None:
            self.call("Create", byref(self.handle))
            weakref.finalize(self, library.cudnnDestroy, self.handle).atexit = False
        else:
            self.device = Descriptor(self, _DEVICE)
            text = device.encode() + b"\0"
            self.call("BackendSetAttribute", self.device.handle, 2702, _TEXT[0], len(text), c_char_p(text))
            self.device.made()

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.functions, "cudnn" + name)(*arguments)
        if status:
            why = ctypes.create_string_buffer(1024)
            self.functions.cudnnGetLastErrorString(why, len(why))
            raise EngineError(
                f"cuDNN {spoken(self.version)} refuses cudnn{name}:"
                f" {why.value.decode(errors='replace') or 'for no reason that it gives'} (status {status})"
            )

    def plan(self, convolution: ConvolutionDescriptor, aligned: Sequence[int]) -> CudnnPlan:
        """Prepares a convolution. Raises EngineError if this version of cuDNN is not the one that was timed, or cannot
        compute it."""
        if convolution.version != self.version:
            raise EngineError(f"cuDNN {spoken(self.version)} is installed")
        key = convolution, tuple(aligned)
        plan = self.plans.get(key) or CudnnPlan(self, convolution, aligned)
        return self.plans.setdefault(key, plan)


class CudnnPlan:
    """A convolution by a cuDNN engine, called with the parameters of a step and a stream. `workspace`: bytes that it
    needs; aligned: for each operand, the alignment of its address."""

    def __init__(self, library: CudnnLibrary, convolution: ConvolutionDescriptor, aligned: Sequence[int]):
        self.library, self.what = library, convolution
        c, kind = convolution, _TYPES[KINDS[convolution.kind]]
        self.names = [_X, _W, *([_BIAS] if c.bias else []), *([_Z] if c.added else []), _Y]
        self.aligned = dict(zip(self.names, aligned))
        each, shape = c.c // c.group, (c.n, c.out, *c.space)
        steps: list[tuple[int, Descriptor | None]] = (
            [(_ADD, self._tensor(_Z, kind, shape, (c.z_n, 1, c.z_h, c.z_w)))] if c.added else []
        )
        steps += [(_ADD, self._tensor(_BIAS, kind, (1, c.out, 1, 1), (c.out, 1, c.out, c.out)))] if c.bias else []
        steps += [(_RELU, None)] if ENDS[c.end] == "relu" else []
        places = [
            self._tensor(_BETWEEN + i, _TYPES["f32"], shape, (c.y_n, 1, c.y_h, c.y_w), between=True)
            for i in range(len(steps))
        ]
        places.append(self._tensor(_Y, kind, shape, (c.y_n, 1, c.y_h, c.y_w)))
        x = self._tensor(_X, kind, (c.n, c.c, c.h, c.w), (c.x_n, 1, c.x_h, c.x_w))
        w = self._tensor(_W, kind, (c.out, each, c.kernel_h, c.kernel_w), (c.w_step, 1, c.kernel_w * each, each))
        graph = Descriptor(library, _GRAPH)
        graph.set(
            801,
            _DESCRIPTOR,
            self._convolved(x, w, places[0]),
            *(self._applied(mode, of, other, to) for (mode, other), of, to in zip(steps, places, places[1:])),
        )
        self._on(graph, 800, None)
        self._plan = self._chosen(graph.made())
        self.workspace = int(self._plan.get(402, _I64, 1)[0])

    def _on(self, thing: Descriptor, handle: int | None, device: int | None) -> None:
        """Sets the GPU of a descriptor."""
        if self.library.device is not None:
            if device is not None:
                thing.set(device, _DESCRIPTOR, self.library.device)
        elif handle is not None:
            thing.set(handle, _HANDLE, self.library.handle.value)

    def _tensor(
        self, name: int, kind: int, shape: Sequence[int], strides: Sequence[int], between: bool = False
    ) -> Descriptor:
        tensor = Descriptor(self.library, _TENSOR)
        tensor.set(901, _KIND, kind)
        tensor.set(902, _I64, *shape)
        tensor.set(903, _I64, *strides)
        tensor.set(906, _I64, name)
        tensor.set(900, _I64, self.aligned.get(name, 16))
        tensor.set(907, _FLAG, between)
        return tensor.made()

    def _convolved(self, x: Descriptor, w: Descriptor, to: Descriptor) -> Descriptor:
        c, how = self.what, Descriptor(self.library, _CONVOLUTION)
        how.set(100, _KIND, _TYPES["f32"])
        how.set(101, _CROSS, _CORRELATION)
        how.set(102, _I64, c.dilation_h, c.dilation_w)
        how.set(103, _I64, c.stride_h, c.stride_w)
        how.set(104, _I64, c.bottom, c.right)
        how.set(105, _I64, c.top, c.left)
        how.set(106, _I64, 2)
        forward = Descriptor(self.library, _FORWARD)
        forward.set(700, _F32, 1.0)
        forward.set(701, _F32, 0.0)
        for attribute, thing in ((702, how.made()), (703, w), (704, x), (705, to)):
            forward.set(attribute, _DESCRIPTOR, thing)
        return forward.made()

    def _applied(self, mode: int, of: Descriptor, other: Descriptor | None, to: Descriptor) -> Descriptor:
        how = Descriptor(self.library, _POINTWISE)
        how.set(0, _POINTWISE_MODE, mode)
        how.set(1, _KIND, _TYPES["f32"])
        applied = Descriptor(self.library, _APPLY)
        for attribute, thing in ((750, how.made()), (751, of), (752, other), (753, to)):
            if thing is not None:
                applied.set(attribute, _DESCRIPTOR, thing)
        return applied.made()

    def _chosen(self, graph: Descriptor) -> Descriptor:
        """Returns the plan of the chosen engine among the library's proposals that need no compilation and round as our
        own kernels do."""
        ranked = Descriptor(self.library, _HEURISTICS)
        ranked.set(201, _DESCRIPTOR, graph)
        ranked.set(200, _MODE, _BY_RULES)
        self._on(ranked, None, 204)
        configs = [Descriptor(self.library, _CONFIG) for _ in range(PROPOSED)]
        engines, what = [c for c in configs[: ranked.made().read(202, configs)] if self._fits(c)], self.what
        for config in engines[what.choice : what.choice + 1]:
            config.held.append(graph)
            plan = Descriptor(self.library, _PLAN)
            plan.set(401, _DESCRIPTOR, config)
            self._on(plan, 400, 407)
            if plan.made().get(402, _I64, 1)[0] <= WORKSPACE:
                return plan
        raise EngineError(
            f"cuDNN {spoken(self.library.version)} proposes {len(engines)} engines for {what}, number {what.choice} was"
            " asked for"
        )

    def _fits(self, config: Descriptor) -> bool:
        engine = Descriptor(self.library, _ENGINE)
        config.read(300, [engine])
        notes, behaviour = set(engine.get(1303, _NOTE, 32)), set(engine.get(1305, _BEHAVIOUR, 32))
        # for f32, tensor cores would use the first 10 digits
        rounds = KINDS[self.what.kind] == "f32" and _TENSOR_CORES in notes
        return not notes & _INEXACT and _COMPILES not in behaviour and not rounds

    def __call__(self, words: np.ndarray, stream: int) -> None:
        """Enqueues the convolution on a stream; the words are the addresses of its operands, its dims and the two
        trailing pointers."""
        pointers = Descriptor(self.library, _POINTERS)
        pointers.set(1000, _I64, *self.names)
        pointers.set(1001, _POINTER, *words[: len(self.names)].tolist())
        pointers.set(1003, _POINTER, int(words[-2]) if self.workspace else None)
        with self.library.using:
            self.library.call("SetStream", self.library.handle, stream)
            self.library.call("BackendExecute", self.library.handle, self._plan.handle, pointers.made().handle)
