"""Builds steps of a script from If, Loop and Scan, and blocks from their graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pelton.engine.script import Action, Block, HostAction, IfAction, LoopAction, ScanAction
from pelton.errors import ModelError
from pelton.ir import dims
from pelton.ir.dims import Dim, Size
from pelton.ir.types import BOOL, I64, TensorType
from pelton.ir.unread import Branches, Known, Repeated, Scanned, Unread, UnreadGraph, UnreadNode

from .segment import Symbols

MAX_READINGS = 16  # of a body, until the types of its carried values are stable
Types = list[TensorType | None]


class ScriptMark(NamedTuple):
    """A position in the construction of a script, to return to: lengths of its lists."""

    programs: int
    host: int
    imported_nodes: int


class Partitioner(Protocol):
    """The interface of `partition.ModelPartitioner` used here."""

    model: Unread
    symbols: Symbols
    warnings: list[str]

    def name(self, known: Known, name: str) -> str: ...

    def set_type(self, known: Known, name: str, t: TensorType | None) -> None: ...

    def inner(
        self, graph: UnreadGraph, known: Known, given: Mapping[str, TensorType | None]
    ) -> tuple[Block, Types]: ...

    def mark(self) -> ScriptMark: ...

    def rewind(self, mark: ScriptMark) -> None: ...


def step(partitioner: Partitioner, node: UnreadNode, known: Known) -> Action | None:
    """Builds the step of a node with nested graphs; None for others, and for those that must run as a whole."""
    control = node.control
    if isinstance(control, Branches):
        return _if(partitioner, node, control, known)
    if isinstance(control, Repeated):
        return _loop(partitioner, node, control.body, known)
    return _scan(partitioner, node, control, known) if control is not None else None


def _if(partitioner: Partitioner, node: UnreadNode, control: Branches, known: Known) -> Action:
    for branch in (control.then, control.other):
        if len(branch.outputs) != len(node.outputs):
            raise ModelError(
                f"If needs branches of {len(node.outputs)} outputs, got {len(branch.outputs)} (node {node.name!r},"
                f" {partitioner.model.name})"
            )
    (then, ours), (other, theirs) = (
        _branch(partitioner, node, branch, known) for branch in (control.then, control.other)
    )
    condition = partitioner.name(known, node.inputs[0])
    inside = _symbols(known)
    sound = [types for types in (ours, theirs) if not isinstance(types, ModelError)]
    if isinstance(ours, ModelError) and not sound:
        raise ours
    for name, a, b in zip(node.outputs, sound[0], sound[-1]):
        partitioner.set_type(known, name, _common_type(partitioner, name, a, b, inside))
    return IfAction(condition, then, other, tuple(node.outputs))


def _branch(
    partitioner: Partitioner, node: UnreadNode, graph: UnreadGraph, known: Known
) -> tuple[Block, Types | ModelError]:
    """Builds the block of a branch; returns it with the types of its outputs.

    A branch that cannot be imported becomes a step that raises the error if it runs; the error replaces the types.
    """
    mark = partitioner.mark()
    try:
        return partitioner.inner(graph, known, {})
    except ModelError as e:
        partitioner.rewind(mark)
        where = f"branch {graph.name!r} of If {node.name or node.outputs[0]!r}"
        partitioner.warnings.append(f"{where} will raise an error if it runs: {e}")
        names = tuple(graph.outputs)
        return Block((), (HostAction(where, "refused", json.dumps({"why": str(e)}), (), names),), names), e


def _symbols(known: Known) -> set[str]:
    """Returns the names of the symbols known before a step."""
    return {s.name for t in known.types.values() if t is not None for s in dims.symbols(t.shape)}


def _common_type(
    partitioner: Partitioner, name: str, a: TensorType | None, b: TensorType | None, inside: set[str]
) -> TensorType | None:
    """Returns the most specific type that covers both; sizes that differ, or known only inside, become new symbols."""
    if a is None or b is None or a.dtype is not b.dtype or a.rank != b.rank:
        return None

    def size(axis: int, d: Size, e: Size) -> Size:
        known = d == e and all(s.name in inside for s in dims.symbols(d))
        return d if known else partitioner.symbols.fresh(f"{name}_{axis}", rank=a.rank)

    return TensorType(a.dtype, tuple(size(i, d, e) for i, (d, e) in enumerate(zip(a.shape, b.shape))))


def _read_until_types_hold(
    partitioner: Partitioner, read: Callable[[Types], tuple[Block, Types]], given: Types, names: Sequence[str]
) -> tuple[Block, Types, Types]:
    """Imports a body until the types of its carried values hold for all iterations.

    Returns its block, those types, and the types of its other outputs.
    """
    # `ours`: symbols of sizes that vary between iterations
    types, ours = list(given), set[str]()
    for _ in range(MAX_READINGS):
        mark = partitioner.mark()
        block, outputs = read(types)
        after: Types = []
        for name, t, new in zip(names, types, outputs):
            if t is None or new is None or t.dtype is not new.dtype or t.rank != new.rank:
                after.append(None)
                continue
            shape: list[Size] = []
            for axis, (d, e) in enumerate(zip(t.shape, new.shape)):
                minimum = max(0, min(dims.bounds(d)[0], dims.bounds(e)[0]))
                varies = isinstance(d, Dim) and str(d) in ours and dims.bounds(d)[0] <= minimum
                if d == e or varies:
                    shape.append(d)
                    continue
                if str(d) in ours:
                    minimum = 0
                size = partitioner.symbols.fresh(f"{name}_{axis}", minimum, rank=t.rank)
                shape.append(size)
                ours.add(str(size))
            after.append(TensorType(t.dtype, tuple(shape)))
        if after == types:
            return block, types, outputs[len(types) :]
        partitioner.rewind(mark)
        types = after
    raise ModelError(
        f"the types of the values that a loop carries still change after {MAX_READINGS} readings of its body"
        f" ({partitioner.model.name})"
    )


def _stacked_types(
    partitioner: Partitioner, names: Sequence[str], types: Types, into: Sequence[int], inside: set[str]
) -> tuple[Types, tuple[tuple[str, tuple[int, ...]], ...]]:
    """Returns the types of stacked outputs, and element type and shape of each for zero iterations."""
    joined: Types = []
    stacked: list[tuple[str, tuple[int, ...]]] = []
    for name, t, axis in zip(names, types, into):
        common = _common_type(partitioner, name or "row", t, t, inside)
        if common is None:
            joined.append(None)
        else:
            count = partitioner.symbols.fresh(f"{name}_count")
            joined.append(TensorType(common.dtype, (*common.shape[:axis], count, *common.shape[axis:])))
        if t is None:
            stacked.append(("f32", ()))
        else:
            stacked.append((t.dtype.value, tuple(0 if isinstance(d, Dim) else int(d) for d in t.shape)))
    return joined, tuple(stacked)


def _loop(partitioner: Partitioner, node: UnreadNode, body: UnreadGraph, known: Known) -> Action:
    inputs, count = body.inputs, len(node.inputs) - 2
    results = [*node.outputs, *[""] * (len(body.outputs) - 1 - len(node.outputs))]
    if len(inputs) != 2 + count or len(body.outputs) < 1 + count or len(results) != len(body.outputs) - 1:
        raise ModelError(
            f"Loop with {count} carried values needs a body of {2 + count} inputs, got {len(inputs)} (node"
            f" {node.name!r}, {partitioner.model.name})"
        )

    if not all(node.inputs[2:]):
        raise ModelError(
            f"Loop needs an initial value for each carried value, the graph omits one (node {node.name!r},"
            f" {partitioner.model.name})"
        )

    def read(types: Types) -> tuple[Block, Types]:
        block, outputs = partitioner.inner(body, known, dict(zip(inputs, (TensorType(I64), TensorType(BOOL), *types))))
        return block, outputs[1:]

    trips, condition, *carried = (partitioner.name(known, name) for name in node.inputs)
    block, types, more = _read_until_types_hold(
        partitioner, read, [known.type(name) for name in node.inputs[2:]], inputs[2:]
    )
    inside = _symbols(known)
    joined, stacked = _stacked_types(partitioner, results[count:], more, [0] * len(more), inside)
    for name, t in zip(
        results, [*(_common_type(partitioner, name, t, t, inside) for name, t in zip(results, types)), *joined]
    ):
        if name:
            partitioner.set_type(known, name, t)
    return LoopAction(trips, condition, tuple(carried), block, tuple(results), stacked)


def _scan(partitioner: Partitioner, node: UnreadNode, control: Scanned, known: Known) -> Action | None:
    """Builds the step of a Scan; None if the ranks of its inputs are unknown."""
    body, scans = control.body, control.scans
    inputs, states = body.inputs, len(node.inputs) - scans
    results = [*node.outputs, *[""] * (len(body.outputs) - len(node.outputs))]
    outputs, where = len(results) - states, f"(node {node.name!r}, {partitioner.model.name})"
    if (
        not 0 < scans <= len(node.inputs)
        or len(inputs) != len(node.inputs)
        or len(results) != len(body.outputs)
        or outputs < 0
    ):
        raise ModelError(
            f"Scan needs a body with {len(node.inputs)} inputs and at least {states} outputs, and an input to scan"
            f" {where}"
        )
    input_types = [known.type(name) for name in node.inputs]
    ranks = [None if t is None else t.rank for t in input_types[states:]]
    axes, back = control.axes or (0,) * scans, control.back or (0,) * scans
    into, reverse = control.into or (0,) * outputs, control.reverse or (0,) * outputs
    if not len(axes) == len(back) == scans or not len(into) == len(reverse) == outputs:
        raise ModelError(f"Scan needs an axis and a direction for each scanned input {where}")
    if any(rank is None or not -rank <= a < rank for a, rank in zip(axes, ranks)):
        return None
    axes = tuple(a % rank for a, rank in zip(axes, ranks) if rank is not None)

    def slice_of(t: TensorType | None, axis: int) -> TensorType | None:
        return None if t is None else TensorType(t.dtype, (*t.shape[:axis], *t.shape[axis + 1 :]))

    def read(types: Types) -> tuple[Block, Types]:
        return partitioner.inner(body, known, dict(zip(inputs, (*types, *map(slice_of, input_types[states:], axes)))))

    names = [partitioner.name(known, name) for name in node.inputs]
    block, types, more = _read_until_types_hold(partitioner, read, input_types[:states], inputs[:states])
    if (
        any(t is None for t in more)
        and any(into)
        or any(t is not None and not -t.rank - 1 <= a <= t.rank for t, a in zip(more, into))
    ):
        raise ModelError(f"Scan cannot stack its outputs along axes {list(into)} {where}")
    into = tuple(a if t is None else a % (t.rank + 1) for t, a in zip(more, into))
    inside = _symbols(known)
    joined, stacked = _stacked_types(partitioner, results[states:], more, into, inside)
    for name, t in zip(
        results, [*(_common_type(partitioner, name, t, t, inside) for name, t in zip(results, types)), *joined]
    ):
        if name:
            partitioner.set_type(known, name, t)
    return ScanAction(
        tuple(names[:states]),
        tuple(names[states:]),
        axes,
        tuple(map(bool, back)),
        block,
        tuple(results),
        into,
        tuple(map(bool, reverse)),
        stacked,
    )
