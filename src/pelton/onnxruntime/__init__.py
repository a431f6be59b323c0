"""Stand-in for onnxruntime: `python -m pelton.onnxruntime script.py`, or `pelton.onnxruntime.install()` before the
import.

This module is what such a program imports: ONNX Runtime's public names over `pelton.compat.session`. Names that Pelton
does not have can be imported, and raise NotImplemented when they are used. `__version__` is the release of ONNX Runtime
whose interface this is, as libraries compare it; Pelton's own is `pelton.__version__`.
"""

from __future__ import annotations

import importlib
from typing import Any

import pelton
from pelton.compat.session import *  # noqa: F403
from pelton.compat.session import __all__ as _ours
from pelton.compat.session import get_all_providers, get_build_info

from .about import VERSION as __version__
from .finder import TOOLS, install, installed, uninstall
from .missing import missing
from .session import OnnxRuntimeSession as InferenceSession

# public names of ONNX Runtime that Pelton does not have
_MISSING = """
    AdapterFormat ArenaExtendStrategy LoraAdapter ModelCompiler ModelPackage ModelPackageComponentContext
    ModelPackageContext ModelPackageOptions ModelPackageWriteMode OrtCompileApiFlags OrtCompiledModelCompatibility
    OrtDeviceEpIncompatibilityReason OrtEpAssignedNode OrtEpAssignedSubgraph OrtEpContextData OrtEpContextDataBuffer
    OrtEpDevice OrtExecutionProviderDevicePolicy OrtExternalInitializerInfo OrtHardwareDevice OrtHardwareDeviceType
    OrtSparseFormat OrtSyncStream OrtValueVector SessionObjectInitializer SparseBlockSparseView SparseCooView
    SparseCsrView SparseTensor check_and_normalize_provider_args get_all_operator_schema get_all_opkernel_def
    get_compatibility_info_from_model get_compatibility_info_from_model_bytes get_default_session_options
    get_ep_devices get_hardware_device_ep_incompatibility_details get_hardware_devices
    get_model_compatibility_for_ep_devices get_ort_device_type get_registered_ep_kernel_defs get_session_initializer
    kNextPowerOfTwo kSameAsRequested opkernel pack_fp4_weights_for_cuda_moe_gemm quantize_matmul_2bits
    quantize_matmul_4bits quantize_matmul_8bits quantize_matmul_bnb4 quantize_qdq_matmul_2bits
    quantize_qdq_matmul_4bits register_execution_provider_library schemadef set_global_thread_pool_sizes
    unregister_execution_provider_library
""".split()

__all__ = [
    "InferenceSession",
    "Session",
    "SessionIOBinding",
    "get_version_string",
    "has_collective_ops",
    "install",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "uninstall",
    "version",
]
__all__ += [name for name in _ours if name not in __all__]

__author__ = "the authors of Pelton"
package_name, version, cuda_version = "onnxruntime", __version__, ""
Session = InferenceSession
SessionIOBinding = pelton.IOBinding


def get_version_string() -> str:  # type: ignore[no-redef]  # of the interface, as `__version__`
    return __version__


def has_collective_ops() -> bool:
    return False


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Accepted and ignored: an engine finds CUDA libraries when it needs them."""


def print_debug_info() -> None:
    """Prints the build, its folder and the available providers."""
    print(f"{get_build_info()}\nfolder: {pelton.__path__[0]}\nproviders: {', '.join(get_all_providers())}")


def __getattr__(name: str) -> Any:
    if name in TOOLS and installed():  # `from onnxruntime import quantization` asks here first
        return importlib.import_module(f"{package_name}.{name}")
    if name not in _MISSING:
        raise AttributeError(f"module 'onnxruntime', replaced by Pelton, has no attribute {name!r}")
    return missing(f"onnxruntime.{name}")
