"""From the parts of a script to its plain data: ports, constants, and what is worth knowing of all its engines."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.engine.engine import Engine, Port, Symbol
from pelton.engine.memory import ALIGN
from pelton.engine.script import Constant, Script
from pelton.ir import dims
from pelton.ir.dims import Dim
from pelton.ir.graph import Value
from pelton.ir.types import DType

if TYPE_CHECKING:
    from pelton.importers.onnx_script import Scripted
    from pelton.options import Options


def assemble(parts: Scripted, engines: Sequence[Engine], options: Options, target: Mapping[str, Any]) -> Script:
    """The script over these engines, one per program."""
    trees: dict[str, Any] = {}

    def port(v: Value) -> Port:
        trees.update({str(d): dims.tree(d) for d in v.type.shape if isinstance(d, Dim)})
        return Port(v.name, v.type.dtype.value, tuple(str(d) if isinstance(d, Dim) else int(d) for d in v.type.shape))      # type: ignore[misc]
    inputs = tuple(map(port, parts.inputs))
    symbols = dims.symbols([v.type.shape for v in parts.inputs])
    arrays, constants = _kept(parts.constants)
    meta = {"threads": max((e.meta["threads"] for e in engines), default=options.threads), "level": options.level, "strict": options.strict,
            "precision": options.precision, "host_steps": [*parts.host, *(name for e in engines for name in e.meta["host_steps"])],
            "weights": {key: sum(e.meta["weights"][key] for e in engines) for key in ("own", "packed", "saved_ns")},
            "copies": [c for e in engines for c in e.meta["copies"]], "layouts": [x for e in engines for x in e.meta["layouts"]],
            "chains": [c for e in engines for c in e.meta["chains"]], "checked": [c for e in engines for c in e.meta["checked"]],
            "model": {k: v for k, v in asdict(parts.info).items() if k != "path"}, "image": options.image,
            "labels": list(options.labels) if options.labels else None}
    return Script(parts.name, inputs, parts.outputs, parts.main, tuple(engines), arrays, constants, dict(target), meta,
                  tuple(Symbol(s.name, s.least, s.usual, s.most) for s in symbols), trees, options.max_iterations)


def _kept(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Constant], np.ndarray]:
    """Constants one after another, equal ones once: (where each lies, the bytes)."""
    found: dict[str, Constant] = {}
    places: dict[bytes, int] = {}
    pieces: list[np.ndarray] = []
    end = 0
    for name, array in arrays.items():
        dtype = DType.of(array)
        data = json.dumps(array.reshape(-1).tolist()).encode() if dtype is DType.STRING else np.ascontiguousarray(array).tobytes()
        if data not in places:
            places[data] = end
            pieces.append(np.frombuffer(data.ljust(-(-len(data) // ALIGN) * ALIGN, b"\0"), np.uint8))
            end += pieces[-1].size
        found[name] = Constant(dtype.value, tuple(map(int, array.shape)), places[data], len(data))
    return found, np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
