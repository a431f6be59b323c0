"""Readers of experimental operators that opset 10 removed; ONNX Runtime still defines and runs them."""

from __future__ import annotations

from dataclasses import replace

from pelton.importers.onnx.node import Binding, Reading, reads, schema_of
from pelton.ir.dims import Undecided, bounds, maximum
from pelton.ir.graph import Value

from .linear import scale_by
from .shape import slice_

REMOVED = 10  # the opset without them


def _operand(n: Reading) -> Value:
    """Returns an operand of an operator in the model's opset."""
    if n.opset >= REMOVED:
        raise n.refuse(f"opset {REMOVED} removed {n.op}, the model has {n.opset}; export it again")
    return n.input(0)


def _factors(n: Reading) -> tuple[float, float]:
    """Returns alpha and beta, which have no defaults."""
    alpha, beta = n.attr("alpha"), n.attr("beta")
    if alpha is None or beta is None:
        raise n.refuse(f"{n.op} needs alpha and beta")
    return alpha, beta


@reads("Affine", attributes="alpha beta consumed_inputs", inputs=1)
def affine(n: Reading) -> Binding:
    x, beta = _operand(n), n.attr("beta", 0.0)
    y = scale_by(n, x, n.attr("alpha", 1.0))
    return n.emit("add", y, n.like(y, beta)) if beta else y


@reads("Scale", attributes="scale consumed_inputs", inputs=1)
def scale(n: Reading) -> Binding:
    return scale_by(n, _operand(n), n.attr("scale", 1.0))


@reads("ScaledTanh", attributes="alpha beta consumed_inputs", inputs=1)
def scaled_tanh(n: Reading) -> Binding:
    x, (alpha, beta) = _operand(n), _factors(n)
    return scale_by(n, n.emit("tanh", scale_by(n, x, beta)), alpha)


@reads("ParametricSoftplus", attributes="alpha beta consumed_inputs", inputs=1)
def parametric_softplus(n: Reading) -> Binding:
    x, (alpha, beta) = _operand(n), _factors(n)
    return scale_by(n, n.emit("softplus", scale_by(n, x, beta)), alpha)


@reads("ImageScaler", attributes="bias scale consumed_inputs", inputs=1)
def image_scaler(n: Reading) -> Binding:
    """Computes scale · x + bias, one bias per channel."""
    x, bias = _operand(n), n.attr("bias", ())
    if x.type.rank != 4 or x.type.shape[1] != len(bias):
        raise n.refuse(f"ImageScaler needs images of rank 4, and a bias for each channel, got {x.type} and {len(bias)}")
    y = scale_by(n, x, n.attr("scale", 1.0))
    return n.emit("add", y, n.reshape(n.constant(bias, x.type.dtype), (len(bias), 1, 1)))


@reads("Crop", attributes="border scale consumed_inputs", inputs=1)
def crop(n: Reading) -> Binding:
    """Removes a border (left, top, right, bottom), or keeps a scale (height, width) from left and top on."""
    x, border, kept = _operand(n), n.attr("border", ()), n.attr("scale", ())
    if x.type.rank != 4 or len(border) < 4 or len(kept) not in (0, 2) or min(*border, *kept) < 0:
        raise n.refuse(
            "Crop needs images of rank 4, a border of 4 sizes and a scale of 2, if any, got"
            f" {x.type}, {list(border)} and {list(kept)}"
        )
    left, top, right, bottom = border[:4]
    for axis, start, back in ((2, top, bottom), (3, left, right)):
        size = x.type.shape[axis]
        end = start + kept[axis - 2] if kept else size - back
        room = size - maximum(start + back, end if kept else 0)
        if bounds(room)[1] < 0:
            raise n.refuse(f"Crop needs images larger than its border, got {x.type}")
        if bounds(room)[0] < 0:
            raise Undecided(f"Crop must leave some of an axis of {size}", room, ">=")
        x = n.slice(x, axis, start, end)
    return x


@reads("DynamicSlice", attributes="", inputs=4)
def dynamic_slice(n: Reading) -> Binding | tuple[Binding, ...]:
    """Reads a Slice whose bounds are inputs, as in opset 10."""
    _operand(n)
    return slice_(replace(n, opset=REMOVED, schema=schema_of("Slice", REMOVED, "")))
