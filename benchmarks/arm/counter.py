"""QEMU with the plugin of icount.c, and programs for it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pelton.codegen.c.toolchain import zig

FOLDER = Path(__file__).parent
BUILD = FOLDER.parents[1] / "build" / "arm"
QEMU = "qemu-aarch64"


@dataclass(frozen=True)
class Counts:
    """Instructions between two marks: all, multiply-adds of f32 vectors, dot products, loads and stores."""

    all: int
    multiply_adds: int
    dots: int
    memory: int


class EmulatorError(Exception):
    """A compiler or a program under the emulator failed."""


def run(command: Sequence[str | Path], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command. Raises EmulatorError if it is missing or fails."""
    try:
        return subprocess.run([*map(str, command)], input=stdin, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise EmulatorError(f"{command[0]} is missing; install qemu-user and gcc") from None
    except subprocess.CalledProcessError as e:
        raise EmulatorError(f"{command[0]} fails: {e.stderr.strip()[-500:]}") from None


@cache
def plugin() -> Path:
    """Compiles the plugin for this machine, and returns its path."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / "libicount.so"
    run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", FOLDER / "icount.c", "-o", path])
    return path


def compile_program(output: Path, libc: str, arguments: Sequence[str | Path]) -> Path:
    """Compiles a program for AArch64 Linux by the compiler of kernels. libc: "musl" or "gnu"."""
    run([zig(), "cc", "-target", f"aarch64-linux-{libc}", "-O2", f"-I{FOLDER}", *arguments, "-o", output])
    return output


def count(
    program: Path, arguments: Sequence[str | Path] = (), root: Path | None = None, stdin: str = ""
) -> list[Counts]:
    """Runs a program and returns the counts at each of its marks. root: the folder of its libraries."""
    where: list[str | Path] = [] if root is None else ["-L", root]
    done = run([QEMU, "-cpu", "max", *where, "-plugin", plugin(), program, *arguments], stdin)
    return [Counts(*map(int, line.split())) for line in done.stderr.splitlines()]


def versions() -> dict[str, str]:
    """Returns the versions of the emulator and of the compiler."""
    qemu = run([QEMU, "--version"]).stdout.splitlines()[0].split("version ")[-1].split()[0]
    clang = run([zig(), "cc", "--version"]).stdout.splitlines()[0].split("version ")[-1].split()[0]
    return {"QEMU": qemu, "clang": clang}
