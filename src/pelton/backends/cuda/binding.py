"""The driver's own interface (the package cuda-bindings): its functions called by name, each failure one sentence."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

from pelton.errors import EngineError

_LOST = (
    "ILLEGAL_ADDRESS",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "ASSERT",
    "HARDWARE_STACK_ERROR",
    "ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "CONTEXT_IS_DESTROYED",
    "ECC_UNCORRECTABLE",
    "EXTERNAL_DEVICE",
    "DEVICE_UNAVAILABLE",
    "UNKNOWN",
    "CONTAINED",
)


@lru_cache(maxsize=1)
def binding() -> Any:
    """Returns the module of cuda-bindings, with the driver started. Raises EngineError if either is missing."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise EngineError(
            'engines for NVIDIA GPUs need the package cuda-bindings: pip install "pelton[cuda]"'
        ) from None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as e:  # the package's error without libcuda
        raise EngineError(
            f"there is no NVIDIA driver on this machine ({' '.join(str(e).split()):.200}); install one, "
            "or build the engine for the CPU, without --target"
        ) from None
    if status:
        raise EngineError(
            f"the NVIDIA driver does not start: {said(driver, status)}; check `nvidia-smi`, and in a container,"
            " --gpus all"
        )
    return driver


def said(driver: Any, status: Any) -> str:
    """Returns the driver's text for a status."""
    with suppress(RuntimeError):
        _, text = driver.cuGetErrorString(status)
        if text:
            return f"{text.decode(errors='replace')} ({status.name})"
    return str(status.name)


def call(name: str, *arguments: Any) -> Any:
    """Calls a driver function; returns nothing, one result, or a tuple. Raises EngineError unless it succeeds."""
    driver = binding()
    try:
        status, *results = getattr(driver, name)(*arguments)
    except RuntimeError as e:  # the package's error for a function that the driver lacks
        raise EngineError(
            f"the NVIDIA driver, for CUDA {version(driver)}, lacks functions of the installed cuda-bindings ({e});"
            " update the driver, or install the cuda-bindings of its version"
        ) from None
    if status:
        refuse(driver, name, status)
    return results[0] if len(results) == 1 else tuple(results)


def refuse(driver: Any, name: str, status: Any) -> None:
    """Raises EngineError with the driver's text for the status of a function."""
    short = status.name.removeprefix("CUDA_ERROR_")
    if short in _LOST:
        raise EngineError(
            f"the GPU's context is lost ({name}: {said(driver, status)}): a kernel of this process failed, or the"
            " GPU was reset; start a new process"
        )
    raise EngineError(f"the NVIDIA driver refuses {name}: {said(driver, status)}")


def version(driver: Any) -> str:
    """Returns the newest CUDA that the driver supports, as 13.0."""
    _, version = driver.cuDriverGetVersion()
    return f"{version // 1000}.{version % 1000 // 10}"
