"""Declarations of random graphs' operators: each proposal picks fitting operands and returns a node's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

FLOATS = ("float32", "float32", "float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTEGERS)
CODES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}

Proposed = tuple[str, list[str], int, dict]  # operator, names of inputs, how many outputs, attributes


class Graph(Protocol):
    """What a proposal asks of the graph that grows; `pick` raises LookupError where nothing fits."""

    rng: np.random.Generator

    def pick(self, *dtypes: str, rank: int | None = None, like: str = "") -> str: ...
    def constant(self, array) -> str: ...
    def array(self, name: str) -> np.ndarray: ...
    def random(self, dtype: str, *shape: int) -> str: ...
    def either(self, *choices): ...
    def input(self, dtype: str, shape: Sequence[int]) -> str: ...
    def some(self, dtype: str, test: Callable[[np.ndarray], bool]) -> str: ...

    # graphs within graphs
    def inner(self, count: int, given: Mapping[str, np.ndarray]) -> Graph: ...
    def called(self, name: str) -> str: ...
    def fresh(self) -> str: ...
    def take(self, node: NodeProto) -> bool: ...
    def made(self) -> list[str]: ...
    def body(self, given: Sequence[str], outputs: Sequence[str]) -> GraphProto: ...


Proposal = Callable[[Graph], Proposed]
PROPOSALS: list[Proposal] = []
DECIDED: list[Proposal] = []  # those that make a script of a model


def proposes(weight: int = 1, into: list[Proposal] = PROPOSALS) -> Callable[[Proposal], Proposal]:
    def declare(proposal: Proposal) -> Proposal:
        into.extend([proposal] * weight)
        return proposal

    return declare


def shape_of(g: Graph, x: str) -> tuple[int, ...]:
    return g.array(x).shape


def dtype_of(g: Graph, x: str) -> str:
    return g.array(x).dtype.name


def some_axis(g: Graph, x: str) -> int:
    rank = len(shape_of(g, x))
    if not rank:
        raise LookupError
    return int(g.rng.integers(-rank, rank))


def some_axes(g: Graph, x: str) -> list[int]:
    rank = len(shape_of(g, x))
    return sorted(int(a) for a in g.rng.permutation(rank)[: g.rng.integers(0, rank + 1)])


def int64s(g: Graph, *numbers) -> str:
    return g.constant(np.array(numbers, np.int64))


def some_attributes(g: Graph, **attrs) -> dict:
    """Some of these attributes."""
    return {k: v for k, v in attrs.items() if g.rng.random() < 0.6}


def some_trailing(g: Graph, *names: str) -> list[str]:
    """Trailing operands, a random number of them."""
    return list(names[: g.rng.integers(0, len(names) + 1)])


def some_ints(g: Graph, count: int, low: int, high: int) -> list[int]:
    return [int(v) for v in g.rng.integers(low, high + 1, count)]
