"""Runs engines, bundles and programs of other architectures under qemu's user emulation.

`make arm-root` unpacks what programs for AArch64 need. Programs that are linked statically need qemu alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pelton import bundle, native
from pelton.engine.plan import EnginePlan, Port, numpy_dtype

HERE = Path(__file__).parent
NATIVE = Path(native.PATH).parent
FOR_PYTHON = ("ports.c",)
# of levels, those that have its features and, where there is such a CPU, nothing more
CPUS = {
    "aarch64": "cortex-a72",
    "aarch64_dotprod": "cortex-a76",
    "aarch64_i8mm": "max",
    "riscv64_v": "rv64,v=true,vext_spec=v1.0",
}


def lacking(*programs: str) -> str | None:
    """Returns the reason why emulated programs cannot run here, or None."""
    missing = [p for p in programs if shutil.which(p) is None]
    return f"{', '.join(missing)} not installed: apt install qemu-user proot" if missing else None


def compile_for(triple: str, output: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Compiles C by zig, and returns the program."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, "-O2", "-Wall", "-Wextra", *flags]
    _run([*command, *map(str, sources), "-o", str(output), "-lpthread", "-ldl", "-lm"])
    return output


def compile_with_library(name: Path, folder: Path) -> Path:
    """Compiles a C program with the library's sources for AArch64 and the root's C library."""
    sources = [p for p in sorted(NATIVE.glob("*.c")) if p.name not in FOR_PYTHON]
    flags = ("-std=gnu2x", f"-I{NATIVE}")
    return compile_for("aarch64-linux-gnu.2.17", folder / name.stem, [name, *sources], *flags)


def runner(folder: Path) -> Path:
    """Compiles the program that `run_file` needs."""
    return compile_with_library(HERE / "run.c", folder)


def run_program(root: Path, program: Path, *arguments: object, cpu: str = "max") -> str:
    """Runs a dynamic program for AArch64 with the libraries of a root, and returns what it prints."""
    return _run(["qemu-aarch64", "-cpu", cpu, "-L", str(root), str(program), *map(str, arguments)])


def run_file(root: Path, program: Path, engine: Path, feeds: Sequence[np.ndarray], folder: Path) -> list[bytes]:
    """Runs an engine file by the C library, and returns the bytes of the outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("out*"):
        old.unlink()
    for i, array in enumerate(feeds):
        array.tofile(folder / f"in{i}")
        np.array(array.shape, np.int64).tofile(folder / f"shape{i}")
    run_program(root, program, engine, folder)
    return [p.read_bytes() for p in sorted(folder.glob("out*"), key=lambda p: int(p.name[3:]))]


def run_bundle(plan: EnginePlan, feeds: Sequence[np.ndarray], folder: Path) -> list[bytes]:
    """Exports an engine for these shapes as C, compiles and runs it, and returns the bytes of the outputs."""
    shapes = {p.name: array.shape for p, array in zip(plan.inputs, feeds, strict=True)}
    fixed = bundle.at_shapes(plan, shapes)
    bundle.write(fixed, folder, "net")
    machine, level = fixed.target["arch"], fixed.target["isa"]
    sources = [folder / name for name in ("main.c", "net.c", "net_data.S", "cpu.c")]
    program = compile_for(f"{machine}-linux-musl", folder / "main", sources, "-static", "-DRUNS=1", f"-I{folder}")
    ins, outs = (
        [folder / f"{kind}{i}" for i in range(n)] for kind, n in (("in", len(feeds)), ("out", len(fixed.outputs)))
    )
    for path, array in zip(ins, feeds):
        array.tofile(path)
    _run([f"qemu-{machine}", "-cpu", CPUS[level], str(program), *map(str, ins + outs)])
    return [p.read_bytes() for p in outs]


def guest(root: Path, *command: object, binds: Mapping[Path, str] | None = None, cpu: str = "max") -> list[str]:
    """Returns the command that runs a program of the root inside of it; its child processes are emulated, too.

    binds: folders of this machine, and where the root has them.
    """
    bound = [f"{path}:{at}" for path, at in (binds or {}).items()]
    inside = [word for b in ("/proc", "/dev", *bound) for word in ("-b", b)]
    return ["proot", "-r", str(root), "-q", f"qemu-aarch64 -cpu {cpu}", *inside, "-w", "/tmp", *map(str, command)]


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of programs in the root: nothing of this machine's but the path."""
    return {
        "PATH": f"/usr/local/bin:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        **more,
    }


def arrays(outputs: Sequence[bytes], ports: Sequence[Port], like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs as arrays of the shapes of others; raises ValueError for other sizes."""
    return [
        np.frombuffer(data, numpy_dtype(p.dtype)).reshape(array.shape)
        for data, p, array in zip(outputs, ports, like, strict=True)
    ]


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Returns the largest difference by the largest finite magnitude of what is expected; infinity if NaN or infinities
    are at other places."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    largest = np.abs(b[finite]).max(initial=0.0)
    error = np.abs(a[finite] - b[finite]).max(initial=0.0)
    return float(error / largest) if error else 0.0


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:8])} … ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout
