"""Readers of pointwise operators: arithmetic, functions, activations, comparisons, logic and casts."""

from __future__ import annotations

from functools import reduce

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import BOOL, F64, I64, STRING, DType

from .declared import aligned
from pelton.importers.onnx.node import Reading, Binding, reads

MAX_MASK = 1 << 24  # elements of a mask that is drawn while importing

CHAINS = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@reads(*CHAINS)
def chain(n: Reading) -> Binding:
    return reduce(lambda a, b: n.emit(CHAINS[n.op], a, b), n.inputs)


@reads("PRelu")
def prelu(n: Reading) -> Binding:
    """Reads a slope that broadcasts; before opset 7 it is one per channel."""
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
    """Raises to a power; the result has the type of the base, whatever that of the exponent.

    Integer powers of integers wrap. Float powers of integers are computed in f64, and rounded if they are within
    rounding errors of an integer, which keeps 3 ** 1.0 from being truncated to 2.
    """
    base, exponent = aligned(n)
    dtype = base.type.dtype
    if dtype.is_float or dtype is exponent.type.dtype:
        return n.emit("pow", base, n.cast(exponent, dtype))
    if exponent.type.dtype.is_integer:
        return n.cast(n.emit("pow", n.cast(base, I64), n.cast(exponent, I64)), dtype)
    y = n.emit("pow", n.cast(base, F64), n.cast(exponent, F64))
    whole = n.emit("round", y)
    near = n.emit(
        "less_equal",
        n.emit("abs", n.emit("sub", y, whole)),
        n.emit("mul", n.emit("abs", y), n.like(y, 1e-13)),
    )
    return n.cast(n.emit("where", near, whole, y), dtype)


@reads("BitShift")
def bit_shift(n: Reading) -> Binding:
    """Shifts bits; right shifts of signed integers (28) are arithmetic, by any distance."""
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
    """Reads bounds, attributes before opset 11 with unbounded defaults, optional inputs since."""
    x = n.input(0)
    if n.opset < 11:
        largest = float(np.finfo(np.float32).max)
        low, high = n.attr("min"), n.attr("max")
        return clip_to_bounds(
            n, x, None if low <= -largest else n.like(x, low), None if high >= largest else n.like(x, high)
        )
    return clip_to_bounds(n, x, *(None if b is None else n.reshape(b, ()) for b in (n.optional(1), n.optional(2))))


def clip_to_bounds(n: Reading, x: Value, low: Value | None, high: Value | None) -> Value:
    """Clips x to the bounds that are present."""
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
    """Emits the step of the onnx package's evaluator: the schema's function body draws 1 with probability 1 − p."""
    return n.foreign()


@reads("Dropout")
def dropout(n: Reading) -> tuple[Binding, ...]:
    """Reads the identity at inference, with a mask of ones.

    In training mode with a seed, the mask is a constant that numpy's RandomState draws.
    """
    require_inference(n)
    x, training, ratio = n.input(0), n.optional(2), 0.5
    if training is not None and n.numbers(2, "training_mode").any():
        ratio = float(n.numbers(1, "ratio").item()) if n.optional(1) is not None else ratio
        if not 0 <= ratio < 1:
            raise n.refuse(f"Dropout needs a ratio from 0 to less than 1, got {ratio}")
        if ratio:
            n.program.warn(f"Dropout is in training mode and drops values; export the model for inference ({n.where})")
            if "seed" not in n.attributes or not x.type.known or x.type.size > MAX_MASK:
                return n.foreign()
            kept = np.random.RandomState(n.attr("seed") % 2**32).uniform(0, 1, x.type.shape) >= ratio
            return n.emit("mul", x, n.constant(kept / (1 - ratio), x.type.dtype)), (
                n.constant(kept) if n.is_output_used(1) else None
            )
    if not n.is_output_used(1):
        return x, None
    return x, n.expand(n.constant(True, BOOL if n.opset >= 10 else x.type.dtype), x.type.shape)


def require_inference(n: Reading) -> None:
    """Raises ModelError if BatchNormalization or Dropout train, by an attribute of opsets before 7."""
    if n.opset < 7 and "is_test" in n.attributes and not n.flag("is_test"):
        raise n.refuse(f"{n.op} of opset {n.opset} with is_test=0 trains; export the model for inference")
