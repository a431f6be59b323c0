#!/usr/bin/env python3
"""Checks engines for NVIDIA GPUs at full size, on a machine without a GPU.

    PYTHONPATH=src python -m benchmarks.interpreted MODEL.onnx … [--target cuda:sm_90] [--precision fp16 …] [--jobs N]

Builds each model for the target and compiles its kernels. Triton's interpreter then runs the engine's launches in the
memory of its plan, and the outputs for random inputs are compared with float64, which takes minutes per model. A GPU's
instructions, barriers and memory are not involved; see `python -m benchmarks.gpu`. Prints a table; exits with 1 if an
output exceeds the tolerance.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pelton.builder.build import build_detailed
from pelton.errors import Error
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.options import PRECISIONS, Options

from .gpu import suite
from .child import ROOT

HEAD = "| model | target | precision | launches | off, of the largest output | may be |\n|---|---|---|---|---|---|"


def rows(
    models: Sequence[Path], targets: Sequence[str], precisions: Sequence[str], jobs: int, seed: int = 0
) -> Iterator[tuple[str, float, float]]:
    """For each model, target and precision: a label, the error of its outputs, and the error that is allowed."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    import triton_interpreter

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes to come: tiles are small
    with triton_interpreter.apart(jobs) as pool:
        begun = []
        for path in models:
            graph = importer.load(path).graph
            feeds = suite.drawn(suite.ports(graph), seed)
            want = evaluate(graph, feeds, round=False)
            for target in targets:
                for precision in precisions:
                    options = Options(target=target, precision=precision, level=0)
                    made = build_detailed(path, options)
                    ran = pool.submit(
                        triton_interpreter.ran,
                        made.engine.tobytes(),
                        triton_interpreter.sources(made),
                        feeds,
                        arch=min(options.architectures or (90,)),
                    )
                    begun.append((f"| {path.stem} | {target} | {precision}", ran, want, suite.TOLERANCE[precision]))
        for about, ran, want, allowed in begun:
            got, launched = ran.result()
            yield f"{about} | {len(launched)}", suite.off(got, want), allowed


def main(arguments: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    ask.add_argument("--target", nargs="+", default=["cuda:sm_90"])
    ask.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32", "fp16"])
    ask.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="engines that are interpreted at the same time"
    )
    ask.add_argument("--seed", type=int, default=0, metavar="N", help="of the inputs")
    a = ask.parse_args(arguments)
    if any(target.startswith("cpu") for target in a.target):
        ask.error("engines for CPUs need no interpreter: see benchmarks/accuracy.py")
    print(HEAD, flush=True)
    wrong = 0
    try:
        for said, off, allowed in rows(a.models, a.target, a.precision, a.jobs, a.seed):
            print(f"{said} | {off:.1e} | {allowed:g} |", flush=True)
            wrong += not off <= allowed
    except Error as e:
        ask.error(str(e))
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
