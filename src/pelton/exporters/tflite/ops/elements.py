"""Writers of pointwise ops."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, I8

from pelton.ops import words

from ..scalars import COMPARING, OPTIONS, aligned, cast, check
from ..tensors import NoForm, Scaling
from ..writing import TFLiteWriting, writes

_UNARY = dict(neg="NEG", abs="ABS", sign="SIGN", exp="EXP", log="LOG", sqrt="SQRT", sin="SIN", cos="COS", floor="FLOOR")
_UNARY |= dict(ceil="CEIL", round="ROUND", tanh="TANH", sigmoid="LOGISTIC", relu="RELU", hard_swish="HARD_SWISH")
_UNARY |= dict(logical_not="LOGICAL_NOT", leaky_relu="LEAKY_RELU", elu="ELU", gelu="GELU", gelu_tanh="GELU")
_BINARY = dict(add="ADD", sub="SUB", mul="MUL", div="DIV", minimum="MINIMUM", maximum="MAXIMUM", pow="POW")
_BINARY |= dict(mod="FLOOR_MOD", less="LESS", less_equal="LESS_EQUAL", greater="GREATER", equal="EQUAL")
_BINARY |= dict(greater_equal="GREATER_EQUAL", logical_and="LOGICAL_AND", logical_or="LOGICAL_OR")
_BINARY |= dict(logical_xor="NOT_EQUAL")
UNARY, BINARY = ({getattr(words, op): name for op, name in table.items()} for table in (_UNARY, _BINARY))
# outputs of integers whose scaling is fixed
FIXED = {"LOGISTIC": Scaling((1 / 256,), -128), "TANH": Scaling((1 / 128,))}
CLIPS = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, 1.0): "RELU_0_TO_1"}


@writes(*_UNARY)
def unary(w: TFLiteWriting) -> None:
    name, perm = UNARY[w.node.op], w.native(0)
    x = w.x(0, perm)
    if not w.integers:
        check(name, x.dtype, [x])
    if name == "LEAKY_RELU":
        w.result(name, [x], perm, "LeakyReluOptions", alpha=w.attrs["alpha"])
    elif name == "GELU":
        w.result(name, [x], perm, "GeluOptions", approximate=w.node.op is words.gelu_tanh)
    elif name == "ELU" and w.attrs["alpha"] != 1:
        raise NoForm("TFLite's ELU has an alpha of 1")
    else:
        w.result(name, [x], perm, scaling=FIXED.get(name))


@writes(*_BINARY)
def binary(w: TFLiteWriting) -> None:
    name = BINARY[w.node.op]
    tensors, perm = aligned(w)
    if w.integers and name in ("MINIMUM", "MAXIMUM"):
        assert w.end.scaling is not None
        tensors = [w.model.rescaled(x, w.end.scaling) for x in tensors]
    elif not (w.integers and name in ("ADD", "SUB", "MUL")):
        if name in COMPARING and any(w.model.is_stored(v) for v in w.node.inputs):
            raise NoForm("comparisons of integers are not written")
        check(name, tensors[-1].dtype, tensors)
    w.result(name, tensors, perm, OPTIONS.get(name, ""))


@writes("clip")
def clip(w: TFLiteWriting) -> None:
    limits = [w.known(i) for i in (1, 2)]
    if w.type(0).dtype is not F32 or any(a is None or a.size > 1 for a in limits):
        raise NoForm("TFLite clips to constant limits")
    low, high = (float(a.item()) for a in limits if a is not None)
    perm = w.native(0)
    if (low, high) in CLIPS and w.output == w.type(0):
        w.result(CLIPS[low, high], [w.x(0, perm)], perm)
        return
    if w.integers:  # the limits of the output's integers clip, too
        raise NoForm("TFLite clips integers to 0, 1 and 6")
    raise NoForm("TFLite clips to 0, 1 and 6")


@writes("prelu")
def prelu(w: TFLiteWriting) -> None:
    """Writes slopes that are constant along batches; others are choices."""
    x, slope = w.type(0), w.type(1)
    if x.dtype is not F32 or w.output != x or not 2 <= x.rank <= 4 or slope.rank > x.rank:
        raise NoForm("TFLite's PRELU has slopes for the axes behind the batch")
    perm = w.native(0)
    wide = w.model.widened(w.input(1), x.rank)
    if perm[0] != 0 or wide.type.shape[0] != 1:
        raise NoForm("TFLite's PRELU has slopes for the axes behind the batch")
    inner = Value(wide.type.with_shape(tuple(wide.type.shape[a] for a in perm[1:])), wide.name)
    slopes = w.known(1)
    if slopes is None:
        raise NoForm("TFLite's PRELU has constant slopes")
    whole = slopes.reshape(wide.type.shape).transpose(perm).reshape(inner.type.shape)
    w.model.put_constant(inner, np.asarray(whole, order="C"))
    w.result("PRELU", [w.x(0, perm), w.tensor(inner)], perm)


@writes("swish")
def swish(w: TFLiteWriting) -> None:
    alpha, x = w.attrs["alpha"], w.input(0)
    (y,) = w.written(words.mul(x, words.sigmoid(words.mul(x, alpha) if alpha != 1 else x)))
    w.model.rename(y, w.node.output)


@writes("where")
def where(w: TFLiteWriting) -> None:
    tensors, perm = aligned(w)
    if tensors[1].dtype is not I8:
        check("SELECT_V2", tensors[1].dtype, tensors)
    w.result("SELECT_V2", tensors, perm)


@writes("cast")
def convert(w: TFLiteWriting) -> None:
    for name in ("saturate", "round_mode"):
        w.attrs[name]  # types of TFLite have neither
    perm = w.native(0)
    x = w.x(0, perm)
    y = cast(w, x, w.attrs["to"])
    w.finish(y, perm)


@writes("copy")
def copy(w: TFLiteWriting) -> None:
    w.finish(w.x(0, w.native(0)), w.native(0))
