"""ONNX Runtime's interface: a script written for it runs with `import pelton as ort`."""
from .devices import (
    OrtAllocatorType, OrtArenaCfg, OrtDevice, OrtDeviceMemoryType, OrtDeviceVendorId, OrtMemoryInfo,
    OrtMemoryInfoDeviceType, OrtMemType, create_and_register_allocator, create_and_register_allocator_v2
)
from .session import InferenceSession
from .settings import (
    ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions, disable_telemetry_events,
    enable_telemetry_events, get_all_providers, get_available_providers, get_build_info, get_device,
    get_version_string, set_default_logger_callback, set_default_logger_severity, set_default_logger_verbosity,
    set_seed
)
from .signature import ModelMetadata, NodeArg
from .values import IOBinding, OrtValue, copy_tensors

__all__ = ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata", "NodeArg", "OrtAllocatorType",
           "OrtArenaCfg", "OrtDevice", "OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType", "OrtValue",
           "RunOptions", "SessionOptions", "copy_tensors", "create_and_register_allocator", "create_and_register_allocator_v2", "disable_telemetry_events",
           "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_build_info", "get_device", "get_version_string",
           "set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity", "set_seed"]
