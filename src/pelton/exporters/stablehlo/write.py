"""Writes a program as a StableHLO module, optionally to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from pelton.errors import InputError, ModelError
from pelton.ir.graph import Graph, symbols, unique
from pelton.ir.types import TensorType
from pelton.system import files

from .literals import Inexpressible, identifier, quoted, tensor
from .program import write_graph
from .blocks import Record, SsaValue, Operations

SHOWN = 20  # layers of an error


@dataclass(frozen=True)
class StableHlo:
    """A module in the StableHLO dialect of MLIR. Weights become text when it is written."""

    head: str
    main: Operations
    operations: int

    def text(self) -> Iterator[str]:
        """Yields the text in pieces."""
        yield self.head
        yield from self.main.text()
        yield "  }\n}\n"

    def __str__(self) -> str:
        return "".join(self.text())


def to_stablehlo(graph: Graph, path: str | os.PathLike[str] | None = None) -> StableHlo:
    """Returns the program as a StableHLO module, and writes it to a file, atomically, if a path is given.

    The module has one function, `main`, whose arguments and results are the program's inputs and outputs in order.

    Raises InputError for a program with dynamic dimensions or a path that cannot be written, and ModelError, which
    names every layer without a StableHLO form.
    """
    if path is not None and (reason := files.rejection(path)):
        raise InputError(f"{os.fspath(path)} cannot be written: {reason}")
    _check_sizes(graph)
    record = Record()
    main, taken = Operations(record), set[str]()
    arguments = []
    for v in graph.inputs:
        name = unique(f"in_{identifier(v.name)}", taken)
        taken.add(name)
        arguments.append(SsaValue(f"%{name}", v.type))
    interface = [f"{kind} '{v.name}': {v.type}" for kind, v in _interface(graph) if not _has_form(v.type)]
    results = write_graph(main, graph, arguments)
    if record.problems or interface:
        raise ModelError(_message(graph, record, interface))
    main.finish(results, "func.return")
    names = ", ".join(f"{a.name}: {tensor(a.type)} loc({quoted(v.name)})" for a, v in zip(arguments, graph.inputs))
    comments = "".join(f"// {kind} {quoted(v.name)}: {v.type}\n" for kind, v in _interface(graph))
    types = ", ".join(tensor(r.type) for r in results)
    head = f"{comments}module @{quoted(graph.name)} {{\n  func.func public @main({names}) -> ({types}) {{\n"
    module = StableHlo(head, main, main.count())
    if path is not None:
        try:
            files.write(path, (piece.encode() for piece in module.text()))
        except OSError as e:
            raise InputError(f"{e.filename or os.fspath(path)} cannot be written: {e.strerror}") from None
    return module


def _interface(graph: Graph):
    yield from (("input", v) for v in graph.inputs)
    yield from (("output", v) for v in graph.outputs)


def _has_form(type: TensorType) -> bool:
    try:
        return bool(tensor(type))
    except Inexpressible:
        return False


def _check_sizes(graph: Graph) -> None:
    if not symbols(graph):
        return
    open_inputs = [v for v in graph.inputs if not v.type.known]
    listed = ", ".join(f"{v.name}: {v.type}" for v in open_inputs) or f"outputs of network {graph.name!r}"
    example = " ".join(f"--shapes {v.name}={_example(v.type)}" for v in open_inputs)
    raise InputError(
        f"StableHLO is written for one set of sizes, and those of {listed} are dynamic: give them"
        + (f", as in {example}" if example else " to the import")
    )


def _example(type: TensorType) -> str:
    from pelton.ir.dims import at, symbols as symbols_of

    sizes = {s.name: s.optimum for s in symbols_of([type.shape])}
    return "x".join(str(at(d, sizes)) for d in type.shape)


def _message(graph: Graph, record: Record, interface: list[str]) -> str:
    lines = [f"{what}: StableHLO has no such element type" for what in interface]
    lines += [f"{n.op.name} (layer {n.name or n.outputs[0].name!r}): {reason}" for n, reason in record.problems]
    count = "one layer has" if len(lines) == 1 else f"{len(lines)} layers have"
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return f"network {graph.name!r} cannot be written to StableHLO; {count} no form there:\n  " + "\n  ".join(
        lines[:SHOWN] + more
    )
