"""Arrays on a GPU, in and out without a copy: DLPack and `__cuda_array_interface__`, of any library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.engine.plan import NUMPY_NAMES, SIZES, Port, numpy_dtype
from pelton.errors import InputError

from .. import dlpack
from ..arrays import check_shape, to_numpy
from ..dlpack import dense
from .device import Device

# the default stream, for libraries that identify streams by numbers, where 0 would be ambiguous (CU_STREAM_LEGACY)
LEGACY = 1
# bytes: kernels load this many at once; other arrays are copied on the GPU
ALIGN = 16
_TYPESTR = {np.dtype(n).str: name for name, n in NUMPY_NAMES.items() if name != "string"}


@dataclass(frozen=True, eq=False)
class ForeignArray:
    """Memory of a GPU owned by another library, as described by it. `strides` in elements; `stream`: the stream that
    fills it."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: Sequence[float] | None
    writable: bool
    ordinal: int | None
    stream: int | None
    keeper: Any

    def check(self, port: Port, what: str, device: Device) -> None:
        """Raises InputError unless it matches the port, on this device."""
        needs = f"{what} needs {port}"
        if self.dtype != port.dtype:
            raise InputError(
                f"{needs}, got {self.dtype} on the GPU; convert it there, results and inputs are not converted"
            )
        check_shape(port, self.shape, needs)
        if 0 in self.shape:
            return
        if self.strides is not None and any(
            s != d for n, s, d in zip(self.shape, self.strides, dense(self.shape)) if n != 1
        ):
            raise InputError(
                f"{needs} contiguous in C order, got strides {list(self.strides)} (in elements) for shape"
                f" {list(self.shape)}; convert it with .contiguous() (torch) or ascontiguousarray"
            )
        owner = device.owner(self.address) if self.ordinal in (None, device.ordinal) else self.ordinal
        if owner is None:
            raise InputError(f"{needs}, got an address ({self.address:#x}) that is not in GPU memory")
        if owner != device.ordinal:
            raise InputError(
                f"{needs} on GPU {device.ordinal} ({device.name}), which this engine runs on, got an array on GPU"
                f" {owner}; copy it there, or load the engine with device={owner}"
            )


def import_array(value: Any, what: str, stream: int) -> Any:
    """Returns an array of a GPU as `ForeignArray`, filled before later work on our stream (ordered by its maker, or by
    `ForeignArray.stream`); an array of another library in CPU memory as numpy's; anything else unchanged."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    kind, ordinal = dlpack.device_of(value, what)
    if kind in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        return _from_dlpack(value, what, stream, ordinal)
    if not kind and hasattr(value, "__cuda_array_interface__"):
        return _from_interface(value, what)
    return to_numpy(value, what)


def _from_dlpack(value: Any, what: str, stream: int, ordinal: int) -> ForeignArray:
    # the maker makes our stream wait for theirs
    array = dlpack.import_array(value, what, stream=stream)
    return ForeignArray(
        array.address, array.dtype, array.shape, array.strides, array.writable, ordinal, None, array.keeper
    )


def _from_interface(value: Any, what: str) -> ForeignArray:
    try:
        interface = value.__cuda_array_interface__
        name, shape, strides = (
            _TYPESTR[interface["typestr"]],
            tuple(map(int, interface["shape"])),
            interface.get("strides"),
        )
        address, fixed = interface["data"]
        stream = interface.get("stream")
        steps = None if strides is None else tuple(int(s) / SIZES[name] for s in strides)
        if len(shape) != len(steps or shape) or interface.get("mask") is not None or stream == 0:
            raise ValueError("it has a mask, the stream 0, or strides that are not those of its shape")
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as e:
        raise InputError(f"{what} cannot be read by its __cuda_array_interface__ ({type(e).__name__}: {e})") from None
    return ForeignArray(int(address or 0), name, shape, steps, not fixed, None, stream, value)


class DeviceArray:
    """A result on the GPU, for other libraries by DLPack and `__cuda_array_interface__`. Its memory belongs to the
    context, whose next run overwrites it; it is filled when the work on the context's `stream` is done."""

    def __init__(self, port: Port, address: int, memory: Any, device: Device, stream: int):
        self.dtype, self.shape, self.nbytes, self.address = (
            port.dtype,
            tuple(map(int, port.shape)),
            port.nbytes,
            address,
        )
        self.stream, self._memory, self._device = stream, memory, device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype not in NUMPY_NAMES:
            raise AttributeError(f"__cuda_array_interface__ has no name for {self.dtype}; DLPack has")
        return {
            "shape": self.shape,
            "typestr": numpy_dtype(self.dtype).str,
            "data": (self.address if self.nbytes else 0, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._device.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Returns a capsule with a DLManagedTensor; later work on `stream` (None: the legacy default stream, -1: any)
        waits for the array."""
        if self.dtype not in dlpack.DTYPES:
            raise BufferError(f"DLPack has no elements of {self.dtype}")
        if stream != -1:
            with self._device as device:
                filled = device.event()
                device.record(filled, self.stream)
                device.wait(LEGACY if stream is None else stream, filled)
        return dlpack.capsule(self.address, self.dtype, self.shape, self._device.ordinal, self._memory)

    def numpy(self) -> np.ndarray:
        """Returns a copy in CPU memory; waits for the array to be filled."""
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
