"""Runs MLPerf Tiny's networks on emulated Cortex-M boards, beside TensorFlow Lite Micro's arena.

    python -m benchmarks.mcu [--page benchmarks/mcu/results.md] [--cores cortex-m4,…] [--peer PYTHON] [NETWORK …]

`make test-mcu` installs what this needs. Each engine is exported, compiled and linked by zig, and run in QEMU on random
inputs. The exit status is 1 if outputs differ from those of the engine for x86-64 by one byte, or if a figure exceeds
its bound (`networks.py`).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import pelton
from pelton import mcu
from pelton.targets import MICRO_CONTROLLERS

from . import board, results
from .networks import NETWORKS, sample
from .results import Figures

FOLDER = Path("build/mcu").resolve()
CALIBRATION = 32  # samples that the peer's file is calibrated with


def main(arguments: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(
        prog="benchmarks.mcu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("networks", nargs="*", metavar="NETWORK", help=f"{', '.join(NETWORKS)}; default: all")
    ask.add_argument("--cores", default=",".join(MICRO_CONTROLLERS), help="separated by commas (default: all)")
    ask.add_argument("--samples", type=int, default=5, help="random inputs for each engine (default 5)")
    ask.add_argument("--page", type=Path, help="write the figures to this file")
    ask.add_argument("--peer", type=Path, help="a Python with the package tflite_micro")
    a = ask.parse_args(arguments)
    cores = a.cores.split(",")
    if unknown := [n for n in (*a.networks, *cores) if n not in NETWORKS and n not in MICRO_CONTROLLERS]:
        ask.error(f"there is no {unknown[0]!r}; networks: {', '.join(NETWORKS)}; cores: {', '.join(MICRO_CONTROLLERS)}")
    if a.samples < 1:
        ask.error(f"--samples is 1 or more, got {a.samples}")
    if reason := board.lacking():
        ask.error(reason)
    figures: list[Figures] = []
    failures: list[str] = []
    for name in a.networks or NETWORKS:
        try:
            for f in measure(name, cores, a.samples, a.peer):
                figures.append(f)
                print(results.line(f), flush=True)
                failures += results.wrong(f)
        except (board.BoardError, pelton.Error) as e:
            failures.append(f"{name}: {e}")
    if a.page and figures:
        a.page.write_text(results.page(figures, versions(a.peer), a.samples), "utf-8")
    print("\n".join(failures), file=sys.stderr, end="\n" * bool(failures))
    return bool(failures)


def measure(name: str, cores: Sequence[str], samples: int, peer: Path | None) -> Iterator[Figures]:
    """Yields the figures of a network on each core."""
    rng = np.random.default_rng()
    arena = peer_arena(name, peer) if peer else None
    reference = pelton.build(NETWORKS[name].build(True), level=0, threads=1)
    feeds = [{p.name: sample(p.numbers, rng) for p in reference.inputs} for _ in range(samples)]
    want = [reference.run(feed) for feed in feeds]
    for core in cores:
        engine = pelton.build(NETWORKS[name].build(True), level=0, threads=1, target=f"cpu:{MICRO_CONTROLLERS[core]}")
        folder = FOLDER / name / core
        exported = mcu.write(engine.plain, folder, "net")
        program = board.compile_example(folder, "net", core, FOLDER / "zig").resolve()
        runs = [board.run_example(program, engine.plain, list(feed.values())) for feed in feeds]
        equal = [
            all(
                got.tobytes() == expected.tobytes() for got, expected in zip(run.outputs, outputs.values(), strict=True)
            )
            for run, outputs in zip(runs, want)
        ]
        yield Figures(
            network=name,
            core=core,
            footprint=exported.footprint,
            instructions=max(run.instructions for run in runs),
            stack=max(run.stack for run in runs),
            equal=sum(equal),
            samples=samples,
            peer=arena,
        )


def peer_arena(name: str, peer: Path) -> int:
    """Returns the bytes of TensorFlow Lite Micro's arena for the layers of a network, calibrated on random inputs."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    network, rng = NETWORKS[name].build(False), np.random.default_rng(0)
    pelton.export_onnx(network, folder / "floats.onnx")
    samples = {
        x.name: np.concatenate([sample(tuple(map(int, x.shape)), rng) for _ in range(CALIBRATION)])
        for x in network.inputs
    }
    floats: dict[str, Any] = {k: (v.astype(np.float32) + 128) * np.float32(0.05) for k, v in samples.items()}
    np.savez(folder / "samples.npz", **floats)
    options = ["--calibration", str(folder / "samples.npz"), "--int8-ports", "-o", str(folder / "net.tflite")]
    _run([sys.executable, "-m", "pelton", "convert", str(folder / "floats.onnx"), *options])
    said = _run([str(peer), str(Path(__file__).with_name("tflm.py")), str(folder / "net.tflite")])
    found = re.search(r"Arena allocation total (\d+) bytes", said)
    if found is None:
        raise board.BoardError(f"tflite_micro reported no arena: {said[-500:]}")
    return int(found[1])


def versions(peer: Path | None) -> dict[str, str]:
    """Returns the versions of compilers, emulator and peer."""
    emulator = re.search(r"version ([\d.]+)", _run([board.QEMU, "--version"]))
    known = {"QEMU": emulator[1] if emulator else "?", "ziglang": metadata.version("ziglang")}
    if peer:
        known["tflite_micro"] = _run(
            [str(peer), "-c", "from importlib.metadata import version; print(version('tflite_micro'))"]
        ).strip()
    return known


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise board.BoardError(f"{' '.join(command[:4])} … ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
