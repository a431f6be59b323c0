"""Compares TFLite models that Pelton writes with LiteRT: python -m benchmarks.litert PEER [MODEL…] [--page FILE]

PEER is a Python with ai-edge-litert. Each model is converted, run by LiteRT on random inputs, and compared with the
float64 evaluation of its program: floats by the largest difference relative to the largest element, INT8 models, which
are calibrated on random inputs, by the share of elements that differ by more than one quantization step, which may be
0.1 %, or twice the share by which LiteRT's default and reference kernels differ from each other. The networks of tests/
and of the package are always compared. --page replaces the table between the marks of a page. Exits with 1 if a model
differs by more.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pelton import importers
from pelton.errors import InputError, ModelError
from pelton.exporters import tflite
from pelton.ir import dims
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Value
from pelton.ops import words

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
FLOAT, STEPS, SHARE = 1e-4, 1.01, 1e-3  # tolerances: of the largest element; steps; share of elements beyond these
BATCHES = 4  # for calibration
FEWEST = 8  # different numbers of an output
MARKS = ("<!-- python -m benchmarks.litert: begin -->", "<!-- python -m benchmarks.litert: end -->")


@dataclass
class Comparison:
    """A model that is written: its program and the values that its outputs must have."""

    name: str
    int8: bool
    file: tflite.TFLiteFile
    wanted: dict[str, np.ndarray]
    steps: dict[str, float]


def networks() -> Iterator[tuple[str, Any]]:
    """Yields the networks of the tests and of the package."""
    from models import inverted_residuals, small_cnn, wide_cnn
    from quantized_models import qdq_cnn

    yield "resnet20_cifar10", ROOT / "src/pelton/data/resnet20_cifar10.onnx"
    yield "small_cnn", small_cnn()
    yield "wide_cnn", wide_cnn()
    yield "inverted_residuals", inverted_residuals()
    yield "qdq_cnn", qdq_cnn()


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("peer")
    ask.add_argument("models", nargs="*", type=Path)
    ask.add_argument("--page", type=Path)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--largest", type=float, default=20e6, help="weights up to which a model is quantized, too")
    given = ask.parse_args()
    logging.disable(logging.WARNING)
    rows, failed = list[str](), 0
    for name, source in [*networks(), *((p.stem, p) for p in given.models)]:
        for int8 in (False, True):
            row, is_right = compared(name, source, int8, given)
            if row:
                print(row, flush=True)
                rows.append(row)
                failed += not is_right
    if given.page:
        write(given.page, rows, given.peer)
    return 1 if failed else 0


def compared(name: str, source: Any, int8: bool, given: argparse.Namespace) -> tuple[str, bool]:
    """Returns the row of a model, or "" if there is nothing to compare, and True if it is within the tolerance."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            rng = np.random.default_rng(given.seed)
            c = comparison(name, source, int8, Path(folder), rng, given.largest)
        except (InputError, ModelError) as e:
            return f"| {name} | {'INT8' if int8 else 'float'} | – | – | {' '.join(str(e).split())[:300]} | | |", False
        if c is None:
            return "", True
        subprocess.run(
            [given.peer, Path(__file__).with_name("litert_peer.py"), folder], check=True, capture_output=True
        )
        error = Path(folder, "model.error")
        if error.exists():
            return f"| {name} | {'INT8' if int8 else 'float'} | – | – | LiteRT: {error.read_text()[:200]} | | |", False
        with np.load(Path(folder, "model.out.npz")) as outputs:
            worst = max(difference(outputs[k], w, c.steps.get(k)) for k, w in c.wanted.items())
        noise = None
        if c.steps:
            with np.load(Path(folder, "model.out.npz")) as a, np.load(Path(folder, "model.reference.npz")) as b:
                noise = max(difference(a[k], b[k], c.steps[k]) for k in c.wanted)
    return row_of(c, worst, noise)


def row_of(c: Comparison, worst: float, noise: float | None) -> tuple[str, bool]:
    """Returns the row of a comparison, and True if it is within the tolerance. noise: between LiteRT's kernels."""
    counts = Counter(op.operator for op in c.file.operators)
    cells = [c.name, "float" if noise is None else "INT8", str(len(c.file.operators)), str(counts["TRANSPOSE"])]
    if noise is None:
        return "| " + " | ".join([*cells, f"{worst:.1e}", "", ""]) + " |", worst <= FLOAT
    listed = len(c.file.operators) - len(tflite.edgetpu.rejections(c.file.operators))
    cells += [f"{100 * worst:.3f} %", f"{100 * noise:.3f} %", str(listed)]
    return "| " + " | ".join(cells) + " |", worst <= max(SHARE, 2 * noise)


