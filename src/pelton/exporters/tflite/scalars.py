"""Pointwise ops from their scalar expressions, primitive by primitive, and the alignment of their operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.scalar import Scalar
from pelton.ir.types import BOOL, F32, I32, I64, DType, broadcast_shapes

from .forms import Perm, identity
from .tensors import CODES, NoForm, TFLiteTensor
from .writing import TFLiteWriting

# primitive → operator
OPERATOR = dict(add="ADD", sub="SUB", mul="MUL", div="DIV", pow="POW", mod="FLOOR_MOD", neg="NEG", abs="ABS")
OPERATOR |= dict(sign="SIGN", minimum="MINIMUM", maximum="MAXIMUM", exp="EXP", log="LOG", sqrt="SQRT", tanh="TANH")
OPERATOR |= dict(sin="SIN", cos="COS", floor="FLOOR", ceil="CEIL", rint="ROUND", lt="LESS", le="LESS_EQUAL")
OPERATOR |= dict(gt="GREATER", ge="GREATER_EQUAL", eq="EQUAL", ne="NOT_EQUAL", select="SELECT_V2")
LOGIC = {"and": "LOGICAL_AND", "or": "LOGICAL_OR", "xor": "NOT_EQUAL", "not": "LOGICAL_NOT"}
COMPARING = {"LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL", "NOT_EQUAL"}
# operators of integers, by the types that LiteRT's kernels have
INTEGERS = {
    I32: "ADD SUB MUL DIV POW FLOOR_MOD NEG ABS SIGN MINIMUM MAXIMUM SELECT_V2".split() + sorted(COMPARING),
    I64: "ADD SUB MUL FLOOR_MOD NEG MINIMUM MAXIMUM SELECT_V2".split() + sorted(COMPARING),
    BOOL: "LOGICAL_AND LOGICAL_OR LOGICAL_NOT EQUAL NOT_EQUAL SELECT_V2".split(),
}
OPTIONS = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}
# axes up to which operators broadcast
BROADCAST = {"ADD": 6, "SUB": 6, "MUL": 6, "MAXIMUM": 5, "MINIMUM": 5, "SELECT_V2": 5, "DIV": 5}
FEWEST = 4


def aligned(w: TFLiteWriting) -> tuple[list[TFLiteTensor], Perm]:
    """Returns the operands in one form of the output, which they broadcast to, and the form."""
    rank, model = w.output.rank, w.model
    whole = [v for v in w.node.inputs if v.type.rank == rank and model.known(v) is None]
    large = [v for v in whole if v.type.shape == w.output.shape] or whole
    perms = [model.native(v) for v in large] or [identity(rank)]
    perm = model.cheapest(whole, perms)
    return [_operand(w, v, rank, perm) for v in w.node.inputs], perm


def _operand(w: TFLiteWriting, v: Value, rank: int, perm: Perm) -> TFLiteTensor:
    model, own = w.model, v.type.rank
    if model.known(v) is not None and v.type.size == 1:
        single = Value(v.type.with_shape(()), v.name)
        model.reshape(v, single)
        return w.tensor(single)
    tail = tuple(range(rank - own, rank))
    if own == 0 or own < rank and perm[rank - own :] == tail and model.known(v) is None:
        return w.tensor(v)
    return w.tensor(model.widened(v, rank), perm)


def apply(w: TFLiteWriting, name: str, *args: TFLiteTensor) -> TFLiteTensor:
    """Emits a pointwise operator; raises NoForm for types and ranks that TFLite's has not."""
    typed = args[-1]
    check(name, typed.dtype, args)
    dtype = BOOL if name in COMPARING else typed.dtype
    return w.emit(name, args, broadcast_shapes(*(a.shape for a in args)), dtype, OPTIONS.get(name, ""))


def check(name: str, dtype: DType, args: Sequence[TFLiteTensor]) -> None:
    """Raises NoForm for types and ranks that an operator has not."""
    if dtype is not F32 and name not in INTEGERS.get(dtype, ()):
        raise NoForm(f"TFLite's {name} has no {dtype.value}")
    most = max(a.rank for a in args)
    if most > BROADCAST.get(name, FEWEST) and len({a.shape for a in args if a.rank}) > 1:
        raise NoForm(f"TFLite's {name} broadcasts up to {BROADCAST.get(name, FEWEST)} axes, got {most}")


