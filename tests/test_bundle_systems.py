"""Exported engines on other systems: their sources compile for each, and run on Windows where Wine is here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from models import small_cnn

import pelton
from pelton import bundle, native
from pelton.backends.arrays import random_inputs
from pelton.codegen.c.toolchain import zig

SYSTEMS = {
    "x86_64_v3": ("x86_64-windows-gnu", "x86_64-macos", "x86_64-linux-musl"),
    "aarch64_dotprod": ("aarch64-macos", "aarch64-windows-gnu", "aarch64-linux-musl"),
    "riscv64_v": ("riscv64-linux-musl",),
}
SOURCES = ("main.c", "net.c", "net_data.S", "cpu.c")
STRICT = "-std=gnu11 -O1 -Wall -Wextra -Werror -I.".split()


def written(folder: Path, level: str, cache: Path) -> pelton.Engine:
    engine = pelton.build(small_cnn(size=12), level=0, target=f"cpu:{level}", cache_dir=cache)
    bundle.write(engine.plain, folder, "net")
    return engine


def compiled(folder: Path, system: str, sources: Sequence[str], *flags: str) -> None:
    """Compiles sources of a bundle for a system."""
    done = subprocess.run(
        [zig(), "cc", "-target", system, *STRICT, *sources, *flags], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{system}: {done.stderr[-3000:]}"


@pytest.mark.parametrize("level", SYSTEMS)
def test_bundles_compile_for_every_system(level, kernel_cache, tmp_path):
    written(tmp_path, level, kernel_cache)
    for system in SYSTEMS[level]:
        for source in SOURCES:
            compiled(tmp_path, system, [source], "-c", "-o", "object")


@pytest.mark.parametrize("system", ["x86_64-macos", "aarch64-macos"])
def test_the_runtime_compiles_for_macos(system, tmp_path):
    folder = Path(native.PATH).parent
    for source in (p for p in folder.glob("*.c") if p.name != "ports.c"):
        compiled(folder, system, [source.name], "-c", "-o", str(tmp_path / "object"))


@pytest.mark.skipif(
    not (os.environ.get("PELTON_TEST_WINE") and shutil.which("wine")), reason="`make test-windows` has Wine"
)
def test_a_program_for_windows_gives_what_the_engine_gives(kernel_cache, tmp_path):
    engine = written(tmp_path, "x86_64_v3", kernel_cache)
    compiled(tmp_path, "x86_64-windows-gnu", SOURCES, "-o", "net.exe")
    inputs = random_inputs(engine.inputs, 3)
    (name,) = inputs
    inputs[name].tofile(tmp_path / "in.bin")
    command, quiet = ["wine", "net.exe", "in.bin", "out.bin"], {**os.environ, "WINEDEBUG": "-all"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=quiet, timeout=600)
    assert done.returncode == 0 and "median of 100 runs" in done.stdout, done.stderr
    (want,) = engine.context(threads=1).run(inputs).values()
    assert (tmp_path / "out.bin").read_bytes() == want.tobytes()
