"""Execution providers (ONNX Runtime's name for back ends), and the targets that they select."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.logs import Logger
from pelton.errors import EngineError, InputError

log = Logger("pelton.session")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Providers of ONNX Runtime that Pelton lacks: requesting one is no mistake, as scripts list several and use the first
# available one.
OTHERS = frozenset(
    f"{name}ExecutionProvider"
    for name in (
        "ACL ArmNN Azure CANN CoreML Dml Dnnl Js MIGraphX Nnapi NvTensorRTRTX OpenVINO QNN ROCM Rknpu SNPE Tensorrt"
        " VSINPU VitisAI WebGpu WebNN Xnnpack"
    ).split()
)


@dataclass(frozen=True)
class ProviderChoice:
    """The back end of a session: its providers with their options, the one in use first; the target and precision of
    its engines; and the number of the GPU."""

    options: Mapping[str, Mapping[str, str]]
    target: str = "cpu"
    device: int = 0
    precision: str | None = None

    @property
    def names(self) -> list[str]:
        return [*self.options]


def available() -> list[str]:
    """Returns the providers of this machine, best first."""
    return [CUDA, CPU] if _gpu_error(0) is None else [CPU]


def _gpu_error(number: int) -> EngineError | None:
    """Explains why engines cannot run on that GPU; None if they can. Raises InputError if only others exist."""
    from pelton.backends.cuda.driver import device  # only if a GPU is requested

    try:
        device(number)
    except EngineError as e:
        return e
    return None


def normalize(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Maps each provider to its options as strings, from the arguments of a session: names, pairs of a name and a dict,
    or names and a list of dicts. Raises InputError (a ValueError) for anything else."""
    if providers is None:
        return {}
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise InputError(f"'providers' must be a sequence, got {type(providers).__name__}")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence) or not all(isinstance(o, Mapping) for o in provider_options):
            raise InputError("'provider_options' must be a sequence of dicts")
        if len(providers) != len(provider_options) or not all(isinstance(p, str) for p in providers):
            raise InputError("'provider_options' needs one entry for each of 'providers', which must be names")
        providers = [*zip(providers, provider_options)]
    options_of: dict[str, dict[str, str]] = {}
    for p in providers:
        name, options = p if isinstance(p, tuple) and len(p) == 2 else (p, {})
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise InputError(f"'providers' values must be either strings or (string, dict) tuples, got {p!r:.100}")
        if name in options_of:
            log.warning("provider %s is named twice; its first options count", name)
        else:
            options_of[name] = {str(k): str(v) for k, v in options.items()}
    return options_of


def choose(providers: Any = None, provider_options: Any = None, *, strictly: bool = False) -> ProviderChoice:
    """Selects the first available provider, else the CPU. `strictly`: raises InputError, instead of a warning, for a
    name that neither Pelton nor ONNX Runtime knows."""
    requested = normalize(providers, provider_options)
    missing: dict[str, str] = {}
    for name, options in requested.items():
        if name == CPU:
            break
        if name == CUDA:
            number = _device_id(options)
            error = _gpu_error(number)
            if error is None:
                _warn(missing, CUDA)
                precision = "tf32" if options.get("use_tf32", "0").lower() in ("1", "true") else None
                used = {CUDA: {**options, "device_id": str(number)}, CPU: requested.get(CPU, {})}
                return ProviderChoice(used, "cuda", number, precision)
            missing[name] = str(error)
        elif name in OTHERS or not strictly:
            missing[name] = "Pelton has no such target"
        else:
            raise InputError(f"Unknown Provider Type: {name}; there are {CPU} and {CUDA}")
    _warn(missing, CPU)
    return ProviderChoice({CPU: requested.get(CPU, {})})


def _device_id(options: Mapping[str, str]) -> int:
    text = options.get("device_id", "0")
    if not text.isdecimal():
        raise InputError(f"device_id of {CUDA} is the number of a GPU, 0 and more, got {text!r}")
    return int(text)


def _warn(missing: Mapping[str, str], instead: str) -> None:
    for name, reason in missing.items():
        log.warning("there is no %s here, the session runs on %s: %s", name, instead, reason)
