"""Writes an engine for WebAssembly as a package: modules, weights, JavaScript, types, a page."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pelton import native
from pelton.bundle import identifier, tables
from pelton.codegen.c.toolchain import zig
from pelton.engine import sizes
from pelton.engine.plan import SIZES, EnginePlan, Port
from pelton.engine.stored import plan_rows
from pelton.errors import BuildError, EngineError, InputError
from pelton.record import record
from pelton.system import files
from pelton.targets import ISAS

from . import texts
from .source import MOST_THREADS, NAME, STACK, dynamic_source, fixed_source

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

    Raises InputError if the engine needs Python or does not fit into the memory of a module; BuildError if the compiler
    fails; EngineError if a file cannot be written.
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


@record(frozen=True)
class ModuleMemory:
    """The weights of a package, in bytes; the pages of memory that a module with threads begins with, and has at most;
    what a module of known sizes needs of the rest is in `layout`."""

    weights: bytes
    pages: int
    most_pages: int
    layout: tables.BundleMemory | None


def _package(plans: Mapping[str, EnginePlan], plan: EnginePlan, name: str) -> dict[str, str | bytes]:
    tables.refuse_what_needs_python(plan)
    memory = _memory(plan)
    made: dict[str, str | bytes] = {}
    for level, of in plans.items():
        own = _memory(of)
        if own.weights != memory.weights:
            raise InputError(
                f"the engines for {' and '.join(plans)} have different weights; build them by one tactics file"
            )
        made[_file(name, level)] = link(of, own, level, 0)
        made[_file(name, level, "threads")] = link(of, own, level, MOST_THREADS)
    facts = _facts(plan, name, plans, memory)
    made[f"{name}.bin"] = memory.weights
    made |= {script: (SOURCES / script).read_text("utf-8") for script in SCRIPTS}
    made[f"{name}.mjs"] = texts.module(name, facts)
    made[f"{name}.d.ts"] = texts.types(name, plan)
    made["package.json"] = texts.package(name)
    made["index.html"] = texts.page(name, plan)
    made["README.md"] = texts.readme(name, plan, {f: len(b) for f, b in made.items()})
    return made


def _memory(plan: EnginePlan) -> ModuleMemory:
    """Lays out the memory of an engine. Raises InputError if a module has too little."""
    at = sizes.at(plan, {s.name: s.optimum for s in plan.symbols})
    where = tables.memory(at, NAME)
    weights = bytes(tables.bytes_of(plan.constants)) if plan.symbols else where.weights
    needed = len(weights) + _room(at, where)
    if needed > MOST_MEMORY:
        raise InputError(f"{plan.label!r} takes {needed / 1e9:.1f} GB, and a module of WebAssembly has 2 GB of memory")
    tables_of_c = len(plan_rows(plan).bytes) if plan.symbols else 0
    own = len(weights) + tables_of_c + STACK * MOST_THREADS
    if not plan.symbols:
        pages = _pages(own + _room(at, where))
        return ModuleMemory(weights, pages, pages, where)
    greatest = sizes.at(plan, {s.name: s.maximum for s in plan.symbols})
    room = _room(greatest, tables.BundleMemory(b"", (), greatest.arena, _scratch(greatest)))
    # smaller sizes may need more now and then, as memory is laid out anew
    return ModuleMemory(weights, _pages(own), min(_pages(own + 2 * room), MOST_MEMORY // PAGE), None)


def _room(plan: EnginePlan, of: tables.BundleMemory) -> int:
    """Returns the bytes of inputs, outputs, intermediate values and scratch, for the most threads."""
    return of.arena + sum(p.nbytes for p in (*plan.inputs, *plan.outputs)) + of.scratch * MOST_THREADS


def _scratch(plan: EnginePlan) -> int:
    return max((s.scratch for s in plan.steps), default=0)


def _pages(size: int) -> int:
    return -(-size // PAGE) + 16  # tables of kernels, alignment


def _file(name: str, level: str, *more: str) -> str:
    return ".".join((name, level.partition("_")[2], *more, "wasm"))


def _facts(plan: EnginePlan, name: str, levels: Mapping[str, Any], memory: ModuleMemory) -> dict[str, Any]:
    """Returns what the scripts know of the engine."""
    at = sizes.at(plan, {s.name: s.optimum for s in plan.symbols})

    def described(ports: Sequence[Port], tuned: Sequence[Port]) -> list[dict[str, Any]]:
        return [
            {
                "name": p.name,
                "type": p.dtype,
                "shape": list(p.shape),
                **({"optimum": list(t.shape)} if p != t else {"elements": p.nbytes // SIZES[p.dtype]}),
                **({"indices": asdict(p.indices)} if p.indices else {}),
            }
            for p, t in zip(ports, tuned, strict=True)
        ]

    digest = hashlib.sha256(memory.weights).hexdigest()
    return {
        "name": name,
        "inputs": described(plan.inputs, at.inputs),
        "outputs": described(plan.outputs, at.outputs),
        "modules": {level.partition("_")[2]: _file(name, level) for level in levels},
        "shared": {level.partition("_")[2]: _file(name, level, "threads") for level in levels},
        "weights": f"{name}.bin?{digest[:16]}",
        "weightBytes": len(memory.weights),
        "sha256": digest,
        "pages": memory.pages,
        "mostPages": memory.most_pages,
        "mostThreads": MOST_THREADS,
        "dynamic": bool(plan.symbols),
    }


def link(plan: EnginePlan, memory: ModuleMemory, level: str, threads: int) -> bytes:
    """Returns a module with the engine's kernels and the runtime. threads: the most that share its memory; 0 for a
    module with memory of its own."""
    features, shared = list(ISAS[level].flags), []
    if threads:
        features += ["-matomics", "-mbulk-memory"]
        shared = ["--import-memory", "--shared-memory", "--no-check-features", "--export=__stack_pointer"]
        shared += [f"--initial-memory={memory.pages * PAGE}", f"--max-memory={memory.most_pages * PAGE}"]
    most = memory.most_pages * PAGE if threads else MOST_MEMORY
    defined = [f"-DTHREADS={threads}", f"-DSTACK={STACK}", f"-DDYNAMIC={int(bool(plan.symbols))}"]
    sources = [SOURCES / "runtime.c"]
    if memory.layout is None:
        text = dynamic_source(plan, plan_rows(plan).bytes)
        sources += [SOURCES / "dynamic.c", KERNEL / "plan.c", KERNEL / "resolve.c"]
        defined += [f"-DMOST_MEMORY={most}"]
    else:
        text = fixed_source(plan, memory.layout, threads)
        defined += [f"-DSCRATCH={max(memory.layout.scratch, 1)}"]
    headers = ["-isystem", os.path.join(os.path.dirname(zig()), "lib", "include"), f"-I{SOURCES}", f"-I{KERNEL}"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tables.c").write_text(text, "utf-8")
        Path(folder, "kernels.o").write_bytes(bytes(plan.code))
        sources.append(Path(folder, "tables.c"))
        for source in sources:
            compile_ = [zig(), "clang", *COMPILE, *features, *defined, *headers, "-c", str(source)]
            _run([*compile_, "-o", f"{source.stem}.o"], folder)
        objects = [*(f"{source.stem}.o" for source in sources), "kernels.o"]
        _run([zig(), "wasm-ld", *LINK, *shared, *objects, "-o", "out.wasm"], folder)
        return Path(folder, "out.wasm").read_bytes()


def _run(command: list[str], folder: str) -> None:
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=folder, ZIG_LOCAL_CACHE_DIR=folder)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise BuildError(f"linking a module failed: {done.stderr.strip()[:2000]}")
