"""One model as a TFLite file, run by LiteRT: how far it is from what the file means, at its ends and by operator."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pelton import importers
from pelton.errors import InputError
from pelton.exporters import tflite
from pelton.ir import dims
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Value, optimum_sizes, remove_dead_nodes, with_sizes
from pelton.ops import words

from .operators import OperatorMatch, operator_matches, write_all_tensors

STEPS = 1.01  # as far as integers may be apart
BATCHES = 4  # for calibration
FEWEST = 8  # different numbers of an output
MOVED = 1e-3  # of an input's elements
Arrays = Mapping[str, np.ndarray]
KERNELS = ("out", "reference")  # LiteRT's default and reference kernels


class Unfit(Exception):
    """LiteRT does not run a model, or its outputs would compare nothing; the text is the reason."""


@dataclass(frozen=True)
class Comparison:
    """A model in LiteRT. Shares are of outputs' elements that are more than a step off.

    far: the largest difference of floats, relative to the largest element; of integers, the share at the model's end.
    moved: that share of the meaning itself, after 0.1 % of the input's elements moved by a step.
    noise: the root mean square of the difference from the floats that were quantized, by the deviation of these: of
    the meaning, and of LiteRT. matches: of every operator, with LiteRT's default and reference kernels.
    """

    name: str
    file: tflite.TFLiteFile
    far: float
    moved: float = 0.0
    noise: tuple[float, float] | None = None
    matches: Mapping[str, Sequence[OperatorMatch]] = field(default_factory=dict)

    @property
    def worst(self) -> OperatorMatch:
        return max(self.matches["out"], key=lambda m: m.share)


def compared(
    name: str, source: Any, int8: bool, peer: str, folder: Path, rng: np.random.Generator, largest: float
) -> Comparison | None:
    """Writes a model, runs it and compares; None if it has no form in integers of its own.

    largest: the number of weights up to which a model is quantized. Raises InputError and ModelError for models that
    cannot be written, and Unfit.
    """
    if isinstance(source, Path) and source.suffix == ".onnx":
        source = onnx.load(source)
    graph = _at_optimum(tflite.prepared(importers.load(source).graph, integers=int8))
    if int8 and not _is_quantizable(graph, largest):
        return None
    feeds = draw(graph.inputs, rng)
    floats = None
    if int8:
        graph, name = _varied(graph, feeds, name)
        floats, graph = graph, tflite.quantized(graph, ranges(graph, rng))
    wanted = evaluate(graph, feeds)
    if any(np.unique(a).size < FEWEST for a in wanted.values()):
        raise Unfit("its outputs hardly vary, which would compare nothing")
    file = tflite.to_tflite(graph, folder / "model.tflite")
    given = {k: arranged(a, file.inputs[k].shape) for k, a in feeds.items()}
    wanted = {k: arranged(a, file.outputs[k].shape) for k, a in wanted.items()}
    if not any(n.op is words.quantize for n in graph.nodes):
        outputs = _run(peer, folder, given)["model.out"]
        return Comparison(name, file, max(_far(outputs[k], w) for k, w in wanted.items()))
    steps = {v.name: step_of(graph, v, wanted[v.name]) for v in graph.outputs}
    moved = evaluate(graph, _moved(graph, feeds, rng))
    moved = {k: arranged(a, file.outputs[k].shape) for k, a in moved.items()}
    write_all_tensors(file, folder / "all.tflite")
    found = _run(peer, folder, given)
    outputs, noise = found["model.out"], None
    if floats is not None:
        exact = {k: arranged(a, file.outputs[k].shape) for k, a in evaluate(floats, feeds).items()}
        noise = (
            max(_noise(wanted[k], a) for k, a in exact.items()),
            max(_noise(outputs[k], a) for k, a in exact.items()),
        )
    matches = {kind: operator_matches(file, {**given, **found[f"all.{kind}"]}, folder) for kind in KERNELS}
    far, other = (max(_share(side[k], w, steps[k]) for k, w in wanted.items()) for side in (outputs, moved))
    return Comparison(name, file, far, other, noise, matches)


def _moved(graph: Graph, feeds: Arrays, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns inputs of which 0.1 % of the elements, at least one, are a step larger."""
    found = dict(feeds)
    for v in graph.inputs:
        for node in graph.users.get(v, []):
            if node.op is words.quantize:
                a = feeds[v.name].copy()
                places = rng.choice(a.size, max(1, round(MOVED * a.size)), replace=False)
                a.reshape(-1)[places] += graph.constants[node.inputs[1]].item()
                found[v.name] = a
    return found


