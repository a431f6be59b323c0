"""Operators of random graphs whose data decides shapes or branches: counts, suppression, control flow."""

from __future__ import annotations

import numpy as np
from onnx import helper

from .proposals import DECIDED, NUMBERS, Graph, Proposed, proposes


def _small(most: int = 8, count: int = 4):
    """A test of arrays: a few small sizes."""
    return lambda a: a.ndim == 1 and 0 < a.size <= count and bool((a >= 1).all() and (a <= most).all())


@proposes(3, into=DECIDED)
def nonzero(g: Graph) -> Proposed:
    return "NonZero", [g.pick("float32", "int64", "bool", "uint8")], 1, {}


@proposes(3, into=DECIDED)
def compress(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    shape = g.array(x).shape
    if not shape or g.rng.random() < 0.3:
        return "Compress", [x, g.input("bool", (max(g.array(x).size - 1, 1),))], 1, {}
    axis = int(g.rng.integers(-len(shape), len(shape)))
    return "Compress", [x, g.input("bool", (max(shape[axis], 1),))], 1, {"axis": axis}


@proposes(2, into=DECIDED)
def unique(g: Graph) -> Proposed:
    return "Unique", [g.pick("int64", "float32", "int32")], g.either(1, 2, 4), {"sorted": 1}


@proposes(1, into=DECIDED)
def suppressed(g: Graph) -> Proposed:
    boxes, scores = g.random("float32", 1, 6, 4), g.input("float32", (1, 2, 6))
    operands = [boxes, scores, g.constant(np.int64(3)), g.constant(np.float32(0.3)), g.constant(np.float32(0.1))]
    return "NonMaxSuppression", operands, 1, {}


@proposes(2, into=DECIDED)
def filled_as_computed(g: Graph) -> Proposed:
    return "ConstantOfShape", [g.some("int64", _small())], 1, {"value": helper.make_tensor("v", 1, [1], [0.75])}


@proposes(2, into=DECIDED)
def counted(g: Graph) -> Proposed:
    operands = [
        g.constant(np.int64(0)),
        g.some("int64", lambda a: a.ndim == 0 and 0 <= a <= 64),
        g.constant(np.int64(g.either(1, 2))),
    ]
    return "Range", operands, 1, {}


@proposes(2, into=DECIDED)
def widened(g: Graph) -> Proposed:
    x = g.pick("float32", "int64", "bool")
    rank = g.array(x).ndim
    shape = g.some("int64", lambda a: a.ndim == 1 and a.size >= rank and bool(_small(6, 4)(a)))
    return "Expand", [x, shape], 1, {}


@proposes(2, into=DECIDED)
def best(g: Graph) -> Proposed:
    x = g.pick("float32", "float64")
    if not g.array(x).ndim:
        raise LookupError
    axis = int(g.rng.integers(0, g.array(x).ndim))
    operands = [x, g.some("int64", lambda a: a.shape == (1,) and 1 <= a[0] <= g.array(x).shape[axis])]
    attrs = {"axis": axis}
    return "TopK", operands, 2, attrs


@proposes(2, into=DECIDED)
def cut_as_computed(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    if not g.array(x).ndim:
        raise LookupError
    axis = g.constant(np.array([g.rng.integers(0, g.array(x).ndim)]))
    return "Slice", [x, g.constant(np.array([0])), g.some("int64", lambda a: a.shape == (1,)), axis], 1, {}


@proposes(2, into=DECIDED)
def picked_as_computed(g: Graph) -> Proposed:
    x = g.pick(*NUMBERS)
    if not g.array(x).ndim:
        raise LookupError
    size = g.array(x).shape[0]
    operands = [x, g.some("int64", lambda a: a.ndim < 3 and bool((a >= -size).all() and (a < size).all()))]
    attrs = {"axis": 0}
    return "Gather", operands, 1, attrs


@proposes(3, into=DECIDED)
def either_branch(g: Graph) -> Proposed:
    condition = g.pick("bool", rank=0)
    then, other = (g.inner(int(g.rng.integers(1, 5)), {}) for _ in range(2))
    made = [
        (a, b)
        for a in then.made()
        for b in other.made()
        if then.array(a).dtype == other.array(b).dtype and then.array(a).ndim == other.array(b).ndim
    ]
    if not made:
        raise LookupError
    a, b = g.either(*made)
    return "If", [condition], 1, {"then_branch": then.body([], [a]), "else_branch": other.body([], [b])}


@proposes(3, into=DECIDED)
def turns(g: Graph) -> Proposed:
    state = g.pick("float32", "int64", "float64")
    body = g.inner(int(g.rng.integers(1, 5)), {"i": np.int64(0), "go": np.bool_(True), "s": g.array(state)})
    on, kept = _passed(body, "go"), _alike(body, "s")
    count = g.constant(np.int64(g.rng.integers(1, 4))) if g.rng.random() < 0.4 else g.input("int64", ())
    seen = [_vector(body, g.either(*body.made()))] if g.rng.random() < 0.5 else []
    operands = [count, g.constant(np.bool_(True)), state]
    attrs = {"body": body.body(["i", "go", "s"], [on, kept, *seen])}
    return "Loop", operands, 1 + len(seen), attrs


@proposes(2, into=DECIDED)
def scanned(g: Graph) -> Proposed:
    x, state = g.pick("float32", "int64"), g.pick("float32", "int64")
    if not g.array(x).ndim or not g.array(x).shape[0]:
        raise LookupError
    body = g.inner(int(g.rng.integers(1, 5)), {"s": g.array(state), "r": g.array(x)[0]})
    kept, seen = _alike(body, "s"), g.either(*body.made())
    operands = [state, x]
    attrs = {
        "body": body.body(["s", "r"], [kept, seen]),
        "num_scan_inputs": 1,
        "scan_input_directions": [g.either(0, 1)],
    }
    return "Scan", operands, 2, attrs


def _passed(body: Graph, name: str) -> str:
    """An input handed on as an output."""
    if not body.take(helper.make_node("Identity", [body.called(name)], [body.fresh()])):
        raise LookupError
    return body.made()[-1]


def _vector(body: Graph, name: str) -> str:
    """A value in one row: the onnx package's loops stack nothing else."""
    if not body.take(helper.make_node("Reshape", [name, body.constant(np.array([-1]))], [body.fresh()])):
        raise LookupError
    return body.made()[-1]


def _alike(body: Graph, name: str) -> str:
    """Something that is carried on in the place of an input: of its type and shape."""
    like = body.array(body.called(name))
    found = [m for m in body.made() if body.array(m).dtype == like.dtype and body.array(m).shape == like.shape]
    return found[-1] if found else _passed(body, name)
