"""Stores the caches that a program extends in fewer bits: in f16, or in i8 with a scale for each row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pelton.errors import InputError, ModelError
from pelton.ir.builder import Builder
from pelton.ir.dims import Undecided, equal
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes
from pelton.ir.imported import Imported
from pelton.ir.types import F16, F32, I8, TensorType
from pelton.ops.op import TermLike
from pelton.ops.words import abs_, cache_write, cast, clip, div, maximum, mul, reduce_max, reshape, round_

TYPES = {"fp16": F16, "int8": I8}
LARGEST = 127  # symmetric: -128 is not used
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # rows of zeros have one, too
SUFFIX = ".scale"  # of the ports of scales, behind the names of the caches


@dataclass(frozen=True)
class _ExtendedCache:
    """A cache: the input before a run, the node that writes into it, and the output after the run."""

    before: Value
    write: Node
    after: Value

    def axis(self) -> int:
        """Returns the axis of positions of the input; ModelError if it is the last one."""
        shape, (_, heads, capacity, depth) = self.before.type.shape, self.write.inputs[0].type.shape
        for axis in range(1, len(shape) - 1):
            apart = (math.prod(shape[1:axis]), shape[axis], math.prod(shape[axis + 1 :]))
            if all(equal(a, b) for a, b in zip(apart, (heads, capacity, depth))):
                return axis
        raise ModelError(
            f"kv_cache= 'int8' needs caches whose last axis is the depth of a head; {self.before.name!r} has positions"
            " there: use 'fp16'"
        )


def store_caches(imported: Imported, kind: str) -> Imported:
    """Returns the program with each extended cache in f16 ("fp16"), or in i8 ("int8") with ports of f32 scales.

    Raises InputError for a program that extends no cache of floats, and ModelError for one whose caches have no rows.
    """
    try:
        caches = {cache.write: cache for cache in _extended_caches(imported.graph)}
        if not caches:
            raise InputError(
                "kv_cache= is for programs that extend caches of floats: inputs that only a"
                " GroupQueryAttention, TensorScatter or cache_write reads, with the results as outputs. This one has"
                " none: leave it out"
            )
        return replace(imported, graph=_Storing(imported.graph, caches, kind).graph())
    except Undecided as e:
        raise ModelError(f"kv_cache= needs caches of sizes that can be compared: {e}") from None


def scale_ports(names: Iterable[str]) -> set[str]:
    """Returns the names of ports that hold the scales of caches among these names."""
    known = set(names)
    return {name for name in known if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in known}


def _extended_caches(graph: Graph) -> Iterator[_ExtendedCache]:
    """Yields the caches of floats that the program extends."""
    for node in graph.nodes:
        if node.op is not cache_write:
            continue
        before = _behind_reshapes(graph, node.inputs[0])
        readers = graph.users.get(before, [])
        after = next((v for v in graph.outputs if _behind_reshapes(graph, v) is node.output), None)
        if after is None or before not in graph.inputs or before in graph.outputs or len(readers) != 1:
            continue
        if before.type.dtype.is_float and before.type.dtype.bits >= F16.bits:
            yield _ExtendedCache(before, node, after)


def _behind_reshapes(graph: Graph, v: Value) -> Value:
    while (node := graph.producer.get(v)) is not None and node.op is reshape:
        v = node.inputs[0]
    return v


class _Storing:
    """The graph under construction. `after`: an output of the program → the one that replaces it."""

    def __init__(self, graph: Graph, caches: dict[Node, _ExtendedCache], kind: str):
        self.source, self.dtype = graph, TYPES[kind]
        self.builder = Builder(
            graph.name,
            taken=[v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))],
        )
        self.builder.constants.update(graph.constants)
        self.inputs = {c.before: Value(c.before.type.with_dtype(self.dtype), c.before.name) for c in caches.values()}
        self.after: dict[Value, Value] = {}
        self.scales: list[tuple[Value, Value]] = []  # before and after a run
        self.to: dict[Value, Value] = {}
        outputs = {c.after for c in caches.values()}
        for node in graph.nodes:
            if node in caches:
                self._write(caches[node])
            else:
                self._copy(node, outputs)

    def graph(self) -> Graph:
        """Returns the finished program; the ports of scales come last."""
        before, after = zip(*self.scales) if self.scales else ((), ())
        return remove_dead_nodes(
            self.source.replace(
                inputs=(*(self.inputs.get(v, v) for v in self.source.inputs), *before),
                constants=self.builder.constants,
                nodes=tuple(self.builder.nodes),
                outputs=(*(self.after.get(v) or self.to.get(v, v) for v in self.source.outputs), *after),
            )
        )

    def _copy(self, node: Node, renamed: set[Value]) -> None:
        """Adds a node as it is, but outputs that caches are in other numbers get names of their own."""
        outputs = []
        for v in node.outputs:
            if v in renamed:
                self.to[v] = Value(v.type, self.builder.fresh(v.name))
            outputs.append(self.to.get(v, v))
        inputs = tuple(self.to.get(v, v) for v in node.inputs)
        self.builder.write(Node(node.op, inputs, node.attrs, tuple(outputs), node.name))

    def _build(self, term: TermLike, cache: _ExtendedCache, as_output: Value | None = None) -> Value:
        """Builds a term in the name of the node that writes the cache; as_output: the value it defines."""
        outputs = None if as_output is None else (as_output,)
        (value,) = self.builder.build(term, node_name=cache.write.name, outputs=outputs)
        return value

    def _write(self, cache: _ExtendedCache) -> None:
        """Writes rounded rows into the stored cache, and defines what readers of the cache see."""
        _, rows, begin, end = (self.to.get(v, v) for v in cache.write.inputs)
        stored, attrs = self.inputs[cache.before], cache.write.attrs
        after = Value(cache.after.type.with_dtype(self.dtype), cache.after.name)
        scales: TermLike | None = None
        if self.dtype is F16:
            narrow: TermLike = cast(rows, to=F16)
        else:
            narrow, scales = self._round(cache, rows, begin, end)
        written = cache_write(_shaped(stored, cache.write.inputs[0].type), narrow, begin, end, **attrs)
        whole = cache.write.output is cache.after
        y = self._build(written, cache, after if whole else None)
        self.after[cache.after] = after if whole else self._build(reshape(y, shape=after.type.shape), cache, after)
        wide: TermLike = y
        if scales is not None:
            shape = list(cache.before.type.shape)
            shape[cache.axis()] = y.type.shape[2]
            wide = mul(cast(reshape(y, shape=tuple(shape)), to=F32), reshape(scales, shape=(*shape[:-1], 1)))
            wide = reshape(wide, shape=y.type.shape)
        self.to[cache.write.output] = self._build(cast(wide, to=rows.type.dtype), cache)

    def _round(self, cache: _ExtendedCache, rows: Value, begin: Value, end: Value) -> tuple[TermLike, Value]:
        """Returns rows rounded to i8, each by its own scale, and the scales of all positions after the run."""
        shape, axis = cache.before.type.shape, cache.axis()
        batch, heads, count, _ = rows.type.shape
        parts = math.prod(shape[axis + 1 : -1])  # rows of one position
        wide = cast(reshape(rows, shape=(*shape[:axis], count, *shape[axis + 1 :])), to=F32)
        largest = reduce_max(abs_(wide), axes=(len(shape) - 1,), keepdims=True)
        scale = self._build(maximum(mul(largest, 1 / LARGEST), SMALLEST_SCALE), cache)
        rounded = clip(round_(div(wide, scale)), np.float32(-LARGEST), np.float32(LARGEST))
        before = Value(TensorType(F32, (*shape[:-1], 1)), self.builder.fresh(cache.before.name + SUFFIX))
        written = cache_write(
            reshape(before, shape=(batch, heads, cache.write.inputs[0].type.shape[2], parts)),
            reshape(scale, shape=(batch, heads, count, parts)),
            begin,
            end,
            **cache.write.attrs,
        )
        length = cache.write.output.type.shape[2]
        after_shape = (*shape[:axis], length, *shape[axis + 1 : -1], 1)
        after = Value(TensorType(F32, after_shape), self.builder.fresh(cache.after.name + SUFFIX))
        self._build(reshape(written, shape=after_shape), cache, after)
        self.scales.append((before, after))
        return reshape(cast(rounded, to=I8), shape=rows.type.shape), after


def _shaped(x: Value, like: TensorType) -> TermLike:
    return x if x.type.shape == like.shape else reshape(x, shape=like.shape)
