"""Random operands for the ops' examples: floats from the op's domain, valid indices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import DType, TensorType
from pelton.ops import REGISTRY, Op


def examples(kind: str = "") -> Iterator[tuple[str, Op, tuple[TensorType, ...], dict]]:
    """(name for the test, op, input types, complete attributes) of every example in the registry, perhaps of one kind
    of op."""
    for op in list(REGISTRY.values()):
        if not kind or op.kind == kind:
            for i, example in enumerate(op.examples):
                *types, attrs = example if isinstance(example[-1], dict) else (*example, {})
                yield f"{op.name}-{i}", op, tuple(map(TensorType.parse, types)), op.complete(attrs)


def node_of(op: Op, types: tuple[TensorType, ...], attrs: dict) -> Node:
    """A node with inputs of these types."""
    outputs = tuple(Value(t, f"y{i}") for i, t in enumerate(op.infer_types(types, attrs)))
    return Node(op, tuple(Value(t, f"x{i}") for i, t in enumerate(types)), attrs, outputs)


def seed_of(op: Op, types: tuple[TensorType, ...], attrs: dict) -> int:
    """The same for an example in every run."""
    return sum(i * b for i, b in enumerate(json.dumps([op.name, *map(str, types), str(attrs)]).encode(), 1)) % 2**32


def operands(op: Op, types: tuple[TensorType, ...], attrs: dict, seed: int | None = None) -> tuple[np.ndarray, ...]:
    """Arrays of the types on which the op is well defined."""
    rng = np.random.default_rng(seed_of(op, types, attrs) if seed is None else seed)
    if op.name == "trees":
        return _forest(rng, types, attrs["targets"])
    arrays = [
        (
            _indices(rng, op, types, attrs)
            if op.name in _INDEX_BOUND and i == _INDEX_PLACE.get(op.name, 1)
            else _array(rng, t, op.domain)
        )
        for i, t in enumerate(types)
    ]
    if op.name == "clip":
        arrays[1], arrays[2] = np.minimum(arrays[1], arrays[2]), np.maximum(arrays[1], arrays[2])
    return tuple(arrays)


def _forest(rng: np.random.Generator, types: tuple[TensorType, ...], targets: int) -> tuple[np.ndarray, ...]:
    """Rows, and trees that grow where chance has it until there is no slot left."""
    x, threshold, _, _, roots, _, start, target, weight = types
    slots, trees = threshold.size, roots.size
    feature, child, level, of = (
        np.zeros(slots, np.int32),
        np.arange(slots, dtype=np.int32) - 1,
        np.zeros(slots, np.int32),
        np.arange(slots),
    )
    split, open_ = np.full(slots, np.nan), list(range(trees))
    for new in range(trees, slots, 2):
        at = open_.pop(rng.integers(len(open_)))
        feature[at], child[at], split[at] = rng.integers(-x.shape[1], x.shape[1]), new, rng.uniform(-2, 2)
        level[new : new + 2], of[new : new + 2] = level[at] + 1, of[at]
        open_ += [new, new + 1]
    depth = np.array([level[of == t].max() for t in range(trees)], np.int32)
    starts = np.linspace(0, target.size, start.size).astype(np.int32)
    return (
        _array(rng, x, (-3.0, 3.0)),
        split.astype(threshold.dtype.numpy),
        feature,
        child,
        depth,
        rng.integers(0, start.size - 1, slots, np.int32),
        starts,
        rng.integers(0, targets, target.size, np.int32),
        _array(rng, weight, (-3.0, 3.0)),
    )


def _array(rng: np.random.Generator, type: TensorType, domain: tuple[float, float]) -> np.ndarray:
    if type.dtype is DType.BOOL:
        return rng.random(type.shape) < 0.5
    if type.dtype.is_integer:  # small, and never zero: some divide by them
        found = rng.integers(1, 6, type.shape)
        return (found * rng.choice([-1, 1], type.shape) if type.dtype.is_signed else found).astype(type.dtype.numpy)
    return rng.uniform(*domain, type.shape).astype(type.dtype.numpy)


# op → the sizes that its indices count along, one per element of an index tuple
_INDEX_BOUND = {
    "gather": lambda x, indices, attrs: x.shape[attrs["axis"]],
    "blend": lambda x, indices, attrs: x.shape[attrs["axis"]],
    "gather_elements": lambda x, indices, attrs: x.shape[attrs["axis"]],
    "scatter_elements": lambda x, indices, attrs: x.shape[attrs["axis"]],
    "quantized_gather": lambda x, indices, attrs: x.shape[0],
    "gather_nd": lambda x, indices, attrs: np.array(x.shape[attrs["batch_dims"] :][: indices.shape[-1]]),
    "scatter_nd": lambda x, indices, attrs: np.array(x.shape[: indices.shape[-1]]),
    "one_hot": lambda indices, values, attrs: attrs["depth"],
    "roi_align": lambda x, rois, attrs: x.shape[0],
    "max_roi_pool": lambda x, rois, attrs: x.shape[0],
}
_INDEX_PLACE = {"one_hot": 0, "roi_align": 2, "max_roi_pool": 2}


def _indices(rng: np.random.Generator, op: Op, types: tuple[TensorType, ...], attrs: dict) -> np.ndarray:
    """From the whole range, negative ones too; distinct where a scatter without reduction would depend on the order of
    writing."""
    place = _INDEX_PLACE.get(op.name, 1)
    type, bound = types[place], _INDEX_BOUND[op.name](types[0], types[1], attrs)
    if attrs.get("reduction") == "none" and op.name == "scatter_elements":
        axis = attrs["axis"]
        order = rng.permuted(
            np.broadcast_to(
                np.arange(bound).reshape(-1, *[1] * (type.rank - 1 - axis)),
                (*type.shape[:axis], bound, *type.shape[axis + 1 :]),
            ),
            axis=axis,
        )
        return np.take(order, np.arange(type.shape[axis]), axis).astype(type.dtype.numpy)
    return rng.integers(-bound, bound, type.shape).astype(type.dtype.numpy)
