"""Compares TFLite models that Pelton writes with LiteRT: python -m benchmarks.litert PEER [MODEL…] [--page FILE]

PEER is a Python with ai-edge-litert. Each model, those of `models.py` first, is converted, run by LiteRT on random
inputs, and compared with the float64 evaluation of its program: floats by the largest difference relative to the
largest element. INT8 models, which are calibrated on random inputs, are compared at their outputs, and operator by
operator: each operator alone, on the operands that LiteRT computed. --page replaces the tables between the marks of a
page. Exits with 1 if a float model is off by more than 1e-4, if 0.1 % of the elements of an operator of integers are
more than a step off, or if LiteRT is much farther from the floats than the integers are by definition.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pelton.errors import InputError, ModelError
from pelton.exporters.tflite.edgetpu import rejections

from ..serve.page import replace_part
from .compare import Comparison, KERNELS, Unfit, compared
from .models import networks
from .operators import summed

FLOAT, SHARE, NOISE = 1e-4, 1e-3, 1.25  # tolerances: of the largest element; of the elements; of the noise
MARKS = ("<!-- python -m benchmarks.litert: begin -->", "<!-- python -m benchmarks.litert: end -->")
FLOATS = ("float model", "operators", "TRANSPOSE", "LiteRT off by")
INTEGERS = ("INT8 model", "operators", "in the Edge TPU's list", "worst operator", "at the end", "input moved")
INTEGERS += ("noise, defined", "noise, LiteRT")
BY_KIND = ("operator", "elements", "a step off", "more", "reference kernels: a step off", "more")


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("peer")
    ask.add_argument("models", nargs="*", type=Path, help="files, and folders of .onnx files")
    ask.add_argument("--page", type=Path)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--largest", type=float, default=20e6, help="weights up to which a model is quantized, too")
    given = ask.parse_args()
    logging.disable(logging.WARNING)
    found, failures = list[Comparison](), list[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        files = [f for p in given.models for f in (sorted(p.glob("*.onnx")) if p.is_dir() else [p])]
        for name, source in [*networks(Path(folder)), *((p.stem, p) for p in files)]:
            for int8 in (False, True):
                judge(name, source, int8, given, found, failures)
    if given.page:
        replace_part(given.page, *MARKS, ["", *tables(found, failures, version(given.peer)), ""])
    return 1 if failures else 0


def judge(
    name: str,
    source: Any,
    int8: bool,
    given: argparse.Namespace,
    found: list[Comparison],
    failures: list[tuple[str, str]],
) -> None:
    """Compares a model, and appends what came of it."""
    kind = "INT8" if int8 else "float"
    with tempfile.TemporaryDirectory() as folder:
        try:
            rng = np.random.default_rng(given.seed)
            c = compared(name, source, int8, given.peer, Path(folder), rng, given.largest)
        except (InputError, ModelError, Unfit) as e:
            failures.append((f"{name}, {kind}", " ".join(str(e).split())[:300]))
            print(*failures[-1], sep=": ", flush=True)
            return
    if c is not None:
        found.append(c)
        print(row(float_cells(c) if not c.matches else integer_cells(c)), flush=True)
        if fault := fault_of(c):
            failures.append((f"{name}, {kind}", fault))
            print(*failures[-1], sep=": ", flush=True)


def fault_of(c: Comparison) -> str:
    """Returns by what a model is beyond the tolerances, or ""."""
    if not c.matches:
        return f"{c.far:.1e} of the largest element" if c.far > FLOAT else ""
    if c.worst.share > SHARE:
        return f"{percent(c.worst.share)} of {c.worst.operator} more than a step off"
    if c.far > SHARE and c.noise is not None and c.noise[1] > NOISE * c.noise[0]:
        return f"noise {c.noise[1]:.2g}, by definition {c.noise[0]:.2g}"
    return ""


def tables(found: Sequence[Comparison], failures: Sequence[tuple[str, str]], peer: str) -> list[str]:
    """Returns the lines of the tables: float models, INT8 models, and operators of integers."""
    floats, integers = [c for c in found if not c.matches], [c for c in found if c.matches]
    total = {kind: summed(m for c in integers for m in c.matches[kind]) for kind in KERNELS}
    kinds = sorted(k for k in total["out"] if k != "DEQUANTIZE")
    ends = sum(c.far <= SHARE for c in integers)
    lines = [
        f"ai-edge-litert {peer}, {len(floats)} float models:",
        "",
        *headed(FLOATS, 1),
        *map(row, map(float_cells, floats)),
    ]
    lines += ["", f"{len(integers)} INT8 models; {ends} are within a step on 99.9 % at the end, too:", ""]
    lines += [*headed(INTEGERS, 1), *map(row, map(integer_cells, integers)), ""]
    lines += ["All operators of these:", "", *headed(BY_KIND, 1)]
    for kind in kinds:
        one, other = (total[k][kind] for k in KERNELS)
        cells = [kind, f"{one.elements:,}"]
        for m in (one, other):
            cells += [percent((m.different - m.beyond) / max(m.elements, 1)), percent(m.share)]
        lines.append(row(cells))
    for name, reason in failures:
        lines += ["", f"Not within the tolerance: {name}: {reason}"]
    return lines


def float_cells(c: Comparison) -> list[str]:
    counts = Counter(op.operator for op in c.file.operators)
    return [c.name, str(len(c.file.operators)), str(counts["TRANSPOSE"]), f"{c.far:.1e}"]


def integer_cells(c: Comparison) -> list[str]:
    count = len(c.file.operators)
    noise = ["", ""] if c.noise is None else [f"{100 * x:.1f} %" for x in c.noise]
    listed = count - len(rejections(c.file.operators))
    return [c.name, str(count), str(listed), percent(c.worst.share), percent(c.far), percent(c.moved), *noise]


def percent(share: float) -> str:
    return f"{100 * share:.3f} %" if share else "0"


def headed(columns: Sequence[str], left: int) -> list[str]:
    return [row(columns), "| " + " | ".join(["---"] * left + ["---:"] * (len(columns) - left)) + " |"]


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def version(peer: str) -> str:
    code = "import importlib.metadata as m; print(m.version('ai-edge-litert'))"
    return subprocess.run([peer, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
