"""The figures of engines on emulated boards, their bounds and their page."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pelton.mcu import CORES, Footprint
from pelton.version import VERSION

from .networks import NETWORKS

MEASURED = "cortex-m4"  # the core whose figures have bounds


@dataclass(frozen=True)
class Figures:
    """An engine on a core. `equal`: on how many of `samples` inputs its outputs had the bytes of the engine for x86-64.
    `peer`: bytes of TensorFlow Lite Micro's arena for the same network, None where it was not measured."""

    network: str
    core: str
    footprint: Footprint
    instructions: int
    stack: int
    equal: int
    samples: int
    peer: int | None


def wrong(f: Figures) -> Iterator[str]:
    """Yields a line for each bound that figures exceed."""
    of, where = NETWORKS[f.network], f"{f.network} on {f.core}"
    if f.equal != f.samples:
        yield f"{where}: outputs equal those of x86-64 for {f.equal} of {f.samples} inputs"
    if f.peer is not None and f.footprint.ram > f.peer:
        yield f"{where}: {f.footprint.ram:,} bytes of RAM, TensorFlow Lite Micro's arena has {f.peer:,}"
    if f.core != MEASURED:
        return
    for what, got, most in (
        ("bytes of RAM", f.footprint.ram, of.ram),
        ("bytes of code", f.footprint.kernels, of.code),
        ("instructions", f.instructions, of.instructions),
    ):
        if most is not None and got > most:
            yield f"{where}: {got:,} {what}, more than {most:,}"


def line(f: Figures) -> str:
    """Returns figures for the terminal."""
    return (
        f"{f.network} on {f.core}: {f.equal} of {f.samples} equal, RAM {f.footprint.ram:,}, kernels"
        f" {f.footprint.kernels:,}, tables {f.footprint.tables:,}, weights {f.footprint.weights:,}, instructions"
        f" {f.instructions:,}, stack {f.stack:,}"
    )


def page(figures: Sequence[Figures], versions: Mapping[str, str], samples: int) -> str:
    """Returns the page of figures, in Markdown."""
    about = ", ".join(f"{package} {version}" for package, version in versions.items())
    head = "| core | equal | RAM | kernels | tables | weights | instructions | stack |\n| --- |" + " ---: |" * 7
    parts = []
    for name, of in NETWORKS.items():
        own = [f for f in figures if f.network == name]
        if not own:
            continue
        rows = [
            f"| {f.core} | {f.equal} of {f.samples} | {f.footprint.ram:,} | {f.footprint.kernels:,} |"
            f" {f.footprint.tables:,} | {f.footprint.weights:,} | {f.instructions / 1e6:.2f} M | {f.stack:,} |"
            for f in own
        ]
        peer = own[0].peer
        beside = f"TensorFlow Lite Micro's arena for this network: {peer:,} bytes.\n\n" if peer is not None else ""
        parts.append(f"## {of.title}\n\n{beside}{head}\n" + "\n".join(rows))
    boards = ", ".join(f"{core} on {of.board.machine}" for core, of in CORES.items())
    return f"""# Micro-controllers

MLPerf Tiny's four networks in INT8 with random weights, on boards that QEMU emulates. `make test-mcu` writes this page.

- **equal**: inputs for which all bytes of the outputs are those of the engine for x86-64, of {samples} random inputs.
- **RAM**: the engine's arena, in bytes, with inputs and outputs. Nothing else is allocated. **stack**: the deepest.
- **kernels**, **tables**, **weights**: flash, in bytes of the compiled objects.
- **instructions** of a run, by QEMU's `-icount`. They are not cycles: memory, branches and dual issue are not modelled.
- TensorFlow Lite Micro's arena is what the package `tflite_micro` reports after a run of the same layers, calibrated by
  `pelton convert`. Its interpreter, tables and kernels come on top, as Pelton's do.

{boards}. Cortex-M55 runs without its vectors (MVE). No board was at hand.

{(chr(10) * 2).join(parts)}

Pelton {VERSION}, {about}, {datetime.date.today()}.
"""
