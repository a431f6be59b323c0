#!/usr/bin/env python3
"""Measures the accuracy of INT8 engines for each calibrator and number of calibration pictures.

    python benchmarks/calibration.py CALIBRATION.npz TEST.npz MODEL.onnx … [--counts 5,10,50,500] [--batch N]
                                     [--output PAGE.md]

Both .npz files contain pictures, `x` u8[n, height, width, 3], and their classes, `y` i64[n]. The model's input is
f32[batch, 3, height, width] from 0 to 255, its output a score per class. Every engine has all possible layers in INT8
(no accuracy bound), is built without timing for this CPU, and runs on all of TEST. Top-1 is the share of correct
classes, agreement the share of classes equal to FP32's, SQNR that of all scores, in dB. As in builds, a fifth of five
or more batches is held out.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pelton
from pelton import calibration, metrics

CALIBRATORS: dict[str, Callable] = {
    "mean squared error": calibration.MseCalibrator,
    "min-max": calibration.MinMaxCalibrator,
    "entropy": calibration.EntropyCalibrator,
    "percentile 99.99": calibration.PercentileCalibrator,
}


def pictures(x: np.ndarray) -> np.ndarray:
    """u8[n, height, width, 3] → f32[n, 3, height, width]"""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2).astype(np.float32))


def run(engine: pelton.Engine, x: np.ndarray, batch: int) -> np.ndarray:
    """The scores of all pictures."""
    name = engine.inputs[0].name
    found = [next(iter(engine.run({name: x[i : i + batch]}).values())).copy() for i in range(0, len(x), batch)]
    return np.concatenate(found)


def table(model: Path, data: dict[str, np.ndarray], test: dict[str, np.ndarray], counts: list[int], batch: int) -> str:
    """A table of a model: a row for each number of pictures, three columns for each calibrator."""
    x, y, name = pictures(test["x"]), test["y"], pelton.build(model, level=0).inputs[0].name
    shapes = {name: (batch, *x.shape[1:])}
    want = run(pelton.build(model, shapes, level=0), x, batch)
    lines = [
        f"## {model.stem}",
        "",
        f"FP32: top-1 {(want.argmax(1) == y).mean():.2%} of {len(y)} pictures.",
        "",
        "| pictures | " + " | ".join(f"{kind}: top-1, agreement, SQNR" for kind in CALIBRATORS) + " |",
        "| ---: | " + " | ".join("---:" for _ in CALIBRATORS) + " |",
    ]
    for count in counts:
        cells = []
        for kind in CALIBRATORS.values():
            given = kind({name: pictures(data["x"][:count])})
            engine = pelton.build(model, shapes, level=0, precision="int8", calibration=given, max_drop=float("inf"))
            found = run(engine, x, batch)
            cells.append(
                f"{(found.argmax(1) == y).mean():.2%}, {metrics.agreement(want, found):.2%},"
                f" {metrics.sqnr(want, found):.1f} dB"
            )
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("calibration", type=Path, metavar="CALIBRATION.npz")
    ask.add_argument("test", type=Path, metavar="TEST.npz")
    ask.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    ask.add_argument("--counts", default="5,10,50,500", help="numbers of pictures")
    ask.add_argument("--batch", type=int, default=5, help="pictures of a run (a part of all counts)")
    ask.add_argument("--output", type=Path, metavar="PAGE.md")
    a = ask.parse_args()
    data, test = dict(np.load(a.calibration)), dict(np.load(a.test))
    counts = [int(n) for n in a.counts.split(",")]
    tables = [table(model, data, test, counts, a.batch) for model in a.models]
    isa = pelton.build(a.models[0], level=0).plain.target["isa"]
    page = [
        "# Accuracy of INT8, by calibrator",
        "",
        "Written by `python benchmarks/calibration.py CALIBRATION.npz TEST.npz MODEL.onnx … --output"
        " docs/int8-accuracy.md`; its\ndocstring defines the columns.",
        "",
        f"Pelton {pelton.__version__}, {isa}, {datetime.date.today()}; {len(test['y'])} test pictures, every"
        " possible layer in integers.",
    ]
    text = "\n".join(page) + "\n\n" + "\n\n".join(tables) + "\n"
    if a.output:
        a.output.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