def _run(peer: str, folder: Path, given: Arrays) -> dict[str, dict[str, np.ndarray]]:
    """Runs all models of the folder with LiteRT; returns the outputs, by the names of the peer's files."""
    for model in list(folder.glob("*.tflite")):
        np.savez(model.with_suffix(".npz"), **given)
    if (folder / "all.tflite").exists():
        (folder / "all.both").touch()
    subprocess.run([peer, Path(__file__).with_name("peer.py"), folder], check=True, capture_output=True)
    for error in folder.glob("*.error"):
        raise Unfit(f"LiteRT: {error.read_text()[:200]}")
    found = {}
    for path in folder.glob("*.*.npz"):
        with np.load(path) as arrays:
            found[path.name.removesuffix(".npz")] = dict(arrays)
    return found


def _is_quantizable(graph: Graph, largest: float) -> bool:
    has_integers = any(n.op is words.quantize for n in graph.nodes)
    layers = any(n.op is words.convolution for n in graph.nodes)
    return layers and not has_integers and sum(a.size for a in graph.constants.values()) <= largest


def _varied(graph: Graph, feeds: Arrays, name: str) -> tuple[Graph, str]:
    """Returns the program without a softmax at its end, if its probabilities are fewer than 8 different steps."""
    (v, *others) = graph.outputs
    node = graph.producer.get(v)
    while node is not None and node.op is words.reshape:
        node = graph.producer.get(node.inputs[0])
    if others or node is None or node.op is not words.softmax:
        return graph, name
    steps = np.rint(256 * evaluate(graph, feeds)[v.name])
    if np.unique(steps).size >= FEWEST:
        return graph, name
    return remove_dead_nodes(graph.replace(outputs=node.inputs[:1])), f"{name}, before its softmax"


def _at_optimum(graph: Graph) -> Graph:
    """Returns the program for the optimum of its dynamic dimensions other than the batch."""
    sizes = {k: v for k, v in optimum_sizes(graph).items() if "batch" not in k}
    return with_sizes(graph, sizes)[0] if sizes else graph


def ranges(graph: Graph, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Returns the smallest and the largest number of all values that need scales, over random inputs."""
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


def step_of(graph: Graph, v: Value, wanted: np.ndarray) -> np.ndarray:
    """Returns the scale of an output that is dequantized; of others, the range of each last index by 255."""
    node = graph.producer[v]
    if node.op is words.dequantize:
        return graph.constants[node.inputs[1]].astype(np.float64)
    spread = np.ptp(wanted.astype(np.float64), axis=tuple(range(wanted.ndim - 1)))
    return np.maximum(spread, 1e-30) / 255


def _share(output: np.ndarray, wanted: np.ndarray, step: np.ndarray) -> float:
    _check_alike(output, wanted)
    return float((np.abs(output.astype(np.float64) - wanted) > STEPS * step).mean())


def _far(output: np.ndarray, wanted: np.ndarray) -> float:
    _check_alike(output, wanted)
    return float(np.abs(output.astype(np.float64) - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def _noise(output: np.ndarray, exact: np.ndarray) -> float:
    """Returns the root mean square of a difference by the deviation: of the whole, or of each last index alike."""
    axes = tuple(range(exact.ndim - 1))
    if exact[..., 0].size < FEWEST:
        axes = tuple(range(exact.ndim))
    square = np.square(output.astype(np.float64) - exact).mean(axes)
    return float(np.sqrt((square / np.maximum(exact.astype(np.float64).var(axes), 1e-60)).mean()))


def _check_alike(output: np.ndarray, wanted: np.ndarray) -> None:
    if output.shape != wanted.shape or output.dtype != wanted.dtype:
        raise InputError(f"LiteRT's output is {output.dtype} {output.shape}, not {wanted.dtype} {wanted.shape}")
