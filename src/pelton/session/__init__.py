"""ONNX Runtime's interface: a script written for it runs with `import pelton as ort`."""
from .session import InferenceSession
from .settings import (ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions, disable_telemetry_events, enable_telemetry_events,
                       get_all_providers, get_available_providers, get_device, set_default_logger_severity, set_default_logger_verbosity, set_seed)
from .signature import ModelMetadata, NodeArg
from .values import IOBinding, OrtValue

__all__ = ["ExecutionMode", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata", "NodeArg", "OrtValue", "RunOptions", "SessionOptions",
           "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_device",
           "set_default_logger_severity", "set_default_logger_verbosity", "set_seed"]
