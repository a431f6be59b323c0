"""Tensor maps, built by the driver. Its functions are called by their addresses: cuda-bindings passes misaligned room
(NVIDIA/cuda-python#1692)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from pelton.engine.cubin import TensorMap

from .binding import binding, call, refuse

FROM = 12000  # the CUDA that introduced these functions
L2_128B, NO_INTERLEAVE, ZERO = 2, 0, 0  # CUtensorMapL2promotion, CUtensorMapInterleave, CUtensorMapFloatOOBfill
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_uint32
_COMMON = (_NUMBER, _NUMBER, _NUMBER, _NUMBER)
_HEAD = (_ADDRESS, _NUMBER, _NUMBER, _ADDRESS, _ADDRESS, _ADDRESS)
_PROTOTYPES = {
    "cuTensorMapEncodeTiled": (*_HEAD, _ADDRESS, _ADDRESS, *_COMMON),
    "cuTensorMapEncodeIm2col": (*_HEAD, _ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _ADDRESS, *_COMMON),
}


@lru_cache(maxsize=2)
def _function(name: str) -> Callable[..., int]:
    address, _ = call("cuGetProcAddress", name.encode(), FROM, 0)
    return ctypes.CFUNCTYPE(ctypes.c_int, *_PROTOTYPES[name])(address)


def lay(made: TensorMap, address: int, room: np.ndarray) -> None:
    """Builds the map of the memory at an address of the GPU, in room of 128 bytes at a multiple of 64. Raises
    EngineError if the driver rejects it."""
    name = "cuTensorMapEncodeIm2col" if made.lower else "cuTensorMapEncodeTiled"
    sizes, strides = (np.array(n, np.uint64) for n in (made.sizes, made.strides))
    lower, upper = (np.array(n, np.int32) for n in (made.lower, made.upper))
    box, steps = (np.array(n, np.uint32) for n in (made.box, made.steps))
    middle = (
        (lower.ctypes.data, upper.ctypes.data, *made.box, steps.ctypes.data)
        if made.lower
        else (box.ctypes.data, steps.ctypes.data)
    )
    status = _function(name)(
        room.ctypes.data,
        made.kind,
        len(sizes),
        address,
        sizes.ctypes.data,
        strides.ctypes.data,
        *middle,
        NO_INTERLEAVE,
        made.swizzle,
        L2_128B,
        ZERO,
    )
    if status:
        driver = binding()
        refuse(driver, name, driver.CUresult(status))
