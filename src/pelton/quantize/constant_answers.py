"""Builds engines with a constant answer; a metric must rate the FP32 engine better than these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pelton.compiler.compile import compile_graph
from pelton.ir.dims import is_known
from pelton.ir.imported import Imported
from pelton.network import Network
from pelton.options import Options
from pelton.runtime import Engine


CONSTANT = " (a constant answer)"  # suffix of the engines' names
MOST = 10  # answers: a metric may be slow


def constant_answers(
    imported: Imported, options: Options, outputs: Sequence[Mapping[str, np.ndarray]]
) -> Iterator[Engine]:
    """Yields engines with the inputs and outputs of a program that always return the program's mean output, or its
    output for one sample of each of the commonest answers. Nothing if more than the number of samples is dynamic.

    outputs: the program's outputs, with an axis of samples first. The argmax of the first output distinguishes answers.
    """
    ports = imported.graph.outputs
    if not outputs or not all(
        v.name in outputs[0] and v.type.rank and all(map(is_known, v.type.shape[1:])) for v in ports
    ):
        return
    answers = {v.name: np.concatenate([np.atleast_1d(batch[v.name]) for batch in outputs]) for v in ports}
    largest = (first := answers[ports[0].name]).reshape(len(first), -1).argmax(1).tolist()
    samples = [largest.index(answer) for answer, _ in Counter(largest).most_common(MOST)]
    mean = {name: a.mean(0, dtype=np.float64) if a.dtype.kind == "f" else a[0] for name, a in answers.items()}
    for answer in (mean, *({name: a[min(i, len(a) - 1)] for name, a in answers.items()} for i in samples)):
        net = Network(imported.graph.name + CONSTANT)
        for v in imported.graph.inputs:
            net.input(v.name, v.type)
        for v in ports:
            one = net.constant(np.asarray(answer[v.name])[None].astype(v.type.dtype.numpy), f"{v.name} of all")
            net.output(net.expand(one, shape=v.type.shape), v.name)
        yield compile_graph(replace(imported, graph=net.graph()), options).engine
