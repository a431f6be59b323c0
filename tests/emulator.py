"""Runs kernels for other architectures under QEMU's emulation of user processes, those for WebAssembly by node. Those
for micro-controllers run as processes, too, of the core that they are for.

With PELTON_TEST_EMULATE=aarch64_dotprod, or another level, in the environment, the tests of kernels walk them for this
level. `riscv64_v:256` has vectors of 256 bits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

import pytest

from pelton import native
from pelton.targets import ISAS
from pelton.tuning import measure_wasm

LEVEL, _, VLEN = os.environ.get("PELTON_TEST_EMULATE", "").partition(":")
here = pytest.mark.skipif(bool(LEVEL), reason="its kernels run in this process, which is not emulated")
Words = Sequence[tuple[int, int]]


def command(level: str) -> list[str]:
    """What runs a program of a level's architecture."""
    from benchmarks.arm.emulation import CPUS  # of this repository's root, where `make` runs tests

    emulator = shutil.which(f"qemu-{ISAS[level].arch}")
    assert emulator, "the emulator is missing: `make test-arm-kernels` unpacks it"
    return [emulator, "-cpu", CPUS[level] + (f",vlen={VLEN}" if VLEN else "")]


@cache
def _runner(arch: str) -> Path:
    """A static program that runs a kernel; compiled once, as the C library below it takes a minute."""
    source, here = Path(__file__).parent / "native" / "run_kernel.c", Path(__file__).parents[1] / "build" / "emulator"
    made = here / arch / f"run_kernel-{sha256(source.read_bytes()).hexdigest()[:12]}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}")
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl", "-static", "-O1"]
        command = [*zig, "-fno-sanitize=all", f"-I{Path(native.PATH).parent}", source, "-o", part]
        caches = {"ZIG_GLOBAL_CACHE_DIR": str(here / "zig"), "ZIG_LOCAL_CACHE_DIR": str(here / "zig")}
        subprocess.run(command, check=True, env={**os.environ, **caches})
        os.replace(part, made)
    return made


@lru_cache(maxsize=4)
def _module(code: bytes, symbol: str) -> bytes:
    """A module that exports a kernel of an engine's object, and its memory."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "code.o").write_bytes(code)
        exports = [f"--export={name}" for name in (symbol, "__heap_base")]
        linker = [sys.executable, "-m", "ziglang", "wasm-ld", "--no-entry", "--strip-all", *exports]
        subprocess.run([*linker, "code.o", "-o", "code.wasm"], cwd=folder, check=True)
        return Path(folder, "code.wasm").read_bytes()


# QEMU's names of the cores of levels, and zig's
CORES = {"thumb_m3": "cortex-m3", "thumb_m4": "cortex-m4", "thumb_m7": "cortex-m7", "thumb_m33": "cortex-m33"}
CORES |= {"thumb_m55": "cortex-m55"}


@lru_cache(maxsize=4)
def _thumb_program(level: str, code: bytes, symbol: str) -> bytes:
    """A program that runs a kernel of an engine's object."""
    here = Path(__file__).parents[1] / "build" / "emulator"
    floats = "hf" if "-mfloat-abi=hard" in ISAS[level].flags else ""
    machine = ["-target", f"thumb-freestanding-eabi{floats}", f"-mcpu={CORES[level].replace('-', '_')}"]
    options = ["-static", "-O1", "-fno-sanitize=all", "-fomit-frame-pointer", f"-I{Path(native.PATH).parent}"]
    options += [f"-Dkernel_to_run={symbol}"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "code.o").write_bytes(code)
        zig = [sys.executable, "-m", "ziglang", "cc", *machine, *options]
        caches = {"ZIG_GLOBAL_CACHE_DIR": str(here / "zig"), "ZIG_LOCAL_CACHE_DIR": str(here / "zig")}
        source = Path(__file__).parent / "native" / "run_kernel_thumb.c"
        command = [*zig, source, "code.o", "-o", "program"]
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, **caches})
        return Path(folder, "program").read_bytes()


def run(
    level: str,
    code: bytes,
    symbol: str,
    buffers: Sequence[memoryview],
    words: Words,
    scratch: tuple[int, int],
    calls: Sequence[tuple[int, int]],
) -> int:
    """The status of a process that ran a kernel: negative where a signal ended it. buffers: whole pages each, which
    are changed in place; words, scratch: (buffer, offset), or (-1, value)."""

    if ISAS[level].is_wasm:
        assert measure_wasm.node(), "node is missing: apt install nodejs"
        program = measure_wasm.command(str(Path(__file__).parent / "native" / "run_kernel.mjs"))
        code = _module(code, symbol)
    elif ISAS[level].is_thumb:
        emulator = shutil.which("qemu-arm")
        assert emulator, "the emulator is missing: `make test-mcu-kernels` unpacks it"
        program, code = [emulator, "-cpu", CORES[level]], _thumb_program(level, code, symbol)
    else:
        program = [*command(level), _runner(ISAS[level].arch)]

    def numbers() -> Iterator[int]:
        at = 0
        yield len(buffers)
        for b in buffers:
            yield from (at, len(b))
            at += len(b)
        yield len(words)
        for pair in words:
            yield from pair
        yield from scratch
        yield len(calls)
        for pair in calls:
            yield from pair

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        library, memory = Path(folder, "code.so"), Path(folder, "memory")
        library.write_bytes(code)
        library.chmod(0o755)
        with memory.open("wb") as file:
            for b in buffers:
                file.write(b)
        done = subprocess.run(
            [*program, library, *([] if ISAS[level].is_thumb else [symbol]), memory],
            input=b"".join(n.to_bytes(8, "little", signed=True) for n in numbers()),
            capture_output=True,
        )
        with memory.open("rb") as file:
            for b in buffers:
                file.readinto(b)
    return done.returncode
