"""The build record of a refittable engine: the program of its model, without weights, and the decisions.

bytes 0–31  SHA-256 of the rest        32–39  size of a JSON text, which follows        then arrays, each at 64 bytes
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.errors import EngineError
from pelton.record import record

from .container import AGAIN, to_json
from .plan import SIZES, EnginePlan, Port, numpy_dtype

VERSION = 1
HASH, SIZE = 32, 8
ALIGN = 64


@record(frozen=True)
class RefitRecord:
    """The record. `program`: text, whose first `folds` nodes compute constants from others; `weights`: the replaceable
    ones; `refused`: constants of the model that are not replaceable, with the reasons; `kept`: the values of all
    constants of the program but the weights; `pieces`: for each buffer of constants in order, the weights that it
    depends on; `build`: the options, the target and the decisions of the build."""

    program: str
    folds: int
    weights: Mapping[str, Port]
    refused: Mapping[str, str]
    kept: Mapping[str, np.ndarray]
    pieces: Sequence[Sequence[str]]
    build: Mapping[str, Any]


def to_bytes(r: RefitRecord) -> bytes:
    """Returns the bytes of the section "refit"; equal records give equal bytes."""
    names = sorted(r.weights)
    number = {name: i for i, name in enumerate(names)}
    places, room, at = {}, list[bytes](), 0
    for name, array in sorted(r.kept.items()):
        data = json.dumps(array.reshape(-1).tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
        places[name] = [_dtype_name(array), array.shape, at, len(data)]
        room.append(data + bytes(-len(data) % ALIGN))
        at += len(room[-1])
    text = to_json(
        {
            "version": VERSION,
            "program": r.program,
            "folds": r.folds,
            "weights": [[name, r.weights[name].dtype, r.weights[name].shape] for name in names],
            "refused": dict(r.refused),
            "kept": places,
            "pieces": [[number[name] for name in piece] for piece in r.pieces],
            "build": dict(r.build),
        },
        "record for refitting",
    )
    text += b" " * (-(len(text) + HASH + SIZE) % ALIGN)
    rest = len(text).to_bytes(SIZE, "little") + text + b"".join(room)
    return hashlib.sha256(rest).digest() + rest


def of_plan(plain: EnginePlan) -> RefitRecord:
    """Returns the record of an engine. Raises EngineError if it has none, or it is damaged."""
    if not len(plain.refit):
        raise EngineError(
            f"engine {plain.label!r} is not refittable; build it with refit=True (`pelton build --refit`)"
        )
    data = memoryview(plain.refit).cast("B")
    rest = data[HASH:]
    if hashlib.sha256(rest).digest() != bytes(data[:HASH]):
        raise EngineError(f"engine {plain.label!r} is altered in its record for refitting; {AGAIN}")
    size = int.from_bytes(rest[:SIZE], "little")
    try:
        head = json.loads(bytes(rest[SIZE : SIZE + size]))
        if head["version"] != VERSION:
            raise ValueError(f"version {head['version']!r}")
        names = [name for name, _, _ in head["weights"]]
        if any(dtype not in SIZES for _, dtype, _ in head["weights"]) or len(head["pieces"]) > len(plain.buffers):
            raise ValueError("its weights are not those of the engine")
        arrays = rest[SIZE + size :]
        return RefitRecord(
            str(head["program"]),
            int(head["folds"]),
            {name: Port(str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in head["weights"]},
            {str(name): str(why) for name, why in head["refused"].items()},
            {name: _array(arrays, *place) for name, place in head["kept"].items()},
            [[names[i] for i in piece] for piece in head["pieces"]],
            dict(head["build"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, EngineError) as e:
        raise EngineError(
            f"engine {plain.label!r} is damaged: its record for refitting is of another form ({type(e).__name__}:"
            f" {e}); build it again"
        ) from None


def _dtype_name(array: np.ndarray) -> str:
    if array.dtype.kind == "O":
        return "string"
    return next(name for name in SIZES if name != "string" and _is(name, array.dtype))


def _is(name: str, dtype: np.dtype) -> bool:
    try:
        return numpy_dtype(name) == dtype
    except EngineError:  # a type of ml_dtypes, which is not installed: then no array has it
        return False


def _array(room: memoryview, dtype: str, shape: Sequence[int], at: int, size: int) -> np.ndarray:
    """Returns one of the arrays after the text. Raises ValueError if it does not fit."""
    if at < 0 or size < 0 or at + size > len(room) or any(d < 0 for d in shape):
        raise ValueError(f"an array would be {size} bytes at {at} of {len(room)}")
    data = room[at : at + size]
    if dtype == "string":
        return np.array(json.loads(bytes(data)), object).reshape(shape)
    kind = numpy_dtype(dtype)
    if math.prod(shape) * kind.itemsize != size:
        raise ValueError(f"{dtype}{list(shape)} does not have {size} bytes")
    return np.frombuffer(bytes(data), kind).reshape(shape)
