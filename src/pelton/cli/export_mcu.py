"""`pelton export --target cortex-m4`: an engine for a micro-controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError, Needs
from pelton.targets import MICRO_CONTROLLERS

from . import build, text

if TYPE_CHECKING:
    from pelton.mcu import ExportedFolder, Footprint
    from pelton.runtime import Engine


def export(engine: Engine, model: str, folder: str, name: str) -> ExportedFolder:
    """Writes the folder of an engine that was built for a micro-controller."""
    with Needs("exporting engines for micro-controllers"):
        from pelton import mcu
    if engine.meta.get("profiles"):
        raise InputError(f"{model} has profiles, and micro-controllers run one of them; build it without --profile")
    if len(engine.parts) != 1 or engine.parts[0] is not engine:
        raise InputError(
            f"{model} has data-dependent control flow, which runs in Python, so it cannot be exported;"
            " `pelton check` lists it"
        )
    return mcu.write(engine.plain, folder, name)


def build_for(core: str, model: str, options: Mapping[str, Any], *, quiet: bool) -> Engine:
    """Builds a model for a core. Kernels are not timed there, so a cost model chooses them."""
    if model.endswith(".pelton"):
        raise InputError(
            f"{model} is an engine, which has its target; --target {core} needs the model that it was built from"
        )
    chosen = {"level": 0, **options, "threads": 1, "target": f"cpu:{MICRO_CONTROLLERS[core]}"}
    return build.build_engine(model, chosen, quiet=quiet)


def table(of: Footprint) -> str:
    """Returns a table of the memory that an engine takes."""
    rows = [
        ("flash", f"{of.flash:,}", "bytes"),
        ("  kernels", f"{of.kernels:,}", "machine code"),
        ("  tables", f"{of.tables:,}", "steps, arguments, functions"),
        ("  weights", f"{of.weights:,}", "constants"),
        ("RAM", f"{of.ram:,}", "one arena with inputs and outputs; the stack comes on top"),
    ]
    return text.table(rows, "lrl", indent="  ", heading=False)
