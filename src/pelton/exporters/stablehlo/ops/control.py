"""Writers of branches, loops and scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pelton.ir.graph import Node
from pelton.ir.types import I32, I64, TensorType
from pelton.ops.control import ENDLESS

from ..blocks import Operations, SsaValue
from ..literals import integers
from ..program import write_graph
from ..registry import writes

Blocks = Callable[[Operations, Sequence[SsaValue]], Sequence[SsaValue]]


def repeat(s: Operations, operands: Sequence[SsaValue], condition: Blocks, body: Blocks) -> tuple[SsaValue, ...]:
    """Writes a loop: while `condition` of the values holds, `body` replaces them."""
    types = [x.type for x in operands]
    regions = []
    for write in (condition, body):
        inner, values = s.region(types)
        inner.finish(write(inner, values))
        regions.append(inner)
    return s.op("while", operands, types, None, regions)


def count_up(
    s: Operations, count: int, operands: Sequence[SsaValue], body: Callable[..., Sequence[SsaValue]]
) -> tuple[SsaValue, ...]:
    """Writes a loop of a known number of turns: `body(block, turn, values)` returns the first of the next values; the
    rest are the same in all turns."""

    def step(inner: Operations, values: Sequence[SsaValue]) -> Sequence[SsaValue]:
        turn, *others = values
        changed = list(body(inner, turn, others))
        return [inner.add(turn, 1), *changed, *others[len(changed) :]]

    start = s.constant(0, I32)
    going: Blocks = lambda inner, values: [inner.compare("LT", values[0], count)]  # noqa: E731
    return repeat(s, [start, *operands], going, step)[1:]


def read_at(s: Operations, x: SsaValue, axis: int, at: SsaValue) -> SsaValue:
    """Writes the slice at a place of an axis, which disappears."""
    zero, rank = s.constant(0, at.dtype), len(x.shape)
    shape = [1 if i == axis else n for i, n in enumerate(x.shape)]
    starts = [at if i == axis else zero for i in range(rank)]
    part = s.one("dynamic_slice", [x, *starts], TensorType(x.dtype, tuple(shape)), {"slice_sizes": integers(shape)})
    return s.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


def write_at(s: Operations, x: SsaValue, part: SsaValue, axis: int, at: SsaValue) -> SsaValue:
    """Writes x with a slice at a place of an axis replaced."""
    zero = s.constant(0, at.dtype)
    wide = s.reshape(part, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    starts = [at if i == axis else zero for i in range(len(x.shape))]
    return s.one("dynamic_update_slice", [x, wide, *starts], x.type)


@writes("if")
def if_(s: Operations, node: Node, condition: SsaValue, *operands: SsaValue) -> Sequence[SsaValue]:
    """Writes branches, which read the operands from outside."""
    regions = []
    for name in ("then", "other"):
        inner, _ = s.region()
        inner.finish(write_graph(inner, node.attrs[name].graph, operands))
        regions.append(inner)
    return s.op("if", [condition], [v.type for v in node.outputs], None, regions)


@writes("loop")
def loop(s: Operations, node: Node, trips: SsaValue, go: SsaValue, *operands: SsaValue) -> Sequence[SsaValue]:
    """Writes a loop over the turn, the condition, the limit, and the operands."""
    carried, graph = node.attrs["carried"], node.attrs["body"].graph
    endless = trips.array is not None and int(trips.array) == ENDLESS

    def going(inner: Operations, values: Sequence[SsaValue]) -> Sequence[SsaValue]:
        turn, go, limit, *_ = values
        return [go if endless else inner.binary("and", go, inner.compare("LT", turn, limit))]

    def step(inner: Operations, values: Sequence[SsaValue]) -> Sequence[SsaValue]:
        turn, _, limit, *others = values
        go, *state = write_graph(inner, graph, [turn, *others])
        return [inner.add(turn, 1), go, limit, *state, *others[carried:]]

    results = repeat(s, [s.constant(0, I64), go, trips, *operands], going, step)
    return results[3 : 3 + carried]


@writes("scan")
def scan(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    """Writes a loop over the states, the stacked results, and the operands."""
    states, axes, into, back = (node.attrs[k] for k in ("states", "axes", "into", "back"))
    graph, parts = node.attrs["body"].graph, len(into)
    count = operands[states].shape[axes[0]]
    stacks = [s.full(0, v.type) for v in node.outputs[states:]]

    def step(inner: Operations, turn: SsaValue, values: Sequence[SsaValue]) -> Sequence[SsaValue]:
        state, stacked = values[:states], values[states : states + parts]
        scanned, rest = values[states + parts :][: len(axes)], values[states + parts + len(axes) :]
        at = inner.subtract(count - 1, turn) if back else turn
        slices = [read_at(inner, x, axis, at) for x, axis in zip(scanned, axes)]
        made = write_graph(inner, graph, [*state, *slices, *rest])
        written = [write_at(inner, x, part, axis, at) for x, part, axis in zip(stacked, made[states:], into)]
        return [*made[:states], *written]

    results = count_up(s, count, [*operands[:states], *stacks, *operands[states:]], step)
    return results[: states + parts]