def by_scalar(w: TFLiteWriting) -> None:
    """Writes a pointwise op, primitive by primitive."""
    op = w.node.op
    if op.scalar is None:
        raise NoForm("TFLite has no operator for it")
    tensors, perm = aligned(w)
    made: dict[int, TFLiteTensor] = {}

    def value(e: Scalar) -> TFLiteTensor:
        if id(e) not in made:
            made[id(e)] = tensors[e.args[0]] if e.fn == "input" else _primitive(w, e, operands(e))
        return made[id(e)]

    def operands(e: Scalar) -> list[TFLiteTensor]:
        kinds = [a.dtype for a in e.args if isinstance(a, Scalar) and not (e.fn == "select" and a is e.args[0])]
        beside = kinds[0] if kinds else e.dtype
        numbers = e.args[:1] if e.fn == "cast" else e.args
        return [value(a) if isinstance(a, Scalar) else w.constant(a, beside) for a in numbers]

    expression = op.trace(tuple(v.type.dtype for v in w.node.inputs), w.node.attrs)
    result = value(expression)
    if result.shape != tuple(w.output.shape[a] for a in perm) or result in tensors:
        raise NoForm("TFLite has no operator for it")
    w.finish(result, perm)


def _primitive(w: TFLiteWriting, e: Scalar, args: list[TFLiteTensor]) -> TFLiteTensor:
    x, dtype = args[0], args[-1].dtype

    def number(a: float) -> TFLiteTensor:
        return w.constant(a, dtype)

    if e.fn == "cast":
        return cast(w, x, e.dtype)
    if e.fn == "abs" and dtype is I64:
        return apply(w, "MAXIMUM", x, apply(w, "NEG", x))
    if e.fn == "rint" and dtype is not F32:
        raise NoForm(f"TFLite's ROUND has no {dtype.value}")
    if e.fn in OPERATOR:
        return apply(w, OPERATOR[e.fn], *args)
    if e.fn in LOGIC and dtype is BOOL:
        return apply(w, LOGIC[e.fn], *args)
    if e.fn == "isnan":
        return apply(w, "NOT_EQUAL", x, x)
    if e.fn == "isinf":
        return apply(w, "EQUAL", apply(w, "ABS", x), number(math.inf))
    if e.fn == "trunc":
        return apply(w, "SELECT_V2", apply(w, "LESS", x, number(0)), apply(w, "CEIL", x), apply(w, "FLOOR", x))
    if e.fn == "tan":
        return apply(w, "DIV", apply(w, "SIN", x), apply(w, "COS", x))
    if e.fn == "erf" and dtype is F32:
        return erf(w, x)
    if e.fn == "atan" and dtype is F32:
        ones = w.model.cast(apply(w, "EQUAL", x, x), F32)  # LiteRT's ATAN2 reads as many elements of both, unchecked
        return w.emit("ATAN2", [x, ones], x.shape)
    raise NoForm(f"TFLite has no operator for {e.fn}")


def erf(w: TFLiteWriting, x: TFLiteTensor) -> TFLiteTensor:
    """Returns erf(x) = 2 · gelu(√2 x) / (√2 x) − 1, and 0 for 0."""
    zero = w.constant(np.float32(0))
    at = apply(w, "EQUAL", x, zero)
    by = apply(w, "SELECT_V2", at, w.constant(np.float32(1)), apply(w, "MUL", x, w.constant(np.float32(math.sqrt(2)))))
    gelu = w.emit("GELU", [by], by.shape, F32, "GeluOptions", approximate=False)
    twice = apply(w, "MUL", apply(w, "DIV", gelu, by), w.constant(np.float32(2)))
    return apply(w, "SELECT_V2", at, zero, apply(w, "SUB", twice, w.constant(np.float32(1))))


def cast(w: TFLiteWriting, x: TFLiteTensor, to: DType) -> TFLiteTensor:
    """Casts a tensor: floats to integers towards zero, anything to bool by `!= 0`."""
    if x.dtype is to:
        return x
    for dtype in (x.dtype, to):
        if dtype not in CODES or dtype.bits < 8 and dtype is not BOOL:
            raise NoForm(f"TFLite's CAST has no {dtype.value}")
    return w.model.cast(x, to)
