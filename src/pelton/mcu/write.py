"""Writes an engine for a micro-controller as a folder: C sources, a library of kernels, builds and an example."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pelton import native
from pelton.bundle import identifier, tables
from pelton.codegen.c.toolchain import zig
from pelton.engine.plan import EnginePlan
from pelton.errors import BuildError, EngineError, InputError
from pelton.record import record
from pelton.system import files
from pelton.targets import ISAS, MICRO_CONTROLLERS
from pelton.version import VERSION

from . import elf, projects, source, texts
from .footprint import Footprint
from .memory import StaticMemory, static_memory
from .targets import core_of

SOURCES, KERNEL = Path(__file__).parent / "files", Path(native.PATH).parent / "kernel.h"
COMPILE = ("-std=c11", "-Os", "-ffreestanding", "-fno-stack-protector", "-g0", "-w", "-c")
# what programs have without a C library's input, output and memory
FROM_LIBRARY = ("memcpy", "memmove", "memset")
FROM_COMPILER = "__"  # begins the names of a compiler's own functions: divisions, floats without an FPU


@record(frozen=True)
class ExportedFolder:
    """The files of an exported engine, and its sizes."""

    files: Sequence[Path]
    footprint: Footprint


def write(plan: EnginePlan, folder: str | os.PathLike[str], name: str | None = None) -> ExportedFolder:
    """Writes an engine for a micro-controller as a folder.

    name: of the engine's functions and files, a C identifier; by default like the engine.

    Raises InputError if the engine needs Python, has dynamic shapes or is for other targets; BuildError if its sources
    do not compile, or need more than a compiler has; EngineError if a file cannot be written.
    """
    name = name or identifier(plan.name, "engine")
    if not name.isidentifier() or not name.isascii() or name in tables.KEYWORDS:
        raise InputError(f"{name!r} is no valid name of C functions; use letters, digits and _, without a digit first")
    refuse(plan)
    memory = static_memory(plan)
    made, measured = compiled(plan, name, memory)
    made |= projects.files(plan, name)
    made["README.md"] = texts.readme(plan, name, measured)
    written = []
    try:
        for file, content in made.items():
            Path(folder, file).parent.mkdir(parents=True, exist_ok=True)
            files.write(Path(folder, file), [content.encode() if isinstance(content, str) else content])
            written.append(Path(folder, file))
    except OSError as e:
        raise EngineError(f"{folder} cannot be written: {e.strerror or e}") from e
    return ExportedFolder(tuple(written), measured)


def refuse(plan: EnginePlan) -> None:
    """Raises InputError for an engine that no micro-controller runs."""
    if plan.target.get("isa") not in MICRO_CONTROLLERS.values():
        raise InputError(
            f"{plan.label!r} is for {plan.target.get('isa') or plan.target.get('arch')}; micro-controllers are"
            f" {', '.join(MICRO_CONTROLLERS)}"
        )
    if plan.absent:
        raise InputError(f"engine {plan.label!r} was built without its weights; refit it first")
    if plan.symbols:
        raise InputError(
            f"{plan.label!r} has dynamic shapes, and memory of a micro-controller is laid out at build time; give one"
            " size for each with --shapes, as in --shapes x=1x3x96x96"
        )
    tables.refuse_what_needs_python(plan)


def compiled(plan: EnginePlan, name: str, memory: StaticMemory) -> tuple[dict[str, str | bytes], Footprint]:
    """Returns the sources of an engine with its library, by file, and the sizes of what a compiler makes of them."""
    kernels = elf.for_programs(bytes(plan.code)) if plan.steps else b""
    made: dict[str, str | bytes] = {
        f"{name}.h": source.header(plan, name, memory, f"{name}: an engine for {_core(plan)}, by Pelton {VERSION}."),
        f"{name}.c": source.source(plan, name, memory),
        f"{name}_weights.c": source.weights_source(name, memory.weights),
        "pelton_mcu.h": (SOURCES / "pelton_mcu.h").read_bytes(),
        "pelton_kernel.h": KERNEL.read_bytes(),
    }
    isa = ISAS[plan.target["isa"]]
    with tempfile.TemporaryDirectory() as where:
        for file, content in made.items():
            Path(where, file).write_bytes(content.encode() if isinstance(content, str) else content)
        for part in (name, f"{name}_weights"):
            _run([zig(), "clang", "-target", isa.triple, *isa.flags, *COMPILE, *_headers(), f"{part}.c"], where)
        tables_of, weights = (elf.sizes(Path(where, f"{part}.o").read_bytes()) for part in (name, f"{name}_weights"))
        Path(where, "kernels.o").write_bytes(kernels)
        if kernels:
            _run([zig(), "ar", "rcsD", "kernels.a", "kernels.o"], where)
            made[f"lib{name}_kernels.a"] = Path(where, "kernels.a").read_bytes()
    code = elf.sizes(kernels) if kernels else elf.ObjectSizes(0, 0, 0, 0, ())
    if code.data or code.zeroed or tables_of.data or weights.data:
        raise BuildError("the engine's sources have variables besides its arena, please report this")
    needs = tuple(sorted({*code.undefined} | {s for s in tables_of.undefined if s in FROM_LIBRARY}))
    if missing := [s for s in needs if s not in FROM_LIBRARY and not s.startswith(FROM_COMPILER)]:
        raise BuildError(
            f"kernels call {', '.join(missing)}, which programs without a C library lack; `pelton check` names the"
            " operators"
        )
    return made, Footprint(
        kernels=code.text + code.constants,
        tables=tables_of.text + tables_of.constants,
        weights=weights.constants,
        ram=tables_of.zeroed,
        needs=needs,
    )


def _core(plan: EnginePlan) -> str:
    return core_of(plan.target["isa"])[0]


def _headers() -> tuple[str, ...]:
    return ("-isystem", os.path.join(os.path.dirname(zig()), "lib", "include"))


def _run(command: list[str], folder: str) -> None:
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=folder, ZIG_LOCAL_CACHE_DIR=folder)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise BuildError(f"compiling the sources of an engine failed: {done.stderr.strip()[:2000]}")
