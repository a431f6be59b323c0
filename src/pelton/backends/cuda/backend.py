"""NVIDIA GPUs as devices: their implementation of `backends/device.py`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pelton.engine.plan import EnginePlan

from ..device import Backend, ProgressCallback, check_here
from ..plan import Plan
from .bundle import unpack
from .device import Device
from .driver import device as gpu
from .driver import devices
from .loaded import CudaLoaded
from .workspace import CudaWorkspace


class CudaCode:
    """The bundle of an engine, and the engine on a GPU, once loaded; it stays on that GPU."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.bundle = unpack(plan.plain.code) if plan.plain.code else {}
        self.lock = threading.Lock()
        self.loaded: CudaLoaded | None = None


def load(code: CudaCode, device: int | Device) -> CudaLoaded:
    """Loads onto the GPU of a number, or onto an object with its interface. Raises EngineError, naming the missing
    part, if there is none or it does not fit."""
    with code.lock:
        if code.loaded is None:
            check_machine(code.plan.label, code.plan.plain.target)
            code.loaded = CudaLoaded(code.plan, code.bundle, gpu(device) if isinstance(device, int) else device)
        return code.loaded


def check_machine(label: str, target: Mapping[str, Any]) -> None:
    """Raises EngineError if the engine is for another system. Loading checks the presence of a GPU and its code."""
    check_here(label, target, os=sys.platform)


def tune(
    label: str,
    engines: Sequence[EnginePlan],
    device: int | Device,
    deadline: float | None,
    progress: ProgressCallback | None,
) -> list[EnginePlan]:
    """Tunes as `tune.tune_engines` does; equal kernels of all these engines are timed once."""
    from .kernel_choice import tune_engines  # imported only for tuning

    return tune_engines([load(CudaCode(Plan(plain)), device) for plain in engines], deadline, progress)


BACKEND = Backend(check_machine, CudaCode, load, CudaWorkspace, tune, devices)