def comparison(
    name: str, source: Any, int8: bool, folder: Path, rng: np.random.Generator, largest: float
) -> Comparison | None:
    """Writes a model with its inputs, and evaluates it; None if it has no form in INT8 of its own."""
    if isinstance(source, Path) and source.suffix == ".onnx":
        source = onnx.load(source)
    graph = tflite.prepared(importers.load(source).graph, integers=int8)
    graph = at_optimum(graph)
    has_integers = any(n.op is words.quantize for n in graph.nodes)
    weights = sum(a.size for a in graph.constants.values())
    layers = any(n.op is words.convolution for n in graph.nodes)
    if int8 and (has_integers or weights > largest or not layers):
        return None
    if int8:
        graph = tflite.quantized(graph, ranges(graph, rng))
        has_integers = True
    file = tflite.to_tflite(graph, folder / "model.tflite")
    feeds = draw(graph.inputs, rng)
    np.savez(folder / "model.npz", **{k: arranged(a, file.inputs[k].shape) for k, a in feeds.items()})
    wanted = evaluate(graph, feeds)
    steps = dict[str, float]()
    if any(np.unique(a).size < FEWEST for a in wanted.values()):
        raise InputError("its outputs hardly vary, which would compare nothing")
    if has_integers:
        (folder / "model.both").touch()
        steps = {v.name: step_of(graph, v) for v in graph.outputs}
    wanted = {k: arranged(a, file.outputs[k].shape) for k, a in wanted.items()}
    return Comparison(name, int8, file, wanted, steps)


def at_optimum(graph: Graph) -> Graph:
    """Returns the program for the optimum of its dynamic dimensions other than the batch."""
    from pelton.ir.graph import optimum_sizes, with_sizes

    sizes = {k: v for k, v in optimum_sizes(graph).items() if "batch" not in k}
    return with_sizes(graph, sizes)[0] if sizes else graph


def ranges(graph: Graph, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    names = tflite.calibrated_values(graph)
    values = {v.name: v for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs))}
    observed = graph.replace(outputs=tuple(values[n] for n in names))
    found = dict[str, tuple[float, float]]()
    for _ in range(BATCHES):
        for k, a in evaluate(observed, draw(graph.inputs, rng)).items():
            low, high = found.get(k, (0.0, 0.0))
            found[k] = (min(low, float(a.min())), max(high, float(a.max())))
    return found


def draw(inputs: Iterable[Value], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draws inputs at the optimum of dynamic dimensions: floats of a normal distribution, numbers of words, ones."""
    feeds = dict[str, np.ndarray]()
    for v in inputs:
        shape = [int(dims.optimum(d)) if not isinstance(d, int) else d for d in v.type.shape]
        if v.type.dtype.is_float:
            feeds[v.name] = rng.standard_normal(shape).astype(v.type.dtype.numpy)
        elif "mask" in v.name:
            feeds[v.name] = np.ones(shape, v.type.dtype.numpy)
        else:
            feeds[v.name] = rng.integers(0, 1000, shape).astype(v.type.dtype.numpy)
    return feeds


def arranged(array: np.ndarray, shape: tuple[Any, ...]) -> np.ndarray:
    """Returns an image in the order of axes of the file: the one whose sizes are those."""
    known = [d if isinstance(d, int) else n for d, n in zip(shape, array.shape)]
    if list(array.shape) == known:
        return array
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def step_of(graph: Graph, v: Value) -> float:
    """Returns the scale of an output that is dequantized; of others the whole range by 255."""
    node = graph.producer[v]
    return float(graph.constants[node.inputs[1]].item()) if node.op is words.dequantize else 0.0


def difference(output: np.ndarray, wanted: np.ndarray, step: float | None) -> float:
    assert output.shape == wanted.shape and output.dtype == wanted.dtype, (output.shape, wanted.shape)
    off = np.abs(output.astype(np.float64) - wanted)
    if step is None:
        return float(off.max() / max(np.abs(wanted).max(), 1e-30))
    return float((off > STEPS * (step or np.ptp(wanted) / 255)).mean())


def write(page: Path, rows: list[str], peer: str) -> None:
    """Replaces the table between the marks of a page."""
    versions = subprocess.run(
        [peer, "-c", "import importlib.metadata as m; print(m.version('ai-edge-litert'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    columns = ("model", "type", "operators", "TRANSPOSE", "LiteRT off by", "LiteRT's kernels among themselves")
    head = "| " + " | ".join((*columns, "in the Edge TPU's list")) + " |"
    lines = [f"ai-edge-litert {versions}:", "", head, "| --- | --- | ---: | ---: | ---: | ---: | ---: |", *rows]
    table = "\n".join(lines)
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    sys.exit(main())
