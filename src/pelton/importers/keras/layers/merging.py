"""Layers that join several tensors."""

from __future__ import annotations

from functools import reduce

from pelton.network import NetworkTensor

from ..held import HeldTensor, of_one_type, together
from ..reading import KerasReading, reads


def _operands(r: KerasReading) -> tuple[list[NetworkTensor], HeldTensor]:
    """Returns the tensors in one order of axes; those of lower rank get axes behind the batch."""
    inputs = r.inputs
    if len(inputs) < 2:
        raise r.refuse("needs two tensors and more")
    inputs = of_one_type(r, inputs)
    rank = max(x.rank for x in inputs)
    return together([x if x.rank == rank else _widened(r, x, rank) for x in inputs])


def _widened(r: KerasReading, x: HeldTensor, rank: int) -> HeldTensor:
    if x.rank < 1:
        raise r.refuse("needs tensors of one axis and more")
    return r.of(r.net.reshape(x.tensor(), (x.shape[0], *[1] * (rank - x.rank), *x.shape[1:])))


ELEMENTWISE = {
    "Add": "add",
    "Average": "add",
    "Multiply": "mul",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Subtract": "sub",
}


@reads(*ELEMENTWISE)
def elementwise(r: KerasReading) -> HeldTensor:
    tensors, like = _operands(r)
    if r.layer.type == "Subtract" and len(tensors) != 2:
        raise r.refuse(f"needs two tensors, got {len(tensors)}")
    y = reduce(getattr(r.net, ELEMENTWISE[r.layer.type]), tensors)
    return like.like(y * (1 / len(tensors)) if r.layer.type == "Average" else y)


@reads("Concatenate")
def concatenate(r: KerasReading) -> HeldTensor:
    inputs = r.inputs
    axis = r.axis(r.layer.option("axis", -1), inputs[0].rank)
    if any(x.rank != inputs[0].rank for x in inputs):
        raise r.refuse("joins tensors of several numbers of axes")
    inputs = of_one_type(r, inputs)
    if len(inputs) == 1:
        return inputs[0]
    tensors, like = together(inputs)
    return like.like(r.net.concat(tensors, like.axis(axis)))


@reads("Dot")
def dot(r: KerasReading) -> HeldTensor:
    """Sums products along an axis of each of two tensors, sample by sample."""
    inputs = r.inputs
    if len(inputs) != 2 or not all(2 <= x.rank <= 3 for x in inputs):
        raise r.refuse(f"needs two tensors of two or three axes, got {[list(x.shape) for x in inputs]}")
    axes = r.layer.option("axes")
    axes = [axes, axes] if isinstance(axes, int) else axes
    if not isinstance(axes, list) or len(axes) != 2:
        raise r.refuse(f"needs an axis of each of two tensors, got {axes!r:.60}")
    along = [r.axis(a, x.rank) for a, x in zip(axes, inputs)]
    if 0 in along:
        raise r.refuse("sums along the batch")
    tensors = [x.tensor() for x in inputs]
    if r.layer.flag("normalize", False):
        tensors = [r.net.l2_normalize(t, a, epsilon=1e-12) for t, a in zip(tensors, along)]
    (x, y), (i, j) = tensors, along
    product = r.net.matmul(_matrices(r, x, i, 2), _matrices(r, y, j, 1))
    gone = [axis for axis, t in ((1, inputs[0]), (2, inputs[1])) if t.rank == 2]
    gone = gone[:1] if len(gone) == 2 else gone  # for two vectors, [batch, 1] remains
    return r.of(r.net.squeeze(product, gone) if gone else product)


def _matrices(r: KerasReading, x: NetworkTensor, along: int, place: int) -> NetworkTensor:
    """Returns vectors or matrices with the summed axis at this place."""
    if x.rank == 2:
        return r.net.unsqueeze(x, 3 - place)
    return x if along == place else r.net.transpose(x, (0, 2, 1))
