"""A GPU by the driver's own interface."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import c_uint8
from functools import lru_cache
from typing import Any

import numpy as np

from pelton.engine.cubin import Cubin
from pelton.engine.work import Work
from pelton.errors import EngineError, InputError

from . import maps
from .binding import binding, call, refuse, said, version
from .device import Function, Launch, Memory, KernelHangs, library_function, parameters
from .libraries import VendorLibrary, open_library, versions

POLL = 5e-5  # seconds between two checks of work that may never end
STATIC_SHARED = 48 << 10  # bytes of shared memory per block that a kernel gets without a request
_UNREADABLE = (
    "INVALID_IMAGE",
    "NO_BINARY_FOR_GPU",
    "INVALID_SOURCE",
    "UNSUPPORTED_PTX_VERSION",
    "NOT_FOUND",
    "INVALID_KERNEL_IMAGE",
    "FILE_NOT_FOUND",
)


@lru_cache(maxsize=64)
def device(ordinal: int = 0) -> Gpu:
    """Opens the GPU of that number, in the driver's order of those visible to this process."""
    return Gpu(ordinal)


def devices() -> int:
    """Returns the number of GPUs that this process may use. Raises EngineError if there is none."""
    binding()
    count: int = call("cuDeviceGetCount")
    if not count:
        raise EngineError("no NVIDIA GPU is available to this process; see CUDA_VISIBLE_DEVICES")
    return count


class DriverHandle:
    """A handle of the driver, released when unreferenced; `source` is the object that it needs while it lives."""

    def __init__(self, handle: Any, source: Any = None):
        self.handle, self.source = handle, source


