"""Writes an engine for WebAssembly as a package: modules, weights, JavaScript, types, a page."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton import native
from pelton.bundle import identifier, tables
from pelton.codegen.c.toolchain import zig
from pelton.engine.plan import SIZES, EnginePlan
from pelton.errors import BuildError, EngineError, InputError
from pelton.system import files
from pelton.targets import ISAS

from . import texts
from .source import MOST_THREADS, NAME, STACK, c_source

LEVELS = tuple(level for level, isa in reversed(list(ISAS.items())) if isa.is_wasm)  # the best first
SOURCES, KERNEL = Path(__file__).parent / "files", Path(native.PATH).parent
PAGE = 1 << 16  # bytes of a page of memory, WebAssembly Core Specification 4.2.8
MOST_MEMORY = (1 << 31) - PAGE
SCRIPTS = ("pelton.mjs", "worker.mjs")
COMPILE = ("-target", "wasm32-freestanding", "-std=gnu2x", "-Oz", "-ffreestanding", "-fvisibility=hidden", "-g0", "-w")
LINK = ("--no-entry", "--strip-all", "--gc-sections", "--stack-first", "-z", f"stack-size={STACK}", "-O2")


def write(plans: Mapping[str, EnginePlan], folder: str | os.PathLike[str], name: str | None = None) -> list[Path]:
    """Writes an engine as a package for browsers and node, and returns the files.

    plans: level → the engine for it, with the same tactics in all; see LEVELS. name: of the package and its files, a C
    identifier; by default like the engine.

    Raises InputError if the engine needs Python, has dynamic shapes or does not fit into the memory of a module;
    BuildError if the compiler fails; EngineError if a file cannot be written.
    """
    plan = next(iter(plans.values()))
    name = name or identifier(plan.name, "engine")
    made = _package(plans, plan, name)
    written = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file, content in made.items():
            files.write(Path(folder, file), [content.encode() if isinstance(content, str) else content])
            written.append(Path(folder, file))
    except OSError as e:
        raise EngineError(f"{folder} cannot be written: {e.strerror or e}") from e
    return written


def refuse_dynamic(plan: EnginePlan) -> None:
    """Raises InputError for an engine of dynamic shapes."""
    if plan.symbols:
        raise InputError(f"{plan.label!r} has dynamic shapes; give one with --shapes, as in --shapes x=1x3x224x224")


def _package(plans: Mapping[str, EnginePlan], plan: EnginePlan, name: str) -> dict[str, str | bytes]:
    tables.refuse_what_needs_python(plan)
    refuse_dynamic(plan)
    where = tables.memory(plan, NAME)
    ports = [*plan.inputs, *plan.outputs]
    static = len(where.weights) + where.arena + sum(p.nbytes for p in ports)
    if static + where.scratch * MOST_THREADS > MOST_MEMORY:
        raise InputError(f"{plan.label!r} takes {static / 1e9:.1f} GB, and a module of WebAssembly has 2 GB of memory")
    pages = -(-(static + (where.scratch + STACK) * MOST_THREADS) // PAGE) + 16  # 16: tables of kernels, alignment
    made: dict[str, str | bytes] = {}
    for level, of in plans.items():
        memory = tables.memory(of, NAME)
        if memory.weights != where.weights:
            raise InputError(
                f"the engines for {' and '.join(plans)} have different weights; build them by one tactics file"
            )
        made[_file(name, level)] = link(of, memory, level, 0, 0)
        made[_file(name, level, "threads")] = link(of, memory, level, MOST_THREADS, pages)
    facts = _facts(plan, name, plans, where.weights, pages)
    made[f"{name}.bin"] = where.weights
    made |= {script: (SOURCES / script).read_text("utf-8") for script in SCRIPTS}
    made[f"{name}.mjs"] = texts.module(name, facts)
    made[f"{name}.d.ts"] = texts.types(name, plan)
    made["package.json"] = texts.package(name)
    made["index.html"] = texts.page(name, plan)
    made["README.md"] = texts.readme(name, plan, {f: len(b) for f, b in made.items()})
    return made


def _file(name: str, level: str, *more: str) -> str:
    return ".".join((name, level.partition("_")[2], *more, "wasm"))


def _facts(plan: EnginePlan, name: str, levels: Mapping[str, Any], weights: bytes, pages: int) -> dict[str, Any]:
    """Returns what the scripts know of the engine."""

    def described(ports) -> list[dict[str, Any]]:
        return [
            {"name": p.name, "type": p.dtype, "shape": list(p.shape), "elements": p.nbytes // SIZES[p.dtype]}
            for p in ports
        ]

    return {
        "name": name,
        "inputs": described(plan.inputs),
        "outputs": described(plan.outputs),
        "modules": {level.partition("_")[2]: _file(name, level) for level in levels},
        "shared": {level.partition("_")[2]: _file(name, level, "threads") for level in levels},
        "weights": f"{name}.bin?{hashlib.sha256(weights).hexdigest()[:16]}",
        "weightBytes": len(weights),
        "pages": pages,
        "mostThreads": MOST_THREADS,
    }


def link(plan: EnginePlan, memory: tables.BundleMemory, level: str, threads: int, pages: int) -> bytes:
    """Returns a module with the engine's kernels and the runtime. threads: the most that share its memory, of so many
    pages; 0 for one with memory of its own."""
    features, shared = list(ISAS[level].flags), []
    if threads:
        features += ["-matomics", "-mbulk-memory"]
        size = pages * PAGE
        shared = ["--import-memory", "--shared-memory", "--no-check-features", "--export=__stack_pointer"]
        shared += [f"--initial-memory={size}", f"--max-memory={size}"]
    defined = [f"-DTHREADS={threads}", f"-DSTACK={STACK}", f"-DSCRATCH={max(memory.scratch, 1)}"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tables.c").write_text(c_source(plan, memory, threads), "utf-8")
        Path(folder, "kernels.o").write_bytes(bytes(plan.code))
        for source in (Path(folder, "tables.c"), SOURCES / "runtime.c"):
            headers = [
                "-isystem",
                os.path.join(os.path.dirname(zig()), "lib", "include"),
                f"-I{SOURCES}",
                f"-I{KERNEL}",
            ]
            compile_ = [zig(), "clang", *COMPILE, *features, *defined, *headers, "-c", str(source)]
            _run([*compile_, "-o", f"{source.stem}.o"], folder)
        objects = ["runtime.o", "tables.o", "kernels.o"]
        _run([zig(), "wasm-ld", *LINK, *shared, *objects, "-o", "out.wasm"], folder)
        return Path(folder, "out.wasm").read_bytes()


def _run(command: list[str], folder: str) -> None:
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=folder, ZIG_LOCAL_CACHE_DIR=folder)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise BuildError(f"linking a module failed: {done.stderr.strip()[:2000]}")
