"""ONNX Runtime's names for devices, memory and allocators: descriptions only, as engines allocate their own memory."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pelton.errors import InputError

_TYPES = {"cpu": 0, "cuda": 1, "gpu": 1, "dml": 1, "webgpu": 1, "cann": 3, "npu": 3}


class OrtDeviceVendorId(enum.IntEnum):
    """Vendors of devices, by PCI ID."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


_VENDORS = {"cuda": OrtDeviceVendorId.NVIDIA, "dml": OrtDeviceVendorId.MICROSOFT, "cann": OrtDeviceVendorId.HUAWEI}


class OrtAllocatorType(enum.IntEnum):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(enum.IntEnum):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(enum.IntEnum):
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


@dataclass(frozen=True)
class OrtDevice:
    """The device that holds arrays."""

    name: str
    id: int = 0
    vendor: int = 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Returns the device of that name and number; raises InputError for an unknown name."""
        name = ort_device_name.lower()
        if name not in _TYPES:
            raise InputError(f"Unsupported device type: {ort_device_name}; there are {', '.join(_TYPES)}")
        return OrtDevice(name, int(device_id), int(vendor_id if vendor_id >= 0 else _VENDORS.get(name, 0)))

    def device_id(self) -> int:
        return self.id

    def device_type(self) -> int:
        return _TYPES[self.name]

    def device_vendor_id(self) -> int:
        return self.vendor

    def device_mem_type(self) -> int:
        return 0


@dataclass(frozen=True)
class OrtMemoryInfo:
    """A kind of memory of a device."""

    name: str
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, device_mem_type, vendor_id)


class OrtArenaCfg:
    """Growth of an arena: accepted and ignored."""

    def __init__(
        self,
        max_mem: int | Mapping[str, int] = 0,
        arena_extend_strategy: int = -1,
        initial_chunk_size_bytes: int = -1,
        max_dead_bytes_per_chunk: int = -1,
    ):
        self.max_mem, self.arena_extend_strategy = 0, arena_extend_strategy
        self.initial_chunk_size_bytes, self.max_dead_bytes_per_chunk = (
            initial_chunk_size_bytes,
            max_dead_bytes_per_chunk,
        )
        self.initial_growth_chunk_size_bytes = self.max_power_of_two_extend_bytes = -1
        for name, value in (max_mem if isinstance(max_mem, Mapping) else {"max_mem": max_mem}).items():
            if not hasattr(self, name):
                raise InputError(f"Invalid OrtArenaCfg option: {name}; there are {', '.join(vars(self))}")
            setattr(self, name, int(value))


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Accepted and ignored: an engine's context allocates its memory once."""


def create_and_register_allocator_v2(
    provider: str, memory_info: OrtMemoryInfo, options: Mapping[str, Any], arena_cfg: OrtArenaCfg | None = None
) -> None:
    """Accepted and ignored: an engine's context allocates its memory once."""
