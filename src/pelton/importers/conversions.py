"""Compares an imported conversion with the model's own framework, as converters of other packages make mistakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pelton import metrics
from pelton.errors import InputError, ModelError
from pelton.ir import folding, lineage
from pelton.ir.evaluate import evaluate, evaluate_node
from pelton.ir.graph import Graph, Node, symbols
from pelton.ir.imported import Imported, OnData
from pelton.ir.types import DType
from pelton.logs import Logger
from pelton.ops.reduce import arg_max, arg_min, top_k
from pelton.system import share

if TYPE_CHECKING:
    from pelton.importers.onnx.file import Source

log = Logger("pelton.importers")

EQUAL = "equal to "  # prefix of a correct conversion's note
TOLERANCE = 1e-3  # of the largest element of an output
MOST_WORK = 2e11  # operations of a comparison in float64: one or two minutes
SHARE = 4  # a comparison may use 1/SHARE of the memory available to this process
# Runs with perturbed values, and the perturbation in roundings of the type: frameworks add up in another order.
SHAKEN, ROUNDINGS = 3, 4.0
# Small enough multiples of this fraction count as exact: no rounding made them.
FRACTION, SMALL = 0.125, 1 / 64


@dataclass(frozen=True)
class Reference:
    """Results of a model's framework on some inputs.

    inputs: arrays by the names of the converted model's inputs; where: the kind of these inputs. outputs: in the
    model's order. again: outputs of another run, to distinguish random numbers from mistakes. layers: inner values of
    the framework, by the names of the converted model's values, each with the name of its layer in the framework.
    """

    framework: str
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[np.ndarray]
    again: Callable[[], Sequence[np.ndarray]]
    layers: Callable[[], Mapping[str, tuple[str, np.ndarray]]] = dict
    where: str = "its example inputs"


@dataclass(frozen=True)
class NoReference:
    """The reason why a model's framework could not run it."""

    framework: str
    reason: str


class Verdict(NamedTuple):
    """The difference of an output from the framework's, "" if none differs, and the number of random outputs."""

    text: str
    random: int = 0


def compared(source: Source, reference: Reference | NoReference, accept: bool) -> Source:
    """Returns the converted model with the result of the comparison (`Source.conversion`, which `Info` shows).

    Raises ModelError if its results differ from its framework's; warns instead with `accept`.
    """
    begin = time.monotonic()
    if isinstance(reference, NoReference):
        note = f"not compared with {reference.framework}: {reference.reason}"
    else:
        note = _compare(source, reference, accept)
    log.info("%s: conversion %s (%.1f s)", _name(source), note, time.monotonic() - begin)
    return replace(source, conversion=note)


def _compare(source: Source, reference: Reference, accept: bool) -> str:
    """Describes the result of a comparison; raises the error of `compared`."""
    whose = reference.framework
    try:
        program = _program(source, reference.inputs)
    except (ModelError, InputError) as e:  # the import proper reports it, or accepts the model with other sizes
        return f"not compared with {whose}: {e}"
    reason = _reason_against(program.graph, reference)
    if reason:
        return f"not compared with {whose}: {reason}"
    inputs = {v.name: _as(v.type.dtype, reference.inputs[v.name]) for v in program.graph.inputs}
    try:
        verdict = _verdict(program.graph, inputs, reference)
        layer = _first_layer(program.graph, inputs, reference) if verdict.text else ""
    except InputError as e:
        verdict, layer = Verdict(f"it rejects inputs of {whose}: {e}"), ""
    if not verdict.text:
        if verdict.random == len(reference.outputs):
            return f"not compared with {whose}: its results differ from run to run"
        but = f", but for {verdict.random} outputs that differ from run to run" if verdict.random else ""
        return f"{EQUAL}{whose} on {reference.where}{but}"
    text = f"the conversion to ONNX differs from {whose}: {verdict.text}{layer}"
    if not accept:
        raise ModelError(
            f"{_name(source)}: {text}; converters make mistakes: write that layer in other operators, or accept the"
            " difference with accept_conversion="
        )
    log.warning("%s: %s (accepted)", _name(source), text)
    return f"differs from {whose} (accepted): {verdict.text}"


def _name(source: Source) -> str:
    return source.name if source.path else source.model.graph.name or source.name


def _program(source: Source, inputs: Mapping[str, np.ndarray]) -> Imported:
    """Imports the converted model for inputs of these sizes; for these values alone if control flow depends on data."""
    from .onnx.load import import_model

    held = {t.name for t in source.model.graph.initializer}
    inputs = {v.name: inputs[v.name] for v in source.model.graph.input if v.name in inputs and v.name not in held}
    with lineage.following(None):
        _, program = import_model(source, {name: a.shape for name, a in inputs.items()})
        if isinstance(program, OnData):
            with folding.of_everything():
                _, program = import_model(source, values=dict(inputs))
    if isinstance(program, ModelError):
        raise program
    return program


