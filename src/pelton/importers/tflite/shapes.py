"""Shapes of outputs where data decides the control flow: sizes, None for unknown ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pelton.ir.dims import Size, is_known
from pelton.ir.types import TensorType

from .file import OperatorSpec, TensorSpec

Shape = Sequence[Size | None] | None  # None: an unknown number of axes
Types = Sequence[TensorType]


def shapes_of(node: OperatorSpec, given: Sequence[TensorType | None], outputs: Sequence[TensorSpec]) -> list[Shape]:
    """Returns the shapes of the outputs as far as the inputs determine them, else of the file's rank."""
    rule = _RULES.get(node.name)
    types = [t for t in given if t is not None]
    if rule is not None and len(types) == len(given):
        shapes = rule(node, types)
        if shapes is not None:
            return shapes * len(outputs) if len(shapes) == 1 else shapes
    return [[None] * len(spec.shape) if spec.shape else None for spec in outputs]


def _any(rank: int) -> list[Size | None]:
    return [None] * rank


def _reduced(node: OperatorSpec, given: Types) -> list[Shape] | None:
    x, axes = given[:2]
    if node.options is not None and node.options.values.get("keep_dims"):
        return [_any(x.rank)]
    return [_any(max(x.rank - int(axes.size), 0))] if is_known(axes.size) else None


def _as_many(node: OperatorSpec, given: Types) -> list[Shape] | None:
    """Returns as many unknown sizes as a shape has elements."""
    if len(given) < 2:  # RESHAPE with its shape in the options
        return None
    shape = given[0 if node.name in ("FILL", "TRANSPOSE_CONV") else 1]
    return [_any(int(shape.size))] if is_known(shape.size) else None


_RULES: dict[str, Callable[[OperatorSpec, Types], list[Shape] | None]] = {
    **dict.fromkeys(("CUMSUM", "REVERSE_V2"), lambda node, given: [given[0].shape]),
    **dict.fromkeys(
        ("MIRROR_PAD", "PAD", "PADV2", "SLICE", "SPLIT_V", "TILE", "TOPK_V2", "TRANSPOSE"),
        lambda node, given: [_any(given[0].rank)],
    ),
    **dict.fromkeys(("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"), _reduced),
    **dict.fromkeys(("RESHAPE", "FILL", "BROADCAST_TO", "TRANSPOSE_CONV"), _as_many),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), lambda node, given: [_any(given[0].rank - 1)]),
    "SPLIT": lambda node, given: [_any(given[1].rank)],
    "EXPAND_DIMS": lambda node, given: [_any(given[0].rank + 1)],
    "RANGE": lambda node, given: [_any(1)],
    "SEGMENT_SUM": lambda node, given: [[None, *given[0].shape[1:]]],
    "ONE_HOT": lambda node, given: [_any(given[0].rank + 1)],
    "UNIQUE": lambda node, given: [_any(1), given[0].shape],
    "WHERE": lambda node, given: [[None, given[0].rank]],
    "NON_MAX_SUPPRESSION_V4": lambda node, given: [_any(1), []],
    "NON_MAX_SUPPRESSION_V5": lambda node, given: [_any(1), _any(1), []],
}
