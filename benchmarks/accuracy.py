#!/usr/bin/env python3
"""Measures errors against float64, relative to the largest output.

    accuracy.py MODEL.onnx … [--peers-python VENV/bin/python]

Compares Pelton with default settings, Pelton with --strict and, if the Python has it, ONNX Runtime on a random input.
"""

import argparse
import pathlib
import subprocess
import tempfile

import numpy as np

import pelton
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Value

PEER = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
names = [o.name for o in session.get_outputs()]
numpy.savez(sys.argv[3], **dict(zip(names, session.run(names, dict(numpy.load(sys.argv[2]))))))
"""


def off(got, want) -> float:
    return max(float(np.abs(got[k].astype(np.float64) - want[k]).max() / np.abs(want[k]).max()) for k in want)


def draw(v: Value, rng: np.random.Generator) -> np.ndarray:
    """Normal floats, masks of ones, small integers."""
    shape, dtype = v.type.shape, v.type.dtype.numpy
    if v.type.dtype.is_float:
        return rng.standard_normal(shape).astype(dtype)
    return np.ones(shape, dtype) if "mask" in v.name else rng.integers(0, 1000, shape).astype(dtype)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+")
    ask.add_argument("--peers-python")
    ask.add_argument("--level", type=int, default=0)
    a = ask.parse_args()
    print("| model | Pelton | Pelton, strict | ONNX Runtime |\n|---|---|---|---|")
    for model in a.models:
        graph = importer.load(model).graph
        rng = np.random.default_rng(0)
        x = {v.name: draw(v, rng) for v in graph.inputs}
        want = evaluate(graph, x, round=False)
        row = [off(pelton.build(model, level=a.level, strict=strict).run(x), want) for strict in (False, True)]
        if a.peers_python:
            with tempfile.TemporaryDirectory() as d:
                np.savez(f"{d}/x.npz", **x)
                subprocess.run(
                    [a.peers_python, "-c", PEER, model, f"{d}/x.npz", f"{d}/y.npz"],
                    check=True,
                    stderr=subprocess.DEVNULL,
                )
                row.append(off(dict(np.load(f"{d}/y.npz")), want))
        print(f"| {pathlib.Path(model).stem} | " + " | ".join(f"{e:.1e}" for e in row) + " |", flush=True)


if __name__ == "__main__":
    main()