class Gpu:
    """A GPU and its primary context, which it shares with all libraries of the process. See `device.Device`."""

    def __init__(self, ordinal: int):
        driver = binding()
        count = devices()
        if not 0 <= ordinal < count:
            raise InputError(f"there is no GPU {ordinal}; those that this process may use are 0 to {count - 1}")
        self.ordinal = ordinal
        self._process, self._stuck = os.getpid(), False
        handle = call("cuDeviceGet", ordinal)
        known = driver.CUdevice_attribute

        def attribute(name: str) -> int:
            return call("cuDeviceGetAttribute", getattr(known, "CU_DEVICE_ATTRIBUTE_" + name), handle)

        self.name = call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode(errors="replace")
        self.arch = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
        self.multiprocessors, self.shared = (
            attribute("MULTIPROCESSOR_COUNT"),
            attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        )
        self.l1, self.l2 = attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"), attribute("L2_CACHE_SIZE")
        self._cooperates = bool(attribute("COOPERATIVE_LAUNCH"))
        self.memory, self.cuda = call("cuDeviceTotalMem", handle), version(driver)
        self._context = call("cuDevicePrimaryCtxRetain", handle)
        self._opened = dict[str, VendorLibrary]()

    def __enter__(self) -> Gpu:
        """Makes its context this thread's until the end of the block."""
        if os.getpid() != self._process:
            raise EngineError(
                "this process was forked from one that had begun to use the GPU, where the driver does not work; load"
                ' the engine after the fork, or start processes with multiprocessing\'s "spawn"'
            )
        self._refuse_stuck()
        call("cuCtxPushCurrent", self._context)
        return self

    def __exit__(self, *_: object) -> None:
        binding().cuCtxPopCurrent()  # its status would hide why the block ended

    # ---- memory ----

    def allocate(self, nbytes: int, what: str) -> Memory:
        driver = binding()
        status, address = driver.cuMemAlloc(max(nbytes, 1))
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise EngineError(
                f"{what} needs {_size(nbytes)} of GPU memory, but only {_size(self.free_memory())} of"
                f" {_size(self.memory)} are free on {self.name}; use smaller inputs or fewer contexts, or stop"
                " other programs"
            )
        if status:
            refuse(driver, "cuMemAlloc", status)
        return self._kept(Memory(int(address), nbytes), "cuMemFree", address)

    def pinned(self, nbytes: int, what: str) -> Memory:
        driver = binding()
        status, address = driver.cuMemHostAlloc(max(nbytes, 1), driver.CU_MEMHOSTALLOC_PORTABLE)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise EngineError(
                f"{what} needs {_size(nbytes)} of pinned memory for copies, but the system refuses it; check"
                " `ulimit -l`"
            )
        if status:
            refuse(driver, "cuMemHostAlloc", status)
        seen = np.ctypeslib.as_array((c_uint8 * max(nbytes, 1)).from_address(int(address)))
        return self._kept(Memory(int(address), nbytes, seen[:nbytes]), "cuMemFreeHost", address)

    def free_memory(self) -> int:
        return call("cuMemGetInfo")[0]

    def owner(self, address: int) -> int | None:
        driver = binding()
        status, ordinal = driver.cuPointerGetAttribute(
            driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address
        )
        if status == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return None
        if status:
            refuse(driver, "cuPointerGetAttribute", status)
        return int(ordinal)

    def _kept(self, thing: Any, free: str, handle: Any) -> Any:
        """Wraps `thing`, freed by that function when unreferenced."""
        weakref.finalize(thing, self._release, free, handle).atexit = False
        return thing

    def _release(self, free: str, handle: Any) -> None:
        if os.getpid() == self._process and not self._stuck:  # freeing waits for all running work
            with suppress(EngineError), self:  # a lost context has freed everything already
                getattr(binding(), free)(handle)

    # ---- kernels ----

    def load(self, cubin: Cubin, words: int) -> Function:
        driver = binding()
        where = f"kernel {cubin.symbol!r} for sm_{cubin.arch}"
        module = self._readable("cuModuleLoadData", where, cubin.image)
        module = self._kept(DriverHandle(module), "cuModuleUnload", module)
        handle = self._readable("cuModuleGetFunction", where, module.handle, cubin.symbol.encode())
        if cubin.shared > self.shared:
            raise EngineError(
                f"{where} needs {cubin.shared} bytes of shared memory per block, {self.name} has {self.shared}; "
                f"build the engine for sm_{self.arch}"
            )
        if cubin.shared > STATIC_SHARED:
            call(
                "cuFuncSetAttribute",
                handle,
                driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                cubin.shared,
            )
            # as Triton does: for several blocks side by side
            call("cuFuncSetCacheConfig", handle, driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED)
        self._check_parameters(handle, parameters(cubin, words), where)
        return Function(
            DriverHandle(handle, module), cubin, together=self._together(handle, cubin) if cubin.phased == 2 else 0
        )

    def _together(self, handle: Any, cubin: Cubin) -> int:
        """Returns the number of a kernel's blocks that are on the GPU at once."""
        return (
            self.multiprocessors
            * call("cuOccupancyMaxActiveBlocksPerMultiprocessor", handle, 32 * cubin.warps, cubin.shared)
            if self._cooperates
            else 0
        )

    def _readable(self, name: str, where: str, *arguments: Any) -> Any:
        """Calls a driver function that reads a cubin; returns its result."""
        driver = binding()
        status, handle = getattr(driver, name)(*arguments)
        if status and status.name.removeprefix("CUDA_ERROR_") in _UNREADABLE:
            raise EngineError(
                f"this driver cannot load {where}: {said(driver, status)}; it may be too old (it supports CUDA"
                f" {version(driver)}): update it, or build the engine with an older Triton"
            )
        if status:
            refuse(driver, name, status)
        return handle

    def _check_parameters(self, handle: Any, wanted: Sequence[tuple[int, int]], where: str) -> None:
        """Raises EngineError unless the function has these parameters: (place, bytes) of each."""
        driver = binding()
        for i in range(len(wanted) + 1):
            try:
                status, *parameter = driver.cuFuncGetParamInfo(handle, i)
            except RuntimeError:  # a driver older than CUDA 12.4 does not report them
                return
            last = status == driver.CUresult.CUDA_ERROR_INVALID_VALUE
            if status and not last:
                refuse(driver, "cuFuncGetParamInfo", status)
            if last != (i == len(wanted)) or (not last and tuple(parameter) != wanted[i]):
                actual = "missing" if last else f"{parameter[1]} bytes at {parameter[0]}"
                asked = "none" if i == len(wanted) else f"{wanted[i][1]} bytes at {wanted[i][0]}"
                raise EngineError(
                    f"the parameters of {where} do not fit its step, {len(wanted)}: parameter {i} is {actual}, must"
                    f" be {asked}; build the engine again"
                )

    @property
    def libraries(self) -> Mapping[str, int]:
        return versions()

    def by_library(self, work: Work, aligned: Sequence[int]) -> Function:
        if work.symbol not in self._opened:
            self._opened[work.symbol] = open_library(work.symbol)
        return library_function(self._opened[work.symbol].plan(work, aligned), work.symbol, self.arch)

    def launch(self, launch: Launch, stream: int) -> None:
        if launch.function.call is not None:
            launch.function.call(launch.words, stream)
            return
        driver, cubin = binding(), launch.function.cubin
        self._lay_maps(launch)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
        config.sharedMemBytes, config.hStream = cubin.shared, driver.CUstream(stream)
        attributes = []
        for name, value in self._attributes(launch):
            attribute = driver.CUlaunchAttribute()
            attribute.id, attribute.value = getattr(driver.CUlaunchAttributeID, name), value
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        call("cuLaunchKernelEx", config, launch.function.handle.handle, launch.table.__array_interface__["data"][0], 0)

    def _lay_maps(self, launch: Launch) -> None:
        """Builds the maps for the current addresses in the launch's words."""
        if launch.maps is not None:
            for m, room in zip(launch.function.cubin.maps, launch.maps):
                maps.lay(m, int(launch.words[m.operand]), room)

    def _attributes(self, launch: Launch) -> list[tuple[str, Any]]:
        """Returns the attributes of a launch, besides its grid, for clusters or programs that wait for each other."""
        driver, clusters = binding(), launch.function.cubin.clusters
        if launch.cooperative:
            value = driver.CUkernelNodeAttrValue()
            value.cooperative = 1
            return [("CU_LAUNCH_ATTRIBUTE_COOPERATIVE", value)]
        if clusters == 1:
            return []
        size, spread = driver.CUkernelNodeAttrValue(), driver.CUkernelNodeAttrValue()
        size.clusterDim.x, size.clusterDim.y, size.clusterDim.z = clusters, 1, 1
        spread.clusterSchedulingPolicyPreference = driver.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        return [
            ("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", size),
            ("CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE", spread),
        ]

    # ---- streams and copies ----

    def stream(self) -> DriverHandle:
        stream = call("cuStreamCreate", binding().CUstream_flags.CU_STREAM_NON_BLOCKING)
        return self._kept(DriverHandle(int(stream)), "cuStreamDestroy", stream)

    def event(self, timed: bool = False) -> DriverHandle:
        flags = binding().CUevent_flags
        event = call("cuEventCreate", flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING)
        return self._kept(DriverHandle(event), "cuEventDestroy", event)

    def record(self, event: DriverHandle, stream: int) -> None:
        call("cuEventRecord", event.handle, stream)

    def wait(self, stream: int, event: DriverHandle) -> None:
        call("cuStreamWaitEvent", stream, event.handle, 0)

    def finish(self, event: DriverHandle, patience: float | None = None) -> None:
        if patience is None:
            call("cuEventSynchronize", event.handle)
            return
        driver, until = binding(), time.monotonic() + patience
        while True:
            (status,) = driver.cuEventQuery(event.handle)
            if not status:
                return
            if status != driver.CUresult.CUDA_ERROR_NOT_READY:
                refuse(driver, "cuEventQuery", status)
            if time.monotonic() > until:
                self._stuck = True
                self._refuse_stuck()
            time.sleep(POLL)

    def synchronize(self, stream: int) -> None:
        self._refuse_stuck()
        call("cuStreamSynchronize", stream)

    def _refuse_stuck(self) -> None:
        if self._stuck:
            raise KernelHangs(f"a kernel does not end on {self.name}; this process can use the GPU no more, end it")

    def elapsed(self, begin: DriverHandle, end: DriverHandle) -> float:
        return 1e6 * call("cuEventElapsedTime", begin.handle, end.handle)

    def upload(self, to: int, source: int, nbytes: int, stream: int) -> None:
        call("cuMemcpyHtoDAsync", to, source, nbytes, stream)

    def download(self, to: int, source: int, nbytes: int, stream: int) -> None:
        call("cuMemcpyDtoHAsync", to, source, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        call("cuMemcpyDtoDAsync", to, source, nbytes, stream)

    # ---- graphs ----

    def graph(self) -> DriverHandle:
        graph = call("cuGraphCreate", 0)
        return self._kept(DriverHandle(graph), "cuGraphDestroy", graph)

    def add(self, graph: DriverHandle, launch: Launch, after: Sequence[Any]) -> Any:
        if launch.function.call is not None:
            child = self._captured(launch)  # held until it is copied
            return call("cuGraphAddChildGraphNode", graph.handle, list(after), len(after), child.handle)
        node = call("cuGraphAddKernelNode", graph.handle, list(after), len(after), self._node(launch))
        for name, value in self._attributes(launch):
            call("cuGraphKernelNodeSetAttribute", node, getattr(binding().CUkernelNodeAttrID, name), value)
        return node

    def _captured(self, launch: Launch) -> DriverHandle:
        """Captures a library's work on a stream as a graph: nodes copy it. Its kernels may be loaded only now, which no
        other capture mode allows."""
        driver, stream = binding(), self.stream()
        call("cuStreamBeginCapture", stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            self.launch(launch, stream.handle)
        finally:  # an earlier error is more informative than this status
            status, graph = driver.cuStreamEndCapture(stream.handle)
        if status:
            refuse(driver, "cuStreamEndCapture", status)
        return self._kept(DriverHandle(graph), "cuGraphDestroy", graph)

    def _node(self, launch: Launch) -> Any:
        self._lay_maps(launch)
        node = binding().CUDA_KERNEL_NODE_PARAMS()
        node.func = launch.function.handle.handle
        node.gridDimX, node.gridDimY, node.gridDimZ = launch.grid, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ = launch.block, 1, 1
        node.sharedMemBytes, node.kernelParams = (
            launch.function.cubin.shared,
            launch.table.__array_interface__["data"][0],
        )
        return node

    def instantiate(self, graph: DriverHandle, stream: int) -> DriverHandle:
        ready = call("cuGraphInstantiate", graph.handle, 0)
        call("cuGraphUpload", ready, stream)
        return self._kept(DriverHandle(ready, graph), "cuGraphExecDestroy", ready)

    def change(self, ready: DriverHandle, node: Any, launch: Launch) -> None:
        if launch.function.call is not None:
            child = self._captured(launch)
            call("cuGraphExecChildGraphNodeSetParams", ready.handle, node, child.handle)
            return
        call("cuGraphExecKernelNodeSetParams", ready.handle, node, self._node(launch))

    def replay(self, ready: DriverHandle, stream: int) -> None:
        call("cuGraphLaunch", ready.handle, stream)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
