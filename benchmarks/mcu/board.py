"""Compiles the example of an exported engine by zig, and runs it on an emulated board."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pelton.codegen.c.toolchain import zig
from pelton.engine.plan import EnginePlan, numpy_dtype
from pelton.mcu.targets import CORES, core_of
from pelton.targets import ISAS, MICRO_CONTROLLERS

QEMU = "qemu-system-arm"
# a compiler's own functions for floats without an FPU, by zig's names of the cores
OF_ZIG = {"thumb-generic": ("eabi", "cortex_m3")}
COMPILE = ("-O2", "-std=c11", "-ffreestanding", "-fno-builtin", "-fno-stack-protector", "-g0", "-Wall", "-Wextra")


class BoardError(Exception):
    """A program that does not compile or run."""


@dataclass(frozen=True)
class BoardRun:
    """What an engine did on a board: the bytes of its outputs, instructions of a run, bytes of stack."""

    outputs: Sequence[np.ndarray]
    instructions: int
    stack: int


def lacking() -> str | None:
    """Returns the reason why no board can be emulated here, or None."""
    return None if shutil.which(QEMU) else f"{QEMU} is not installed: apt install qemu-system-arm"


def compile_example(folder: Path, name: str, core: str, cache: Path | None = None) -> Path:
    """Compiles and links the program in `qemu/` of an exported engine, and returns it.

    cache: zig's, where it keeps a compiler's own functions; without one, the program must not need any. Raises
    BoardError.
    """
    isa, board, qemu = ISAS[MICRO_CONTROLLERS[core]], CORES[core].board, folder / "qemu"
    include = Path(zig()).parent / "lib" / "include"
    sources = [qemu / "main.c", qemu / "start.c", folder / f"{name}.c", folder / f"{name}_weights.c"]
    objects = [qemu / f"{source.stem}.o" for source in sources]
    for source, made in zip(sources, objects):
        command = [zig(), "clang", "-target", isa.triple, *isa.flags, *COMPILE, "-isystem", str(include)]
        _run([*command, f"-I{folder}", f"-I{qemu}", "-c", str(source), "-o", str(made)], qemu, cache or qemu)
    script = (qemu / "board.ld").read_text()
    for kind, (at, size) in (("FLASH", board.flash), ("RAM", board.ram)):
        script = script.replace(f"{kind}_AT", f"{at:#x}").replace(f"{kind}_SIZE", f"{size:#x}")
    (qemu / "memory.ld").write_text(script)
    program, library = qemu / "example.elf", folder / f"lib{name}_kernels.a"
    parts = [*map(str, objects), str(library), "-o", str(program)]
    if cache is None:
        _run([zig(), "ld.lld", "-T", "memory.ld", "--gc-sections", *parts], qemu, qemu)
    else:
        abi, cpu = OF_ZIG.get(core, ("eabihf", core.replace("-", "_")))
        link = [zig(), "cc", "-target", f"thumb-freestanding-{abi}", f"-mcpu={cpu}", "-T", "memory.ld"]
        _run([*link, "-Wl,--gc-sections", "-Wl,-e,start", *parts], qemu, cache)
    return program


def run_example(program: Path, plan: EnginePlan, feeds: Sequence[np.ndarray]) -> BoardRun:
    """Runs an engine twice on these inputs; measures the second run. Raises BoardError."""
    board, folder = core_of(plan.target["isa"])[1].board, program.parent
    for i, array in enumerate(feeds):
        array.tofile(folder / f"input{i}.bin")
    for old in folder.glob("output*.bin"):
        old.unlink()
    command = [QEMU, "-M", board.machine, "-nographic", "-monitor", "none", "-serial", "none", "-semihosting"]
    said = _run([*command, "-icount", "shift=0", "-kernel", str(program)], folder, folder)
    numbers = dict(re.findall(r"(\w+) (\d+)", said))  # of two runs, the second
    if not {"ticks", "stack"} <= numbers.keys():
        raise BoardError(f"{program} printed {said!r}")
    outputs = [
        np.fromfile(folder / f"output{i}.bin", numpy_dtype(p.dtype)).reshape(p.numbers)
        for i, p in enumerate(plan.outputs)
    ]
    return BoardRun(outputs, round(int(numbers["ticks"]) * board.tick), int(numbers["stack"]))


def _run(command: Sequence[str], folder: Path, cache: Path) -> str:
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(cache.resolve()), ZIG_LOCAL_CACHE_DIR=str(cache.resolve()))
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, errors="replace", timeout=600
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BoardError(f"{command[0]} failed: {e}") from e
    if done.returncode:
        raise BoardError(
            f"{' '.join(command[:4])} … ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout + done.stderr
