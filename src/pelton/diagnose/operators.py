"""Writes docs/operators.md from the registries of readers, ops and kernels, to standard output."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from pelton.codegen.template import Target
from pelton.compiler.stages import run_stages, start
from pelton.ir.imported import Imported, Info
from pelton.importers.onnx import load as importer
from pelton.importers.onnx.host_steps import HOST_FUNCTIONS, HOST_OPERATORS
from pelton.importers.onnx.microsoft.refused import REFUSED
from pelton.importers.onnx.node import MICROSOFT, READERS
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import STRING, DType, TensorType
from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates, those for CPUs as well)
from pelton.ops.op import REGISTRY, Op
from pelton.options import Options
from pelton.plan import fuse, region

HEAD = """# Operators

This page lists how Pelton runs each operator of ONNX, and each that ONNX Runtime {runtime} adds on CPUs:

- **native**: one op of Pelton, with kernels;
- **decomposed**: expanded into native ops when the model is read or built, and fused where possible;
- **host**: a step in numpy or the onnx package;
- **refused**: an error, with the reason.

Types or sizes without a kernel make a host step. So do string lookups and the probabilities of support vector machines.
`pelton check MODEL` shows how a model's operators run; add `--target cuda:sm_90` for a GPU.

"opsets" are those in which the operator changed. Pelton reads opset {oldest} and newer, and rewrites older models to
opset {oldest}. "element types" have kernels on CPUs, "on GPUs" on NVIDIA GPUs. `make operators` generates this page
from the registries; do not edit it.
"""
TRAINING = "ai.onnx.preview.training"
HOW = ("native", "decomposed", "host", "refused")
RUNTIME = "1.32"  # the version of ONNX Runtime whose operators the page compares


@dataclass(frozen=True)
class Row:
    operator: str
    opsets: tuple[int, ...]
    how: str
    dtypes: tuple[str, ...]
    on_gpus: tuple[str, ...] = ()


def page() -> str:
    """Returns the whole page, ending in a line break."""
    parts = [HEAD.format(oldest=importer.OLDEST, runtime=RUNTIME)]
    for domain in sorted({*(d for d, _ in READERS), *(s.domain for s in onnx.defs.get_all_schemas())} - {TRAINING}):
        rows = list(table(domain))
        counts = {how: sum(r.how.startswith(how) for r in rows) for how in HOW}
        parts.append(
            f"\n## {domain or 'ai.onnx'}\n\n{len(rows)} operators:"
            f" {', '.join(f'{n} {how}' for how, n in counts.items() if n)}.\n\n| operator | opsets | how | element"
            " types | on GPUs |\n| --- | --- | --- | --- | --- |\n"
        )
        parts += [
            f"| {r.operator} | {', '.join(map(str, r.opsets))} | {r.how} | {' '.join(r.dtypes)} |"
            f" {' '.join(r.on_gpus)} |\n"
            for r in rows
        ]
    return "".join(parts)


def table(domain: str) -> Iterator[Row]:
    """Yields the operators of a domain by name."""
    history: dict[str, list] = {}
    for s in onnx.defs.get_all_schemas_with_history():
        if s.domain == domain and not s.deprecated:
            history.setdefault(s.name, []).append(s)
    ours = {name: op for op in REGISTRY.values() for name in op.onnx}
    for name in sorted({*history, *(op for d, op in READERS if d == domain)}):
        opsets = tuple(sorted({s.since_version for s in history.get(name, ())}))
        newest = max(history.get(name, ()), key=lambda s: s.since_version, default=None)
        op = ours.get(name)
        if (domain, name) not in READERS:
            body = newest is not None and (newest.has_function or newest.has_context_dependent_function)
            yield Row(name, opsets, "decomposed (the function of its schema)" if body else "host", ())
        elif domain == MICROSOFT and name in REFUSED:
            yield Row(name, opsets, f"refused: {REFUSED[name]}", ())
        elif op is None:
            on_host = (domain, name) in HOST_FUNCTIONS or (domain, name) in HOST_OPERATORS
            yield Row(name, opsets, "host" if on_host else "decomposed", ())
        else:
            dtypes = native_dtypes(op)
            if dtypes:
                how = "native"
            else:
                how = "decomposed" if op.expand else "host"
            yield Row(name, opsets, how, dtypes, native_dtypes(op, "sm_90"))


@functools.cache
def native_dtypes(op: Op, isa: str = "") -> tuple[str, ...]:
    """Returns the element types for which kernels compute one of the op's examples, as a whole or in parts, on CPUs or
    on the GPUs of `isa`."""
    return tuple(
        d.value
        for d in DType
        if d is not STRING
        and any(_has_kernels(op, example, d, fixed, isa) for example in op.examples for fixed in (False, True))
    )


def _has_kernels(op: Op, example: tuple, dtype: DType, fixed: bool, isa: str) -> bool:
    """True if kernels compute an example in this element type; `fixed`: all operands but the first are constants, like
    weights."""
    texts, attrs = [e for e in example if isinstance(e, str)], next((e for e in example if isinstance(e, dict)), {})
    types = [TensorType.parse(t) for t in texts]
    if not types:
        return False
    inputs = tuple(Value(t.with_dtype(dtype) if t.dtype is types[0].dtype else t, f"x{i}") for i, t in enumerate(types))
    try:
        complete = op.complete(attrs)
        outputs = tuple(
            Value(t, f"y{i}") for i, t in enumerate(op.infer_types(tuple(v.type for v in inputs), complete))
        )
        constants = {v: np.zeros(v.type.shape, v.type.dtype.numpy) for v in inputs[1:]} if fixed else {}
        graph = Graph(
            inputs[:1] if fixed else inputs,
            constants,
            (Node(op, inputs, complete, outputs, op.name),),
            outputs,
            op.name,
        )
        options = Options(target=f"cuda:{isa}" if isa else "cpu")
        fused = run_stages(start(Imported(graph, Info()), options, Target(isa), "optimize"), "fuse").fused
    except (TypeError, ValueError, Undecided):  # not of this type
        return False
    return all(isinstance(item, region.Region) or fuse.is_view(item) for item in fused.items)


if __name__ == "__main__":
    sys.stdout.write(page())
