"""Evaluates a model in float64 by its ops' references, in a separate process, as it takes time and memory."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from pelton.errors import Error, ModelError
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.runtime.forms import model_outputs

from .runtime import leaves

FEW = 16  # numbers of an input that decides the program, as constants of it


class Truth:
    """The evaluator."""

    def __init__(self, memory: int):
        resource.setrlimit(resource.RLIMIT_AS, (memory << 30, memory << 30))

    def of(self, model: str, feeds: str, keep: str, rounded: str = "") -> dict[str, Any]:
        """The outputs for arrays in a file, into another; or why there are none. rounded: a file for what they are
        where every step rounds to the types of the model."""
        with np.load(feeds) as found:
            given = {name: a.astype(object) if a.dtype.kind == "U" else a for name, a in found.items()}
        values: dict[str, np.ndarray] = {}
        while True:
            try:
                read = importer.load(model, {n: a.shape for n, a in given.items() if n not in values}, values=values)
                break
            except Error as e:
                wanted = e.values if isinstance(e, ModelError) else ()
                more = {n: given[n] for n in wanted if n not in values and given[n].size <= FEW}
                if not more:
                    return {"failed": f"{type(e).__name__}: {e}"[:500]}
                values |= more
        inputs = {n: a for n, a in given.items() if n not in values}
        for path, rounds in ((keep, False), (rounded, True)):
            if path:
                found = evaluate(read.graph, inputs, round=rounds)
                outputs = model_outputs({v.name: found[v.name] for v in read.graph.outputs}, read.forms["outputs"])
                arrays: dict[str, Any] = {f"{k}": a for k, a in enumerate(leaves([*outputs.values()]))}
                np.savez(path, **arrays)
        return {}
