"""Operations that reduce axes, sort, and multiply matrices."""

from __future__ import annotations

from pelton.ir.types import DType

from ..held import HeldTensor
from ..layers.products import explicit_equation
from .operation import Operation, reads_operation

REDUCED = {"Mean": "reduce_mean", "Sum": "reduce_sum", "Max": "reduce_max", "Min": "reduce_min", "Prod": "reduce_prod"}
SUMMED = (DType.F32, DType.I32, DType.I64)  # types whose sums have the same type
REDUCED |= {"Amax": "reduce_max", "Amin": "reduce_min", "Logsumexp": "reduce_log_sum_exp"}


def _reduced(o: Operation, x: HeldTensor, name: str) -> HeldTensor:
    axes, keeps = o.axes("axis", x.rank), bool(o.get("keepdims", False))
    if keeps:
        return x.mapped(lambda t: getattr(o.net, name)(t, tuple(x.axis(a) for a in axes), True))
    if x.is_first and x.rank - 1 in axes or not x.is_first:
        # the remaining axes are in Keras' order
        return o.of(getattr(o.net, name)(x.form, tuple(x.axis(a) for a in axes), False))
    return o.of(getattr(o.net, name)(x.tensor(), axes, False))


@reads_operation(*REDUCED)
def reduced(o: Operation) -> HeldTensor:
    o.expect(initial=None, dtype=None)
    x = o.held("x")
    if o.type in ("Mean", "Logsumexp"):
        x = o.floats("x")
    if o.type in ("Sum", "Prod"):
        _check_sum(o, x)
    return _reduced(o, x, REDUCED[o.type])


def _check_sum(o: Operation, x: HeldTensor) -> None:
    if x.dtype not in SUMMED:
        raise o.refuse(f"sums {x.dtype.value}, whose sums are of another type")


@reads_operation("Var", "Std")
def variance(o: Operation) -> HeldTensor:
    x = o.floats("x")
    axes = tuple(x.axis(a) for a in o.axes("axis", x.rank))
    centred = x.mapped(lambda t: t - o.net.reduce_mean(t, axes))
    y = _reduced(o, centred.mapped(lambda t: t * t), "reduce_mean")
    return y if o.type == "Var" else y.mapped(lambda t: o.net.sqrt(t))


@reads_operation("Any", "All")
def logical(o: Operation) -> HeldTensor:
    x = o.held("x").mapped(lambda t: o.net.cast(o.net.cast(t, to="bool"), to="i32"))
    y = _reduced(o, x, "reduce_max" if o.type == "Any" else "reduce_min")
    return y.mapped(lambda t: o.net.cast(t, to="bool"))


@reads_operation("Argmax", "Argmin")
def places(o: Operation) -> HeldTensor:
    x = o.held("x")
    if o.get("axis") is None:
        raise o.refuse("has no axis, which is not supported")
    op = o.net.arg_max if o.type == "Argmax" else o.net.arg_min
    y = op(x.tensor(), axis=o.axis("axis", x.rank), keepdims=bool(o.get("keepdims", False)))
    return o.of(o.net.cast(y, to="i32"))


@reads_operation("TopK")
def top_k(o: Operation) -> list[HeldTensor]:
    (k,) = o.integers("k", low=1)
    values, indices = o.net.top_k(o.tensor("x"), k, sorted=bool(o.get("sorted", True)))
    return [o.of(values), o.of(o.net.cast(indices, to="i32"))]


@reads_operation("Cumsum", "Cumprod")
def cumulated(o: Operation) -> HeldTensor:
    o.expect(dtype=None)
    x = o.held("x")
    if o.get("axis") is None:
        raise o.refuse("has no axis, which is not supported")
    _check_sum(o, x)
    op = o.net.cumsum if o.type == "Cumsum" else o.net.cumprod
    return x.mapped(lambda t: op(t, axis=x.axis(o.axis("axis", x.rank))))


@reads_operation("Norm")
def norm(o: Operation) -> HeldTensor:
    x = o.floats("x")
    order = o.get("ord", 2)
    if order not in (1, 2, "euclidean") or o.get("axis") is not None and len(o.axes("axis", x.rank)) != 1:
        raise o.refuse(f"is a norm of order {order!r:.30} that is not known")
    return _reduced(o, x, "reduce_l1" if order == 1 else "reduce_l2")


@reads_operation("Normalize")
def normalize(o: Operation) -> HeldTensor:
    o.expect(order=2)
    x = o.floats("x")
    axes = tuple(x.axis(a) for a in o.axes("axis", x.rank))
    return x.mapped(lambda t: o.net.l2_normalize(t, axes, epsilon=o.number("epsilon", 1e-7)))


@reads_operation("Matmul", args=("x1", "x2"))
def matmul(o: Operation) -> HeldTensor:
    a, b = o.floats("x1"), o.floats("x2")
    if min(a.rank, b.rank) < 2:
        raise o.refuse("multiplies vectors, which is not supported")
    return o.of(o.net.matmul(a.tensor(), b.tensor()))


@reads_operation("Dot", args=("x1", "x2"))
def dot(o: Operation) -> HeldTensor:
    a, b = o.floats("x1"), o.floats("x2")
    if a.rank < 2 or b.rank != 2:
        raise o.refuse("multiplies tensors of other axes than those that are known")
    return o.of(o.net.matmul(a.tensor(), b.tensor()))


@reads_operation("Einsum", args=tuple(f"operand{i}" for i in range(8)))
def einsum(o: Operation) -> HeldTensor:
    operands = [o.floats(f"operand{i}") for i in range(8) if o.get(f"operand{i}") is not None]
    equation = explicit_equation(o.reading, o.get("subscripts"), operands[0].rank)
    return o.of(o.net.einsum(equation, *(x.tensor() for x in operands)))


@reads_operation("BatchNorm", args=("x", "mean", "variance", "offset", "scale"))
def batch_norm(o: Operation) -> HeldTensor:
    x = o.floats("x")
    axis = x.axis(o.axis("axis", x.rank, -1))
    ones = [1] * (x.rank - 1 - axis)
    mean, variance = (o.floats(n).tensor() for n in ("mean", "variance"))
    factor = o.net.reciprocal(o.net.sqrt(variance + o.number("epsilon", 1e-3)))
    factor = factor * o.tensor("scale") if o.get("scale") is not None else factor
    shift = -mean * factor
    shift = shift + o.tensor("offset") if o.get("offset") is not None else shift
    factor, shift = (o.net.reshape(t, (*t.shape, *ones)) for t in (factor, shift))
    return x.mapped(lambda t: t * factor + shift)
