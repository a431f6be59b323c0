"""`pelton export --target wasm`: a package for browsers and node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError, Needs
from pelton.option_checks import CALIBRATED
from pelton.system.temporary import temporary_folder

from . import build

if TYPE_CHECKING:
    from pelton.engine.plan import EnginePlan

WASM = "wasm"  # the value of --target
# By default steps have tiles for so many threads. Two threads beside one, engines for one and for two, untimed, in node
# on two cores: BERT of 6 layers 1.30 and 1.69, MobileNetV2 1.33 and 1.68; one thread alone is as fast with either.
THREADS = 2
OF_TIMING = ("budget", "timing_cache")  # options that builds by recorded tactics do not take


def export(model: str, folder: str, name: str | None, options: Mapping[str, Any], *, quiet: bool) -> list[Path]:
    """Builds a model for all levels of WebAssembly with one set of tactics, and writes the package."""
    if refused := [f"--{key.replace('_', '-')}" for key in ("save_tactics", "load_tactics") if key in options]:
        raise InputError(
            f"--target {WASM} builds engines for several levels, so it does not take {' or '.join(refused)}"
        )
    if model.endswith(".pelton"):
        raise InputError(
            f"{model} has code for one kind of CPU; --target {WASM} needs the model that it was built from"
        )
    with Needs("building engines"):
        from pelton import web
    return web.write(_build(model, dict(options), quiet), folder, name)


def _build(model: str, options: dict[str, Any], quiet: bool) -> dict[str, EnginePlan]:
    """Builds the best level, and the others by its tactics: they read the same weights."""
    from pelton import web

    # tactics are of one program, and calibrated precisions compile several: code that every browser runs
    levels = web.LEVELS[-1:] if options.get("precision") in CALIBRATED else web.LEVELS
    plans: dict[str, EnginePlan] = {}
    with temporary_folder() as where:
        recorded = os.path.join(where, "tactics.json")
        for level in levels:
            tactics: dict[str, Any] = {"save_tactics": recorded} if len(levels) > 1 else {}
            if plans:
                text = Path(recorded).read_text("utf-8").replace(levels[0], level)
                Path(recorded + level).write_text(text, "utf-8")
                tactics = {"load_tactics": recorded + level}
                options = {name: value for name, value in options.items() if name not in OF_TIMING}
            engine = build.build_engine(model, {**options, **tactics, "target": f"cpu:{level}"}, quiet=quiet)
            _refuse_parts(model, engine)
            plans[level] = engine.plain
    return plans


def _refuse_parts(model: str, engine: Any) -> None:
    if len(engine.parts) != 1 or engine.parts[0] is not engine:
        raise InputError(
            f"{model} has data-dependent control flow or profiles, which run in Python, so it cannot be exported;"
            " `pelton check` lists control flow"
        )
