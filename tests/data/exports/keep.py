"""Keeps what an exporter made: a model NAME.onnx, and NAME.npz with inputs and what the framework it comes from gives for them."""
from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

HERE = Path(__file__).parent
Arrays = Mapping[str, np.ndarray]
Made = tuple[Any, Sequence[Arrays], Sequence[Sequence[Any]]]          # the model; inputs by name, several sets; per set what the framework gives, in order
MAKERS: dict[str, Callable[[], Made]] = {}


def export(maker: Callable[[], Made]) -> Callable[[], Made]:
    """Declares what makes the files of that name."""
    MAKERS[maker.__name__] = maker
    return maker


def main(arguments: Sequence[str]) -> None:
    """Makes those named, all where none are; says how large each is and how far onnxruntime is from the framework."""
    for name in arguments or MAKERS:
        model, inputs, outputs = MAKERS[name]()
        data = model if isinstance(model, bytes) else model.SerializeToString()
        arrays: dict[str, np.ndarray] = {}
        for k, (feeds, expected) in enumerate(zip(inputs, outputs, strict=True)):
            for name_of, a in feeds.items():
                arrays.update(spread(f"in{k}:{name_of}", a))
            arrays.update({f"out{k}:{i}": plain(a) for i, a in enumerate(expected)})
        (HERE / f"{name}.onnx").write_bytes(data)
        np.savez_compressed(HERE / f"{name}.npz", **arrays)              # type: ignore[arg-type]
        size = (HERE / f"{name}.npz").stat().st_size
        print(f"{name:28} {len(data):7} + {size:6} bytes; {checked(data, inputs, outputs)}", flush=True)


def checked(data: bytes, inputs: Sequence[Arrays], outputs: Sequence[Sequence[Any]]) -> str:
    """What onnxruntime makes of it."""
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        found = [session.run(None, dict(feeds)) for feeds in inputs]
    except Exception as e:                             # one of many, which have no class of their own
        return f"onnxruntime does not run it: {str(e).splitlines()[0][:200]}"
    off = [difference(plain(a), b) for expected, given in zip(outputs, found) for a, b in zip(expected, given, strict=True)]
    return f"onnxruntime is off by {max(off):.1e}"


def spread(name: str, fed: Any) -> dict[str, np.ndarray]:
    """What is fed under a name, as arrays; a dict as its keys and its values."""
    return {f"{name}#keys": plain([*fed]), f"{name}#values": plain([*fed.values()])} if isinstance(fed, dict) else {name: plain(fed)}


def plain(a: Any) -> np.ndarray:
    """An array that loads without pickle: strings as texts of fixed width."""
    a = np.asarray(a)
    return a.astype(str) if a.dtype.hasobject else a


def difference(expected: np.ndarray, found: Any) -> float:
    """Relative to the largest number; of what is no number, the share that is another."""
    if isinstance(found, list):                        # a dict per row
        found = np.array([[*row.values()] for row in found])
    found = plain(found)
    if expected.size != found.size:
        return float("inf")
    expected, found = expected.reshape(-1), found.reshape(-1)
    if expected.dtype.kind in "US" or found.dtype.kind in "US":
        return float((expected != found).mean())
    apart = np.abs(expected.astype(np.float64) - found)
    return float(np.nanmax(apart, initial=0) / max(np.nanmax(np.abs(expected), initial=0), 1e-30))


def run() -> None:
    main(sys.argv[1:])
