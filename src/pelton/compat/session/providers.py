"""Execution providers, as ONNX Runtime calls what a model runs on, and the targets that stand for them here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.errors import EngineError, InputError

log = logging.getLogger("pelton.session")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# those that ONNX Runtime has names for and Pelton has not: asking for one is no mistake, as scripts name several to
# have the first that there is
OTHERS = frozenset(
    f"{name}ExecutionProvider"
    for name in (
        "ACL",
        "ArmNN",
        "Azure",
        "CANN",
        "CoreML",
        "Dml",
        "Dnnl",
        "Js",
        "MIGraphX",
        "Nnapi",
        "NvTensorRTRTX",
        "OpenVINO",
        "QNN",
        "ROCM",
        "Rknpu",
        "SNPE",
        "Tensorrt",
        "VSINPU",
        "VitisAI",
        "WebGpu",
        "WebNN",
        "Xnnpack",
    )
)


@dataclass(frozen=True)
class Chosen:
    """What a session runs on: the providers, first the one that does, with their options; the target of its engines;
    and the number of the GPU."""

    options: Mapping[str, Mapping[str, str]]
    target: str = "cpu"
    device: int = 0
    precision: str | None = None

    @property
    def names(self) -> list[str]:
        return [*self.options]


def available() -> list[str]:
    """The providers of this machine, best first."""
    return [CUDA, CPU] if _gpu(0) is None else [CPU]


def _gpu(number: int) -> EngineError | None:
    """Why engines cannot run on the GPU of that number; InputError where there are others, but not this one."""
    from pelton.backends.cuda.driver import device  # only where somebody asks for a GPU

    try:
        device(number)
    except EngineError as e:
        return e
    return None


def normal(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Provider → its options as texts, from what a session is given: names, pairs of a name and a dict, or names and a
    list of dicts. InputError (a ValueError) for anything else."""
    if providers is None:
        return {}
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise InputError(f"'providers' should be a sequence, got {type(providers).__name__}")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence) or not all(isinstance(o, Mapping) for o in provider_options):
            raise InputError("'provider_options' should be a sequence of dicts")
        if len(providers) != len(provider_options) or not all(isinstance(p, str) for p in providers):
            raise InputError("'provider_options' are given for as many 'providers', each of which is a name then")
        providers = [*zip(providers, provider_options)]
    found: dict[str, dict[str, str]] = {}
    for p in providers:
        name, options = (p, {}) if isinstance(p, str) else p if isinstance(p, tuple) and len(p) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise InputError(f"'providers' values must be either strings or (string, dict) tuples, got {p!r:.100}")
        if name in found:
            log.warning("provider %s is named twice; its first options count", name)
        else:
            found[name] = {str(k): str(v) for k, v in options.items()}
    return found


def chosen(providers: Any = None, provider_options: Any = None, *, strictly: bool = False) -> Chosen:
    """What a session runs on that is given these providers: the first that there is, the CPU where none is. `strictly`:
    InputError for a name that is neither Pelton's nor ONNX Runtime's; otherwise that, too, is a warning."""
    wanted = normal(providers, provider_options)
    missing: dict[str, str] = {}
    for name, options in wanted.items():
        if name == CPU:
            break
        if name == CUDA:
            number, precision = (
                _device(options),
                ("tf32" if options.get("use_tf32", "0").lower() in ("1", "true") else None),
            )
            why = _gpu(number)
            if why is None:
                _told(missing, CUDA)
                return Chosen(
                    {CUDA: {**options, "device_id": str(number)}, CPU: wanted.get(CPU, {})}, "cuda", number, precision
                )
            missing[name] = str(why)
        elif name in OTHERS or not strictly:
            missing[name] = "Pelton has no such target"
        else:
            raise InputError(f"Unknown Provider Type: {name}; there are {CPU} and {CUDA}")
    _told(missing, CPU)
    return Chosen({CPU: wanted.get(CPU, {})})


def _device(options: Mapping[str, str]) -> int:
    text = options.get("device_id", "0")
    if not text.isdecimal():
        raise InputError(f"device_id of {CUDA} is the number of a GPU, 0 and more, got {text!r}")
    return int(text)


def _told(missing: Mapping[str, str], instead: str) -> None:
    for name, why in missing.items():
        log.warning("there is no %s here, the session runs on %s: %s", name, instead, why)
