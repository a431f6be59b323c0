"""Writes an engine as a folder of C sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton import native
from pelton.engine import sizes
from pelton.engine.plan import EnginePlan, Step
from pelton.engine.stored import plan_rows
from pelton.errors import EngineError, InputError
from pelton.system import files
from pelton.version import VERSION

from . import readme, tables
from .image import image

SOURCES = Path(native.PATH).parent
FIXED = ("bundle.h", "kernel.h", "export.h", "cpu.h", "cpu.c")
LARGEST = 1 << 30  # bytes of weights: code and data must be within 2 GB of each other


def write(plan: EnginePlan, folder: str | os.PathLike[str], name: str | None = None, threads: int = 1) -> list[Path]:
    """Writes an engine for CPUs as C sources, with all that it needs, and returns the files.

    name: prefix of its functions and files, a C identifier; by default like the engine. threads: 1, with an engine of
    known sizes, writes one function without a library; anything else writes an engine for `pelton.h`, with the runtime
    as source.

    Raises InputError if the engine needs Python, or for an invalid name; EngineError if a file cannot be written.
    """
    if plan.absent:
        raise InputError(f"engine {plan.label!r} was built without its weights; refit it first")
    tables.refuse_what_needs_python(plan)
    name = tables.identifier(plan.name, "engine") if name is None else name
    if not name.isidentifier() or not name.isascii() or name in tables.KEYWORDS:
        raise InputError(f"{name!r} is no valid name of C functions; use letters, digits and _, without a digit first")
    is_fixed = not plan.symbols and threads == 1
    code = image(bytes(plan.code)) if plan.steps else None
    used = tables.kernels(_kernels(plan), code.symbols, name) if code else {}
    made = _fixed(plan, name, used) if is_fixed else _linked(plan, name, used)
    made[f"{name}_code.bin"] = code.code if code else b""
    if len(made[f"{name}_weights.bin"]) > LARGEST:
        raise InputError(f"it has {len(made[f'{name}_weights.bin']) / 1e9:.1f} GB of weights; load the engine file")
    written = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file, content in made.items():
            Path(folder, file).parent.mkdir(exist_ok=True)
            files.write(Path(folder, file), [content.encode() if isinstance(content, str) else content])
            written.append(Path(folder, file))
    except OSError as e:
        raise EngineError(f"{folder} cannot be written: {e.strerror or e}") from e
    return written


def _about(plan: EnginePlan, name: str) -> str:
    return f"{name}: an engine for {plan.target.get('isa')}, written by Pelton {VERSION}."


def _fixed(plan: EnginePlan, name: str, used: Mapping[str, str]) -> dict[str, str | bytes]:
    where = tables.memory(plan, name)
    return {
        **{file: (SOURCES / file).read_bytes() for file in FIXED},
        f"{name}.h": tables.fixed_header(plan, name, _about(plan, name)),
        f"{name}.c": tables.fixed_source(plan, name, where, used),
        f"{name}_data.S": tables.data_source(name),
        f"{name}_weights.bin": where.weights,
        "main.c": readme.fixed_main(plan, name),
        "CMakeLists.txt": readme.cmake(name, ("cpu.c",), threads=False),
        "README.md": readme.fixed_readme(plan, name, where),
    }


def _kernels(plan: EnginePlan) -> list[Step]:
    """Returns all steps, then all alternatives, as in the engine's file."""
    return [*plan.steps, *(k for s in plan.steps for k in s.alternatives)]


def _linked(plan: EnginePlan, name: str, used: Mapping[str, str]) -> dict[str, str | bytes]:
    rows, weights = plan_rows(plan), tables.bytes_of(plan.constants)
    sizes = {"plan": len(rows.bytes), "weights": len(weights)}
    runtime = [p for p in sorted(SOURCES.rglob("*.[ch]")) if p.name not in ("ports.c", "bundle.h")]
    return {
        **{str(p.relative_to(SOURCES)): p.read_bytes() for p in runtime},
        f"{name}.h": tables.linked_header(name, _about(plan, name)),
        f"{name}.c": tables.linked_source(name, _kernels(plan), used, sizes),
        f"{name}_data.S": tables.data_source(name, has_plan=True),
        f"{name}_plan.bin": rows.bytes,
        f"{name}_weights.bin": bytes(weights),
        "main.c": readme.linked_main(plan, name),
        "CMakeLists.txt": readme.cmake(name, [p.name for p in runtime if p.suffix == ".c"], threads=True),
        "README.md": readme.linked_readme(plan, name),
    }


def at_shapes(plan: EnginePlan, shapes: Mapping[str, tuple[int, ...]]) -> EnginePlan:
    """Returns the engine for inputs of these shapes alone. Raises InputError if it does not accept them."""
    named: dict[str, Any] = {p.name: shapes.get(p.name, p.shape) for p in plan.inputs}
    if unknown := [name for name in shapes if name not in named]:
        raise InputError(f"there is no input {unknown[0]!r}; the inputs are {', '.join(named)}")
    for p in plan.inputs:
        if any(isinstance(d, str) for d in named[p.name]) or len(named[p.name]) != len(p.shape):
            raise InputError(f"input {p.name!r} is {p}; pass one size per axis, as in {p.name}=1x3x224x224")
    if why := sizes.misfit(plan, named):
        raise InputError(why)
    return sizes.at(plan, sizes.solve(plan, named))