def _reason_against(graph: Graph, reference: Reference) -> str:
    """Explains why a program cannot be compared; "" if it can."""
    unknown = [v.name for v in graph.inputs if v.name not in reference.inputs]
    if unknown:
        return f"no value is known of its input {unknown[0]!r}"
    if len(graph.outputs) != len(reference.outputs):
        return f"it has {len(graph.outputs)} outputs, those of the framework are {len(reference.outputs)}"
    if symbols(graph):
        return "its sizes depend on more than its inputs"
    types = [(n, tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs)) for n in graph.nodes]
    work = sum(n.op.operations(taken, outputs, n.attrs) for n, taken, outputs in types)
    if work > MOST_WORK:
        return f"a run in float64 needs {work:.1g} operations, more than {MOST_WORK:.0g}"
    largest = max((sum(t.size for t in (*taken, *outputs)) for _, taken, outputs in types), default=0)
    need = 8 * 4 * largest + sum(a.nbytes for a in graph.constants.values())
    if need > share.memory() / SHARE:
        return f"a run in float64 needs {need / 1e9:.1f} GB of memory, more than {share.memory() / SHARE / 1e9:.1f} GB"
    return ""


def _as(dtype: DType, array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(dtype.numpy, copy=False)


def _verdict(graph: Graph, inputs: Mapping[str, np.ndarray], reference: Reference) -> Verdict:
    """Reports an output whose difference neither rounding nor random numbers explain."""
    run = evaluate(graph, inputs, round=False)
    names = [v.name for v in graph.outputs]
    expected = dict(zip(names, reference.outputs))
    suspects = [n for n in names if metrics.difference(run[n], expected[n], TOLERANCE)]
    if not suspects:
        return Verdict("")
    again = dict(zip(names, reference.again()))
    settled = [n for n in suspects if _same(expected[n], again[n])]
    random = len(suspects) - len(settled)
    others = [evaluate(graph, inputs), *_shaken_runs(graph, inputs)] if settled else []
    for name in settled:
        text = metrics.difference(run[name], expected[name], TOLERANCE, [other[name] for other in others])
        if text:
            return Verdict(f"output {name!r} {text}", random)
    return Verdict("", random)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _shaken_runs(graph: Graph, inputs: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yields outputs of runs with each computed float perturbed, and with ties of maxima broken at random."""
    for seed in range(SHAKEN):
        rng = np.random.default_rng(seed)
        known = {**graph.constants, **{v: inputs[v.name] for v in graph.inputs}}
        for node in graph.nodes:
            arrays = tuple(known[v] for v in node.inputs)
            known.update(zip(node.outputs, _shaken(node, arrays, rng)))
        yield {v.name: known[v] for v in graph.outputs}


def _shaken(node: Node, arrays: tuple[np.ndarray, ...], rng: np.random.Generator) -> Sequence[np.ndarray]:
    """Returns the outputs of a node, perturbed by a few roundings."""
    if node.op in (arg_max, arg_min, top_k):
        axis = node.attrs["axis"]
        order = rng.permutation(arrays[0].shape[axis])
        *values, indices = evaluate_node(node, (np.take(arrays[0], order, axis), *arrays[1:]))
        return (*values, order[indices] if indices.size else indices)
    results = evaluate_node(node, arrays)
    if node.op.moves or node.op.bits:
        return results
    return [_off(a, v.type.dtype, rng) for a, v in zip(results, node.outputs)]


def _off(array: np.ndarray, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    if not dtype.is_float:
        return array
    wide, step = array.astype(np.float64), float(np.spacing(np.ones((), dtype.numpy)))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = (np.fmod(wide, FRACTION) == 0) & (np.abs(wide) < SMALL / step)
        shaken = wide * (1 + ROUNDINGS * step * rng.uniform(-1, 1, wide.shape))
        return np.where(exact, wide, shaken).astype(array.dtype)


def _first_layer(graph: Graph, inputs: Mapping[str, np.ndarray], reference: Reference) -> str:
    """Describes the first layer whose values differ, to end a sentence with; "" if unknown."""
    layers = reference.layers()
    if not layers:
        return ""
    values = evaluate(graph, inputs, round=False, keep=True)
    for v in (v for node in graph.nodes for v in node.outputs):
        layer, expected = layers.get(v.name, ("", None))
        if expected is not None and expected.shape == values[v.name].shape:
            text = metrics.difference(values[v.name], expected, TOLERANCE)
            if text:
                return f"; the first layer that differs is {layer}, which {text}"
    return ""
