#!/usr/bin/env python3
"""Compares the outputs of engines for another architecture, under an emulator, with those of engines for x86-64.

    python -m benchmarks.arm.engines MODEL… [--level aarch64_dotprod] [--int8] [--root build/arm/root]
                                     [--shapes x=1x3x224x224] [--page docs/arm.md]

Builds each model for `cpu:x86_64_v3` and for the level, without timing, and runs both on the same random arrays: an
engine for AArch64 as a file, by the C library; one for RISC-V as exported C. Prints a table; with --page, it replaces
the table between the marks of that page. --int8 calibrates with random arrays. It then compares with a level of
x86-64 whose weights have eight bits, too, which this CPU must have.

`x86-64 itself` is the same difference between two engines for x86-64, one of them `strict`: how much the order of sums
changes in this network. Emulation says nothing about times, so there are none. The status is 1 if an engine fails,
differs by more than 1e-5 and more than x86-64 itself, or differs at all where products are of bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import pelton
from pelton.backends.arrays import random_inputs
from pelton.backends.cpu.machine import identity
from pelton.cli.arrays import resolve_shapes
from pelton.targets import ISAS, fits

from . import emulation

LIMIT = 1e-5
# the level to compare with: calibrated weights have seven bits where x86-64 adds products of bytes in pairs
PEERS = {False: "x86_64_v3", True: "x86_64_v4_vnni"}
BEGIN, END = "<!-- engines: begin -->", "<!-- engines: end -->"
HEAD = (
    "| model | level | precision | steps | largest difference, of the largest output | x86-64 itself |",
    "| --- | --- | --- | ---: | ---: | ---: |",
)


@dataclass(frozen=True)
class Row:
    """An engine beside that of x86-64.

    difference: None if all bytes of the outputs are equal. own: of two engines for x86-64. problem: if it failed.
    """

    model: str
    level: str
    precision: str
    steps: int = 0
    difference: float | None = None
    own: float | None = None
    problem: str = ""

    @property
    def bad(self) -> bool:
        """True if the engine fails, or its outputs differ too much."""
        limit = max(LIMIT, self.own or 0.0) if self.precision == "FP32" else 0.0
        return bool(self.problem) or (self.difference or 0.0) > limit

    def __str__(self) -> str:
        difference = "equal bytes" if self.difference is None else f"{self.difference:.1e}"
        result = f"failed: {self.problem}" if self.problem else difference
        own = "" if self.own is None else f"{self.own:.1e}"
        return f"| {self.model} | {self.level} | {self.precision} | {self.steps} | {result} | {own} |"


def main(arguments: Sequence[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--level", action="append", choices=[level for level in ISAS if ISAS[level].arch != "x86_64"])
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--root", type=Path, default=Path("build/arm/root"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--shapes", action="append", default=[], metavar="NAME=SIZES")
    args = parser.parse_args(arguments)
    shapes = dict(s.split("=", 1) for s in args.shapes)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = emulation.runner(Path(folder))
        for model in args.models:
            for level in args.level or ["aarch64_dotprod"]:
                rows.append(compare(model, level, args.int8, shapes, args.root, program, Path(folder)))
                print(rows[-1], flush=True)
    if args.page:
        replace_table(args.page, rows)
    return any(row.bad for row in rows)


def compare(
    model: Path, level: str, int8: bool, shapes: Mapping[str, str], root: Path, program: Path, folder: Path
) -> Row:
    """Builds a model for both levels, runs both engines, and compares their outputs."""
    row = Row(model.stem, level, "INT8, calibrated" if int8 else "FP32")
    try:
        here = PEERS[int8]
        if not fits(here, identity()):
            raise pelton.InputError(f"this CPU does not run {here}")
        options = {"level": 0, "shapes": dict(shapes) or None}
        plain = pelton.build(model, target=f"cpu:{here}", **options)
        feeds = random_inputs(
            [replace(p, shape=s) for p, s in zip(plain.inputs, resolve_shapes(plain, {}).values())], 1
        )
        if int8:
            samples = [
                random_inputs([replace(p, shape=feeds[p.name].shape) for p in plain.inputs], k) for k in range(16)
            ]
            options |= {"precision": "int8", "calibration": samples}
            plain = pelton.build(model, target=f"cpu:{here}", **options)
        elif is_quantized(plain):
            row = replace(row, precision="INT8, the model's own")
        want = list(plain.run(feeds).values())
        if row.precision == "FP32":
            strict = pelton.build(model, target=f"cpu:{here}", strict=True, **options).run(feeds).values()
            row = replace(row, own=max(map(emulation.difference, strict, want)))
        engine = pelton.build(model, target=f"cpu:{level}", **options)
        row = replace(row, steps=len(engine.plain.steps))
        arrays = [np.ascontiguousarray(feeds[p.name]) for p in engine.inputs]
        room = folder / f"{model.stem}-{level}"
        if ISAS[level].arch == "aarch64":
            engine.save(folder / "net.pelton")
            raw = emulation.run_file(root, program, folder / "net.pelton", arrays, room)
        else:
            raw = emulation.run_bundle(engine.plain, arrays, room)
        got = emulation.arrays(raw, engine.outputs, want)
        if all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True)):
            return row
        return replace(row, difference=max(map(emulation.difference, got, want)))
    except (pelton.Error, RuntimeError, ValueError) as e:
        return replace(row, problem=" ".join(str(e).split())[-200:])


def is_quantized(engine: pelton.Engine) -> bool:
    """Returns True if products of the engine are of bytes."""
    return any("_int8" in step.info.get("tactic", "") for step in engine.steps)


def replace_table(page: Path, rows: Sequence[Row]) -> None:
    """Writes the table between the marks of a page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{page} has no marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n" + "\n".join([*HEAD, *map(str, rows)]) + f"\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
