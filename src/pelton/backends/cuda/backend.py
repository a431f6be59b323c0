"""NVIDIA GPUs as devices: what they do of what `backends/device.py` asks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pelton.engine.model import EnginePlan

from ..device import Backend, ProgressCallback, check_here
from ..plan import Plan
from .bundle import unpack
from .device import Device
from .driver import device as gpu
from .loaded import CudaLoaded
from .workspace import CudaWorkspace


class CudaCode:
    """The bundle of an engine, and the engine on a GPU, once it has been loaded there; it stays on that one."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.bundle = unpack(plan.plain.code) if plan.plain.code else {}
        self.lock = threading.Lock()
        self.loaded: CudaLoaded | None = None


def load(code: CudaCode, device: int | Device) -> CudaLoaded:
    """Onto the GPU of a number, or onto something that does what one does. EngineError, saying what is missing, where
    there is none or it does not fit."""
    with code.lock:
        if code.loaded is None:
            check_machine(code.plan.label, code.plan.plain.target)
            code.loaded = CudaLoaded(code.plan, code.bundle, gpu(device) if isinstance(device, int) else device)
        return code.loaded


def check_machine(label: str, target: Mapping[str, Any]) -> None:
    """EngineError where the engine is for another system. Whether there is a GPU, and which code it runs, shows when
    the engine is loaded."""
    check_here(label, target, os=sys.platform)


def tune(
    label: str,
    engines: Sequence[EnginePlan],
    device: int | Device,
    deadline: float | None,
    progress: ProgressCallback | None,
) -> list[EnginePlan]:
    """See `tune.tune_engines`; equal kernels of all these engines are timed once."""
    from .tune import tune_engines  # only who asks for it needs it

    return tune_engines([load(CudaCode(Plan(plain)), device) for plain in engines], deadline, progress)


BACKEND = Backend(check_machine, CudaCode, load, CudaWorkspace, tune)
