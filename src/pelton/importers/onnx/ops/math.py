"""Readers of pointwise operators: arithmetic, functions, activations, comparisons, logic and casts."""

from __future__ import annotations

from functools import reduce

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import BOOL, F64, I64, STRING, DType

from .declared import aligned
from pelton.importers.onnx.node import Reading, Binding, reads

HUGE = 1 << 24  # more elements than a mask drawn while importing may have

CHAINS = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@reads(*CHAINS)
def chain(n: Reading) -> Binding:
    return reduce(lambda a, b: n.emit(CHAINS[n.op], a, b), n.inputs)


@reads("PRelu")
def prelu(n: Reading) -> Binding:
    """The slope broadcasts; before opset 7 it is one per channel."""
    x, slope = n.inputs
    if n.opset < 7 and slope.type.rank == 1 and slope.type.size > 1:
        slope = n.reshape(slope, (slope.type.size, *[1] * (x.type.rank - 2)))
    return n.emit("prelu", x, slope)


@reads("Mean")
def mean(n: Reading) -> Binding:
    total = reduce(lambda a, b: n.emit("add", a, b), n.inputs)
    return total if len(n.inputs) == 1 else n.emit("div", total, n.like(total, len(n.inputs)))


@reads("Equal")
def equal(n: Reading) -> Binding | tuple[Binding, ...]:
    return n.foreign() if n.input(0).type.dtype is STRING else n.emit("equal", *aligned(n))


@reads("Mod")
def mod(n: Reading) -> Binding:
    return n.emit("fmod" if n.flag("fmod") else "mod", *n.inputs)


@reads("Pow")
def power(n: Reading) -> Binding:
    """The exponent may be of another type than the base, whose type the result has. Whole powers of integers wrap;
    others go by float64, where what lies within the error of a power of a whole number is one: 3 to the 1.0 is not
    2."""
    base, exponent = aligned(n)
    dtype = base.type.dtype
    if dtype.is_float or dtype is exponent.type.dtype:
        return n.emit("pow", base, n.cast(exponent, dtype))
    if exponent.type.dtype.is_integer:
        return n.cast(n.emit("pow", n.cast(base, I64), n.cast(exponent, I64)), dtype)
    found = n.emit("pow", n.cast(base, F64), n.cast(exponent, F64))
    whole = n.emit("round", found)
    near = n.emit(
        "less_equal",
        n.emit("abs", n.emit("sub", found, whole)),
        n.emit("mul", n.emit("abs", found), n.like(found, 1e-13)),
    )
    return n.cast(n.emit("where", near, whole, found), dtype)


@reads("BitShift")
def bit_shift(n: Reading) -> Binding:
    """Signed integers (28) fill up with their sign, however far they are shifted to the right."""
    x, by = n.inputs
    if n.attr("direction") == "LEFT":
        return n.emit("shift_left", x, by)
    return n.emit(
        "shift_right",
        x,
        n.emit("minimum", by, n.like(by, 8 * by.type.dtype.size - 1)) if x.type.dtype.is_signed else by,
    )


@reads("Gelu")
def gelu(n: Reading) -> Binding:
    return n.emit("gelu_tanh" if n.attr("approximate") == "tanh" else "gelu", n.input(0))


@reads("Clip")
def clip(n: Reading) -> Binding:
    """Before opset 11 the bounds are attributes, whose defaults are no bounds; since then they are inputs that may be
    absent."""
    x = n.input(0)
    if n.opset < 11:
        furthest = float(np.finfo(np.float32).max)
        low, high = n.attr("min"), n.attr("max")
        return clip_to_bounds(
            n, x, None if low <= -furthest else n.like(x, low), None if high >= furthest else n.like(x, high)
        )
    return clip_to_bounds(n, x, *(None if b is None else n.reshape(b, ()) for b in (n.optional(1), n.optional(2))))


def clip_to_bounds(n: Reading, x: Value, low: Value | None, high: Value | None) -> Value:
    """x within bounds that may be absent."""
    if low is not None and high is not None:
        return n.emit("clip", x, low, high)
    x = x if low is None else n.emit("maximum", x, low)
    return x if high is None else n.emit("minimum", x, high)


@reads("Cast", "CastLike")
def cast(n: Reading) -> Binding | tuple[Binding, ...]:
    x = n.input(0)
    to = n.dtype(n.attr("to")) if n.op == "Cast" else n.input(1).type.dtype
    if x.type.dtype is to:
        return x
    if STRING in (x.type.dtype, to):
        return n.foreign()
    more = {"saturate": n.flag("saturate", 1)} if to.value.startswith("f8") else {}
    if to is DType.F8E8M0FNU:
        more["round_mode"] = n.attr("round_mode", "up")
    return n.emit("cast", x, to=to, **more)


@reads("BitCast")
def bit_cast(n: Reading) -> Binding:
    return n.emit("bit_cast", n.input(0), to=n.dtype(n.attr("to")))


@reads("Identity")
def identity(n: Reading) -> Binding:
    return n.bindings[0]


@reads("Bernoulli")
def bernoulli(n: Reading) -> tuple[Binding, ...]:
    """The body of its schema draws 1 where the input is not reached, the opposite of what the schema says; the onnx
    package's own evaluator is right."""
    return n.foreign()


@reads("Dropout")
def dropout(n: Reading) -> tuple[Binding, ...]:
    """Nothing at inference; the mask is all true. In training mode a seed makes the mask a constant, as numpy's
    RandomState draws it."""
    x, training, ratio = n.input(0), n.optional(2), 0.5
    if training is not None and n.numbers(2, "training_mode").any():
        ratio = float(n.numbers(1, "ratio").item()) if n.optional(1) is not None else ratio
        if not 0 <= ratio < 1:
            raise n.refuse(f"Dropout needs a ratio from 0 to less than 1, got {ratio}")
        if ratio:
            n.program.warn(
                "Dropout is in training mode, as the model says: it drops values; export the model for inference"
                f" ({n.where})"
            )
            if "seed" not in n.attributes or not x.type.known or x.type.size > HUGE:
                return n.foreign()
            kept = np.random.RandomState(n.attr("seed") % 2**32).uniform(0, 1, x.type.shape) >= ratio
            return n.emit("mul", x, n.constant(kept / (1 - ratio), x.type.dtype)), (
                n.constant(kept) if n.is_output_used(1) else None
            )
    if not n.is_output_used(1):
        return x, None
    return x, n.expand(n.constant(True, BOOL if n.opset >= 10 else x.type.dtype), x.type.shape)
