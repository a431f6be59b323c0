"""Pelton: an open deep-learning inference optimizer and runtime."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BuildError, Cancelled, DeadlineError, EngineError, Error, InputError, ModelError, Needs
from .errors import QueueFullError
from .version import VERSION as __version__

if TYPE_CHECKING:
    from .engine.plan import DynamicDimension, Port
    from . import language as language
    from . import plugins as plugins
    from . import ray as ray
    from . import spark as spark
    from .compression.compressed import Compressed
    from .editing import export_onnx, import_onnx
    from .language.model import LanguageModel
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
    "Compressed",
    "Context",
    "DeadlineError",
    "DynamicDimension",
    "Engine",
    "EngineError",
    "Error",
    "IOBinding",
    "InferenceSession",
    "InputError",
    "LanguageModel",
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
    "compress",
    "export_onnx",
    "import_onnx",
    "load",
    "register",
    "tune",
]

# Imported on first use: a program that runs engines never imports the compiler.
_MODULES = ("language", "plugins", "ray", "spark")
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
    "Compressed": "compression.compressed",
    "AsyncQueue": "runtime.queue",
    "AsyncRun": "runtime.queue",
    "State": "runtime.state",
    "LanguageModel": "language.model",
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


def compress(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    to: str | None = None,
    weights: str = "int4",
    block: int = 32,
    zero_points: bool = False,
    method: str = "auto",
    data: Any = None,
    max_drop: float | None = None,
    head: str | None = None,
    embedding: str | None = None,
    keep: Sequence[str] = (),
    sparsity: float | str | None = None,
    cluster: int | None = None,
    perplexity: bool = False,
    shapes: Mapping[str, str | Sequence[Any]] | None = None,
    threads: int | None = None,
    progress: Callable[[str, int, int], bool | None] | None = None,
    **build: Any,
) -> Compressed:
    """Compresses the weights of a trained FP32 model to 4 or 8 bits, and writes it as an ONNX model or an engine.

    model: any input of `pelton.build`. path: the file to write, atomically; without it nothing is written. to: "onnx"
    or "engine". Default: by the suffix of the path, .onnx or .pelton. build: for engines, fields of `Options`, such as
    level=0.
    weights: "int4" or "int8"; "float" with `sparsity` or `cluster` alone. Compressed are products with constant
    matrices f32[inner, rows], and tables f32[rows, inner] for lookups. block: elements of a row that share a scale: 16,
    32, 64 or 128. zero_points: a zero point for each block as well; default: symmetric.
    method: "nearest" rounds to the nearest number, "clip" also searches the scale of least squared error, "gptq"
    compensates each error in the weights that follow (Frantar et al., 2022), which needs data. "auto": the one of least
    output error for each layer, also with inputs scaled by their size where the node in front can divide them exactly
    (Lin et al., "AWQ", 2023).
    data: typical inputs, as for `Options.calibration`, but no table and no pictures. Every fifth batch is held out:
    accuracy is measured with it.
    max_drop: the most that the accuracy may drop: the share of samples (of positions, for scores of sequences) with
    another answer, for outputs without classes noise power divided by signal power. The most harmful layers get 8 bits,
    then stay floats, until it holds. Default: the accuracy is reported, not bounded.
    head, embedding: "int4", "int8" or "float" for the last product and for tables. Default: "int8", "float" if weights
    are. keep: names of layers to keep in float, such as ["decoder.*"].
    sparsity: the share of weights that become 0, such as 0.8, or "2:4" for 2 of each 4 consecutive ones in a row: those
    of least size, with data of least |w| · ‖x‖ within a row (Sun et al., "Wanda", 2023). cluster: the number of values,
    2 to 256, that each layer's weights share. perplexity: also measure the perplexity of the next tokens of the input.
    shapes, threads, progress: as for `pelton.build` and `Options`.

    Raises ModelError for models that cannot be read or, as ONNX, written; InputError for wrong arguments and data that
    does not fit; BuildError if there is nothing to compress, or if max_drop cannot hold; Cancelled if `progress`
    returns False.
    """
    with Needs("compressing models"):
        from pelton.compression.compress import compress
    return compress(
        model,
        path,
        to=to,
        weights=weights,
        block=block,
        zero_points=zero_points,
        method=method,
        data=data,
        max_drop=max_drop,
        head=head,
        embedding=embedding,
        keep=keep,
        sparsity=sparsity,
        cluster=cluster,
        perplexity=perplexity,
        shapes=shapes,
        threads=threads,
        progress=progress,
        build=build,
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
