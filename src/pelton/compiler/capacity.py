"""Gives caches that a model returns longer, by `Concat`, a capacity, so that runs extend them in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pelton.engine.pairs import named_pairs
from pelton.engine.plan import Port
from pelton.errors import InputError
from pelton.ir import dims
from pelton.ir.builder import Builder
from pelton.ir.dims import Dim, Size, Symbol
from pelton.ir.dims_text import substituted
from pelton.ir.graph import Graph, Node, Value, with_types_resized
from pelton.ir.imported import Imported
from pelton.ir.op import get

OPTION = "cache_capacity"


@dataclass(frozen=True)
class GrowingCache:
    """A cache and its next value: `node` appends rows to the input `before` along an axis, which has `length` of them
    before the run."""

    before: Value
    node: Node
    axis: int
    length: Symbol


def with_capacity(imported: Imported, capacity: int) -> Imported:
    """Returns the program with caches of a fixed size: an input that grows from run to run becomes one of `capacity`
    positions along that axis, and so does its output; the first positions count, as many as there are before and
    after the run. Their number follows from the size of another input, such as a mask.

    Raises InputError if no cache grows, or one cannot have a capacity, with the reason.
    """
    graph = imported.graph
    caches = list(growing_caches(graph))
    if not caches:
        raise InputError(
            f"{OPTION}= is for models whose caches grow, such as past.0.key, which a Concat with new rows makes"
            f" present.0.key; {imported.info.label or graph.name!r} has none: leave it out"
        )
    for symbol in dict.fromkeys(c.length for c in caches):
        graph = _by_total(graph, symbol, capacity, {c.before.name for c in caches})
    return replace(imported, graph=_written(graph, {c.before.name: c for c in caches}, capacity))


def growing_caches(graph: Graph) -> Iterator[GrowingCache]:
    """Yields the inputs whose next values, by their names, are concatenations with them in front."""
    ins, outs = ([_port(v) for v in values] for values in (graph.inputs, graph.outputs))
    inputs, outputs = ({v.name: v for v in values} for values in (graph.inputs, graph.outputs))
    for before, after in named_pairs(ins, outs).items():
        node = graph.producer.get(outputs[after])
        if node is not None and node.op is get("concat") and node.inputs[0] is inputs[before]:
            axis = node.attrs["axis"]
            length = inputs[before].type.shape[axis]
            symbol = next(iter(dims.symbols(length)), None)
            if symbol is not None and str(length) == symbol.name and axis > 0:
                yield GrowingCache(inputs[before], node, axis, symbol)


def _port(v: Value) -> Port:
    return Port(v.name, v.type.dtype.value, tuple(d if isinstance(d, int) else str(d) for d in v.type.shape))


def _by_total(graph: Graph, length: Symbol, capacity: int, caches: set[str]) -> Graph:
    """Replaces the length of a cache by a total length, which another input has, minus the number of new positions."""
    total = next(
        (
            d
            for v in graph.inputs
            if v.name not in caches
            for d in v.type.shape
            if isinstance(d, Dim) and ((length,), 1) in d.terms and length not in dims.symbols(d - _size(length))
        ),
        None,
    )
    if total is None:
        raise InputError(
            f"{OPTION}= needs another input whose size tells the length of the caches, and none depends on"
            f" {length.name}: name such a dimension in the model, of a mask for example, as `{length.name} + new`"
        )
    low, high = dims.bounds(total)
    if low > capacity:
        raise InputError(f"{OPTION}={capacity} is too small: the model needs {low} positions or more ({total})")
    high = min(high, capacity)
    stem = "total_" + length.name.removeprefix("past_")
    names = {s.name for v in (*graph.inputs, *graph.outputs) for s in dims.symbols(v.type.shape)}
    name = next(n for n in (stem, *(f"{stem}_{i}" for i in range(99))) if n not in names)
    all_of = dims.symbol(name, max(low, 0), max(low, min(dims.optimum(total), high)), high)
    by = {length.name: all_of - (total - _size(length))}
    resized, _ = with_types_resized(graph, lambda d: substituted(d, by))
    return resized


def _size(symbol: Symbol) -> Size:
    return dims.symbol(symbol.name, symbol.minimum, symbol.optimum, symbol.maximum)


def _written(graph: Graph, caches: dict[str, GrowingCache], capacity: int) -> Graph:
    """Returns the graph with writes into caches instead of concatenations."""
    to: dict[Value, Value] = {}
    found: dict[Value, GrowingCache] = {}
    for v in graph.inputs:
        if v.name in caches:
            axis = caches[v.name].axis
            shape = (*v.type.shape[:axis], capacity, *v.type.shape[axis + 1 :])
            to[v], found[v] = Value(v.type.with_shape(shape), v.name), caches[v.name]
    builder = Builder(graph.name, taken=(v.name for n in graph.nodes for v in (*n.inputs, *n.outputs)))
    outputs: dict[Value, Value] = {}
    for node in graph.nodes:
        cache = found.get(node.inputs[0]) if node.inputs else None
        own = cache is not None and node.outputs[0].name == cache.node.outputs[0].name
        others = [v for v in (node.inputs[1:] if own else node.inputs) if v in found]
        if others:
            raise InputError(
                f"{OPTION}= is for caches that are read with the new rows alone; {node.op.name}"
                f" {node.name or node.outputs[0].name!r} also reads {others[0].name!r}"
            )
        if own:
            assert cache is not None
            _extend(builder, node, cache.axis, to, outputs)
            continue
        _check(node)
        builder.write(Node(node.op, tuple(to.get(v, v) for v in node.inputs), node.attrs, node.outputs, node.name))
    return Graph(
        tuple(to.get(v, v) for v in graph.inputs),
        {**graph.constants, **builder.constants},
        tuple(builder.nodes),
        tuple(outputs.get(v, v) for v in graph.outputs),
        graph.name,
    )


def _extend(builder: Builder, node: Node, axis: int, to: dict[Value, Value], outputs: dict[Value, Value]) -> None:
    """Writes the extension of a cache instead of a concatenation."""

    def emit(op: str, *inputs: Value, **attrs: Any) -> Value:
        return builder.emit(get(op), inputs, attrs, node_name=node.name)[0]

    def flat(x: Value) -> Value:
        batch, *lead = x.type.shape[:axis]
        behind = x.type.shape[axis + 1 :]
        return emit("reshape", x, shape=(batch, math.prod(lead), x.type.shape[axis], math.prod(behind)))

    before, after, cache = node.inputs[0], node.outputs[0], to[node.inputs[0]]
    batch, capacity = cache.type.shape[0], cache.type.shape[axis]
    held, total = before.type.shape[axis], after.type.shape[axis]
    news = node.inputs[1] if len(node.inputs) == 2 else emit("concat", *node.inputs[1:], axis=axis)
    begin, end = (emit("expand", emit("sizes", values=(size,), shape=(1,)), shape=(batch,)) for size in (held, total))
    written = emit("cache_write", flat(cache), flat(news), begin, end, length=capacity, keep=True)
    outputs[after] = whole = Value(cache.type, after.name)
    builder.write(Node(get("reshape"), (written,), {"shape": cache.type.shape}, (whole,), node.name))
    to[after] = emit("slice", whole, starts=(0,), ends=(total,), axes=(axis,), steps=(1,))


def _check(node: Node) -> None:
    """Raises InputError for tensors as long as a cache before the run, which the size of the other input may not
    leave."""
    for v in node.outputs:
        for d in v.type.shape:
            if isinstance(d, Dim) and dims.bounds(d)[0] < 0:
                raise InputError(
                    f"{OPTION}= is for models that use the length of caches with new positions alone;"
                    f" {node.op.name} {node.name or v.name!r} returns a tensor of {d} positions"
                )
