"""Packages for browsers and node, for tests: networks, packages of them, and programs that import them in node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pelton
from pelton import native, web

CIFAR = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed: apt install nodejs")
# what programs begin with: messages of errors, random inputs, and outputs in base64
PRELUDE = """
import fs from "node:fs";
import { load, start, facts } from "./%s.mjs";
const said = async (run) => { try { await run(); return "none"; } catch (e) { return `${e.name}: ${e.message}`; } };
const bytes = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");
const floats = (n, seed) => Float32Array.from({ length: n }, (_, i) => Math.sin(i * 12.9898 + seed));
"""


def write(
    network: Any, folder: Path, levels: Sequence[str] = web.LEVELS, name: str | None = None, **options: Any
) -> Path:
    """Writes a package of a network, built without timing."""
    options = {"level": 0, "threads": 1, **options}
    plans = {level: pelton.build(network, target=f"cpu:{level}", **options).plain for level in levels}
    web.write(plans, folder, name)
    return folder


def run(folder: Path, program: str, name: str = "net", timeout: float = 120) -> Any:
    """Runs a program of JavaScript beside a package; returns what it prints last, decoded."""
    Path(folder, "test.mjs").write_text(PRELUDE % name + program, "utf-8")
    done = subprocess.run([str(NODE), "test.mjs"], cwd=folder, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def sine(n: int, seed: int) -> np.ndarray:
    """The numbers that `floats` of a program makes."""
    return np.sin(np.arange(n) * 12.9898 + seed).astype(np.float32)


def with_kernels(network: Any, folder: Path, bodies: Mapping[int, str], tiles: int) -> Path:
    """Writes a package whose kernels are given as C, by the number of their step, in functions of `a`, `begin`, `end`
    and `thread`; all steps have so many tiles."""
    plan = pelton.build(network, target=f"cpu:{web.LEVELS[-1]}", level=0, threads=1).plain
    assert len(plan.steps) == len(bodies)
    source = '#include "kernel.h"\nextern char scratch[];\n'
    for i, s in enumerate(plan.steps):
        source += f"""
__attribute__((visibility("hidden"))) void {s.symbol}(const args *a, idx begin, idx end, void *own) {{
    const int thread = ((char *)own - scratch) / 4096;
    {bodies[i]}
}}"""
    (folder.parent / "kernels.c").write_text(source, "utf-8")
    compile_ = [sys.executable, "-m", "ziglang", "clang", "-target", "wasm32-freestanding", "-msimd128", "-O1"]
    include = f"-I{Path(native.PATH).parent}"
    headers = ["-isystem", str(Path(ziglang_folder(), "lib", "include"))]
    subprocess.run(
        [*compile_, "-ffreestanding", include, *headers, "-c", "kernels.c", "-o", "kernels.o"],
        cwd=folder.parent,
        check=True,
    )
    steps = tuple(replace(s, tiles=tiles, scratch=4096, phases=1) for s in plan.steps)
    code = (folder.parent / "kernels.o").read_bytes()
    web.write({web.LEVELS[-1]: replace(plan, steps=steps, code=code)}, folder)
    return folder


def ziglang_folder() -> str:
    from pelton.codegen.c.toolchain import zig

    return str(Path(zig()).parent)
