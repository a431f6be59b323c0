"""Stores an exporter's model in NAME.npz: its bytes, inputs, and its framework's outputs; packed, as names take most of
the space."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

HERE = Path(__file__).parent
Arrays = Mapping[str, np.ndarray]
# the model; inputs by name, several sets; per set what the framework gives, in order
Made = tuple[Any, Sequence[Arrays], Sequence[Sequence[Any]]]
MAKERS: dict[str, Callable[[], Made]] = {}


def export(maker: Callable[[], Made]) -> Callable[[], Made]:
    """Declares what makes the files of that name."""
    MAKERS[maker.__name__] = maker
    return maker


def main(arguments: Sequence[str]) -> None:
    """Makes those named, all where none are; says how large each is and how far onnxruntime is from the framework."""
    for name in arguments or MAKERS:
        model, inputs, outputs = MAKERS[name]()
        data = undocumented(model if isinstance(model, bytes) else model.SerializeToString())
        arrays: dict[str, np.ndarray] = {"model": np.frombuffer(data, np.uint8)}
        for k, (feeds, expected) in enumerate(zip(inputs, outputs, strict=True)):
            for name_of, a in feeds.items():
                arrays.update(spread(f"in{k}:{name_of}", a))
            for i, a in enumerate(expected):
                arrays.update(spread(f"out{k}:{i}", a))
        np.savez_compressed(HERE / f"{name}.npz", **arrays)  # type: ignore[arg-type]
        size = (HERE / f"{name}.npz").stat().st_size
        print(f"{name:28} {size:6} bytes, the model {len(data):6}; {checked(data, inputs, outputs)}", flush=True)


def undocumented(data: bytes) -> bytes:
    """The model without what exporters note beside it: lines of source, with the paths they lie at."""
    model = onnx.load_model_from_string(data)
    inner = [model.graph, *model.functions]
    while inner:
        graph = inner.pop()
        for thing in (
            graph,
            *graph.node,
            *graph.value_info,
            *(() if isinstance(graph, onnx.FunctionProto) else (*graph.input, *graph.output)),
        ):
            thing.doc_string = ""
            del thing.metadata_props[:]
        inner += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return model.SerializeToString()


def checked(data: bytes, inputs: Sequence[Arrays], outputs: Sequence[Sequence[Any]]) -> str:
    """What onnxruntime makes of it."""
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        found = [session.run(None, dict(feeds)) for feeds in inputs]
    except Exception as e:  # one of many, which have no class of their own
        return f"onnxruntime does not run it: {str(e).splitlines()[0][:200]}"
    off = [difference(a, b) for expected, given in zip(outputs, found) for a, b in zip(expected, given, strict=True)]
    return f"onnxruntime is off by {max(off):.1e}"


def spread(name: str, given: Any) -> dict[str, np.ndarray]:
    """What is fed or given under a name, as arrays: of a dict its keys and its values, of dicts of the same keys the
    keys and a row of values each."""
    if isinstance(given, dict):
        return {f"{name}#keys": plain([*given]), f"{name}#values": plain([*given.values()])}
    if isinstance(given, list) and isinstance(given[0], dict):
        return {f"{name}#keys": plain([*given[0]]), f"{name}#rows": plain([[*row.values()] for row in given])}
    return {name: plain(given)}


def plain(a: Any) -> np.ndarray:
    """An array that loads without pickle: strings as texts of fixed width."""
    a = np.asarray(a)
    return a.astype(str) if a.dtype.hasobject else a


def difference(expected: Any, found: Any) -> float:
    """Relative to the largest number; of what is no number, the share that is another."""
    if isinstance(found, list):  # a dict per row
        if [[*row] for row in found] != [[*row] for row in expected]:
            return float("inf")
        expected, found = ([[*row.values()] for row in rows] for rows in (expected, found))
    expected, found = plain(expected), plain(found)
    if expected.size != found.size:
        return float("inf")
    expected, found = expected.reshape(-1), found.reshape(-1)
    if expected.dtype.kind in "US" or found.dtype.kind in "US":
        return float((expected != found).mean())
    apart = np.abs(expected.astype(np.float64) - found)
    return float(np.nanmax(apart, initial=0) / max(np.nanmax(np.abs(expected), initial=0), 1e-30))


def run() -> None:
    main(sys.argv[1:])
