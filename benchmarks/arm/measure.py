"""The instructions of the steps of an engine, and of XNNPACK's convolutions."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pelton
from pelton import bundle

from .counter import BUILD, FOLDER, Counts, compile_program, count, run
from .layers import ConvolutionLayer

# Debian's XNNPACK and what it needs; unpacked into a folder, not installed
PACKAGES = "libxnnpack0 libxnnpack-dev libpthreadpool0 libpthreadpool-dev libcpuinfo0 libc6 libstdc++6 libgcc-s1"


@dataclass(frozen=True)
class StepCounts:
    """A step of an engine: the layers that it computes, its tactic, its instructions."""

    layers: tuple[str, ...]
    op: str
    tactic: str
    counts: Counts


def engine_of(network: pelton.Network, level: str) -> pelton.Engine:
    """Builds an untimed engine, which chooses tactics by cost models."""
    return pelton.build(network, target=f"cpu:{level}", level=0, threads=1)


def count_steps(engine: pelton.Engine, x: np.ndarray, folder: Path) -> tuple[list[StepCounts], bytes]:
    """Returns the counts of an engine's steps for an input, and the output's bytes."""
    plan = engine.plain
    (taken,), (made,) = plan.inputs, plan.outputs
    bundle.write(plan, folder, "engine")
    (folder / "input.bin").write_bytes(np.ascontiguousarray(x).tobytes())
    defined = ['-DSOURCE="engine.c"', "-DRUN=engine_run", f"-DIN_BYTES={taken.nbytes}", f"-DOUT_BYTES={made.nbytes}"]
    sources = [FOLDER / "run_kernels.c", folder / "engine_data.S"]
    program = compile_program(folder / "run", "musl", ["-static", f"-I{folder}", *defined, *sources])
    _, *counts = count(program, [folder / "input.bin", folder / "output.bin"])
    assert len(counts) == len(plan.steps)
    steps = [StepCounts(tuple(s.info["layers"]), s.info["op"], s.info["tactic"], c) for s, c in zip(plan.steps, counts)]
    return steps, (folder / "output.bin").read_bytes()


def xnnpack_root() -> Path:
    """Fetches XNNPACK for AArch64 once, and returns the root of its files."""
    root, state = BUILD / "xnnpack-root", BUILD / "apt"
    if root.exists():
        return root
    for folder in ("lists/partial", "archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    own: dict[str, str | Path] = {"Dir::State": state, "Dir::State::status": state / "status", "Dir::Cache": state}
    own.update({"APT::Architecture": "arm64", "APT::Architectures": "arm64", "APT::Sandbox::User": "root"})
    options = [f"-o{k}={v}" for k, v in own.items()]
    run(["apt-get", *options, "update"])
    subprocess.run(["apt-get", "-qq", *options, "download", *PACKAGES.split()], cwd=state, check=True)
    part = root.with_suffix(".part")
    for package in sorted(state.glob("*.deb")):
        run(["dpkg", "-x", package, part])
    return part.rename(root)


def xnnpack_version() -> str:
    """Returns the version of XNNPACK's package."""
    (path,) = (BUILD / "apt").glob("libxnnpack0_*.deb")
    return path.name.split("_")[1].replace("%7e", "~")


def count_xnnpack(layers: Sequence[ConvolutionLayer], kind: str) -> list[Counts]:
    """Returns the counts of XNNPACK for each convolution. kind: "f32", or "qc8" for bytes scaled by channel."""
    root = xnnpack_root()
    libraries = root / "usr" / "lib" / "aarch64-linux-gnu"
    shared = [next(libraries.glob(f"lib{name}.so*")) for name in ("XNNPACK", "pthreadpool", "cpuinfo")]
    allowed = "-Wl,--allow-shlib-undefined"
    program = compile_program(
        BUILD / "xnnpack", "gnu", [f"-I{root / 'usr' / 'include'}", FOLDER / "xnnpack.c", *shared, allowed]
    )
    lines = "\n".join(" ".join(map(str, layer.sizes)) for layer in layers)
    return count(program, [kind], root, lines)[1::2]
