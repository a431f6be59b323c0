"""Compresses the weights of a trained program to few bits, within a bound on its accuracy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pelton import importers
from pelton.compiler.compile import compile_graph
from pelton.compiler.targets import progress_reporter
from pelton.errors import BuildError, InputError
from pelton.ir.graph import Graph
from pelton.ir.imported import Imported, Info
from pelton.logs import Logger
from pelton.options import Options
from pelton.passes.rules.few_bits import FEWEST
from pelton.quantize.accuracy_bound import Accuracy, AccuracyBound, outputs_of_scores
from pelton.system import files

from . import closeness
from .compressed import Compressed
from .data import CalibrationData, read_data
from .layers import Kept, WeightLayer, find_layers, matching
from .methods import Version, nbytes
from .search import Rungs, hold, round_layers
from .settings import Settings, check_settings
from .simulation import Simulation, Weighted
from .write import write_versions

log = Logger("pelton.build")

SHOWN = 4  # kept weights in a message
SUFFIXES = {".onnx": "onnx", ".pelton": "engine"}


def compress(
    model: Any,
    path: str | os.PathLike[str] | None,
    *,
    to: str | None,
    data: Any,
    shapes: Mapping[str, Any] | None,
    threads: int | None,
    progress: Any,
    build: Mapping[str, Any],
    **settings: Any,
) -> Compressed:
    """The implementation of `pelton.compress`, which documents its parameters and errors."""
    chosen = check_settings(**settings, has_data=data is not None)
    kind = _target(path, to)
    if build and (path is None or kind != "engine"):
        names = ", ".join(build)
        raise InputError(f"{names}: these options are of engines, and no engine is written; leave them out")
    Options().but(**build)  # rejects wrong ones before the work
    options = Options(threads=threads, progress=progress)
    tell = progress_reporter(options)
    tell("import", 0, 1)
    imported = importers.load(model, shapes)
    graph = imported.graph
    name = imported.info.label or graph.name
    layers, kept = _layers(graph, chosen, kind, name)
    if chosen.perplexity:
        closeness.token_output(graph)
    batches = read_data(data, graph)
    simulation = Simulation(graph, layers, options) if batches.feeds else None
    rungs = round_layers(graph, layers, chosen, simulation, batches.feeds, tell)
    versions = rungs.at({})
    accuracy: dict[str, Any] = {}
    if simulation is None:
        written = write_versions(graph, versions, rungs.divisions)
    else:
        written, versions, accuracy = _within_bound(graph, rungs, simulation, batches, chosen, options)
    report = _describe(graph, written, layers, kept, versions, chosen, name)
    report |= {"data": batches.words or None, "accuracy": accuracy or None}
    out = Compressed(report, model, replace(imported, graph=written), threads)
    if path is not None:
        _write(out, Path(path), kind, build)
    tell("done", 1, 1)
    return out


def _target(path: str | os.PathLike[str] | None, to: str | None) -> str:
    """Returns "onnx" or "engine"; InputError for other words, and for files of other names without a word."""
    if to not in (None, *SUFFIXES.values()):
        raise InputError(f"to is 'onnx' or 'engine', got {to!r}")
    if path is None:
        return to or ""
    if reason := files.rejection(path):
        raise InputError(f"{os.fspath(path)} cannot be written: {reason}")
    kind = to or SUFFIXES.get(Path(path).suffix.lower())
    if kind is None:
        raise InputError(f"{os.fspath(path)} ends in neither .onnx nor .pelton; set what to write, onnx or engine (to)")
    return kind


def _layers(graph: Graph, settings: Settings, kind: str, model: str) -> tuple[list[WeightLayer], list[Kept]]:
    """Returns the layers to compress, and all weights that are kept; BuildError if there are no layers."""
    every, kept = find_layers(graph)
    asked = matching(every, settings.keep) if settings.keep else set()
    layers = []
    for layer in every:
        prunes = settings.sparsity is not None and layer.kind != "table"
        as_float = settings.bits(layer) == 32 and not prunes and not settings.clusters
        in_engine = layer.kind == "convolution" and kind == "engine"
        if layer in asked or as_float or in_engine:
            size = graph.constants[layer.weight].nbytes
            reason = "engines hold weights of convolutions in float" if in_engine else "kept in float as asked"
            kept.append(Kept(layer.name, layer.weight.type.shape, size, reason))
        else:
            layers.append(layer)
    if not layers:
        reasons = "; ".join(f"{k.name} {list(k.shape)}: {k.reason}" for k in kept[:SHOWN])
        more = "; …" if len(kept) > SHOWN else ""
        but = f"; it has {reasons}{more}" if kept else ""
        raise BuildError(
            f"{model} has no weights to compress: expected products with constant f32 matrices, lookups in such tables"
            f" or, for ONNX models, convolutions of images, of at least {FEWEST:,} weights{but}"
        )
    return layers, kept


def _within_bound(
    graph: Graph,
    rungs: Rungs,
    simulation: Simulation,
    data: CalibrationData,
    settings: Settings,
    options: Options,
) -> tuple[Graph, dict[WeightLayer, Version], dict[str, Any]]:
    """Returns the program within the bound, the versions of its layers, and its accuracy as plain data, measured with
    an engine of the program itself."""
    original = Weighted(simulation, {})
    scores = outputs_of_scores(graph, sequences=True)
    limit = settings.max_drop
    bound = AccuracyBound(original, data.held_out, 0.0 if limit is None else limit, scores=scores)
    tell = progress_reporter(options)
    steps = {} if limit is None else hold(rungs, bound, simulation, tell)
    versions = rungs.at(steps)
    written = write_versions(graph, versions, rungs.divisions)
    engine = compile_graph(Imported(written, Info()), options.but(level=0, progress=None)).engine
    accuracy = bound.measure(engine)
    if limit is not None and not bound.holds(accuracy):
        raise BuildError(
            f"max_drop {limit:g} holds in the simulation, but the drop of the engine is {accuracy.drop:.4g}: other"
            " roundings decide; allow a little more"
        )
    close = closeness.measure(graph, original, engine, data.held_out, settings.perplexity)
    return written, versions, _describe_accuracy(accuracy, limit, data.count) | close.describe()


def _describe_accuracy(accuracy: Accuracy, limit: float | None, count: int) -> dict[str, Any]:
    return {**accuracy.describe(), "max_drop": limit, "held_out": count}


def _describe(
    graph: Graph,
    written: Graph,
    layers: Sequence[WeightLayer],
    kept: Sequence[Kept],
    versions: Mapping[WeightLayer, Version],
    settings: Settings,
    model: str,
) -> dict[str, Any]:
    """Returns the report, without data and accuracy."""
    described = []
    for layer in layers:
        v = versions[layer]
        described.append(
            {
                "name": layer.name,
                "kind": "head" if layer.head else layer.kind,
                "shape": list(layer.shape),
                "method": v.method,
                "bits": v.bits,
                "block": v.packed.grid.block if v.packed is not None else None,
                "error": None if v.error is None else float(f"{v.error:.4g}"),
                "zeros": round(float((v.weights == 0).mean()), 4),
                "bytes_before": graph.constants[layer.weight].nbytes,
                "bytes_after": nbytes(v),
            }
        )
    return {
        "model": model,
        "block": settings.block,
        "zero_points": settings.zero_points,
        "layers": described,
        "kept": [{"name": k.name, "shape": list(k.shape), "bytes": k.bytes, "reason": k.reason} for k in kept],
        "bytes_before": _bytes(graph),
        "bytes_after": _bytes(written),
    }


def _bytes(graph: Graph) -> int:
    """Returns the bytes of a program's constants in a file."""
    sizes = {v: v.type.size * v.type.dtype.bits / 8 for v in graph.constants}
    return int(sum(sizes.values()))


def _write(compressed: Compressed, path: Path, kind: str, build: Mapping[str, Any]) -> None:
    """Writes the model to a file, as an ONNX model or an engine."""
    if kind == "onnx":
        compressed.export_onnx(path)
    else:
        compressed.build(**build).save(path)
