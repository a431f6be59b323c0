"""Pelton: an open deep-learning inference optimizer and runtime."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BuildError, Cancelled, DeadlineError, EngineError, Error, InputError, ModelError, Needs
from .errors import QueueFullError
from .version import VERSION as __version__

if TYPE_CHECKING:
    from .engine.plan import DynamicDimension, Port
    from . import plugins as plugins
    from . import ray as ray
    from . import spark as spark
    from .editing import export_onnx, import_onnx
    from .network import Network, NetworkTensor
    from .build_options import BuildOptions
    from .options import Options
    from .plugins import Plugin, register
    from .runtime import Context, Engine, load
    from .runtime.batching import Batching
    from .runtime.queue import AsyncQueue, AsyncRun
    from .runtime.state import State
    from .runtime.tune import tune
    from pelton.compat.session import InferenceSession, IOBinding, OrtValue, RunOptions, SessionOptions
    from typing_extensions import Unpack

__all__ = [
    "__version__",
    "AsyncQueue",
    "AsyncRun",
    "Batching",
    "BuildError",
    "Cancelled",
    "Context",
    "DeadlineError",
    "DynamicDimension",
    "Engine",
    "EngineError",
    "Error",
    "IOBinding",
    "InferenceSession",
    "InputError",
    "ModelError",
    "Network",
    "NetworkTensor",
    "Options",
    "OrtValue",
    "Plugin",
    "Port",
    "QueueFullError",
    "RunOptions",
    "SessionOptions",
    "State",
    "build",
    "export_onnx",
    "import_onnx",
    "load",
    "register",
    "tune",
]

# Imported on first use: a program that runs engines never imports the compiler.
_MODULES = ("plugins", "ray", "spark")
_HOMES = {
    "Plugin": "plugins",
    "register": "plugins",
    "Options": "options",
    "Network": "plugins",
    "import_onnx": "editing",
    "export_onnx": "editing",
    "NetworkTensor": "network",
    "Port": "engine.plan",
    "DynamicDimension": "engine.plan",
    "Engine": "runtime",
    "Context": "runtime",
    "load": "runtime",
    "tune": "runtime.tune",
    "Batching": "runtime.batching",
    "AsyncQueue": "runtime.queue",
    "AsyncRun": "runtime.queue",
    "State": "runtime.state",
}
# Names that scripts written for onnxruntime use.
_HOMES.update(
    dict.fromkeys(
        (
            "ExecutionMode",
            "ExecutionOrder",
            "GraphOptimizationLevel",
            "IOBinding",
            "InferenceSession",
            "ModelMetadata",
            "NodeArg",
            "OrtAllocatorType",
            "OrtArenaCfg",
            "OrtDevice",
            "OrtDeviceMemoryType",
            "OrtDeviceVendorId",
            "OrtMemType",
            "OrtMemoryInfo",
            "OrtMemoryInfoDeviceType",
            "OrtValue",
            "RunOptions",
            "SessionOptions",
            "copy_tensors",
            "create_and_register_allocator",
            "create_and_register_allocator_v2",
            "disable_telemetry_events",
            "enable_telemetry_events",
            "get_all_providers",
            "get_available_providers",
            "get_build_info",
            "get_device",
            "get_version_string",
            "set_default_logger_callback",
            "set_default_logger_severity",
            "set_default_logger_verbosity",
            "set_seed",
        ),
        "compat.session",
    )
)


def build(
    model: Any,
    shapes: Mapping[str, str | Sequence[Any]] | None = None,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    options: Options | None = None,
    **overrides: Unpack[BuildOptions],
) -> Engine:
    """Builds an engine from a model.

    model: path, bytes, onnx ModelProto, or a model of another format (`pelton formats`); with PyTorch, also a module or
    a torch.export.ExportedProgram. shapes: input name → sizes, such as (1, 3, 224, 224), "1x3x224x224" or, with a
    dynamic dimension of minimum, optimum and maximum, "1..8..32x3x224x224".
    example_inputs: for modules and TorchScript, example arguments: a tuple, a mapping by parameter name, or a tensor;
    the engine uses their types and shapes. Default: f32 tensors of the sizes in `shapes`.
    dynamic_shapes: for modules, the dynamic sizes, in the form of `torch.export.export`:
    {"x": {0: torch.export.Dim.DYNAMIC}}. Default: the ranges in `shapes`.
    options: an Options. overrides: further fields of Options by keyword, which override those of `options`:
    build("m.onnx", level=0, target="cuda").

    Raises ModelError if the model is damaged or not supported, InputError for invalid options, Cancelled if `progress`
    returns False, and BuildError if the build fails for another reason.
    """
    with Needs("building engines"):
        from pelton.builder.build import build
    return build(
        model, shapes, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, options=options, **overrides
    )


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'pelton' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    module = import_module(f"pelton.{_HOMES.get(name, name)}")
    value = getattr(module, name) if name in _HOMES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    known = globals()
    modules = {name for name, value in known.items() if getattr(value, "__name__", "") == f"{__name__}.{name}"}
    special = {name for name in known if name.startswith("__")}
    return sorted({*__all__, *_MODULES, *(_HOMES.keys() & known), *modules, *special})
