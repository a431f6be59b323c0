"""Writers of pointwise ops whose operators have other operands or attributes, of quantization, and of texts."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import F16, BF16, F32, I32, I64, STRING, DType, broadcast_shapes
from pelton.ops.foreign import CODES

from ..generic import cast as emit_cast
from ..writing import Writing, writes


@writes("cast")
def cast(w: Writing) -> str:
    a = w.attrs
    return emit_cast(w, w.input(0), a["to"], a["saturate"], a["round_mode"])


@writes("clip")
def clip(w: Writing) -> str:
    """Writes Clip for numbers as bounds, a maximum and a minimum for others."""
    if any(w.type(i).shape != () for i in (1, 2)):
        raise w.refuse("Clip needs one number for each bound")
    return w.emit("Clip", *w.inputs)


@writes("prelu")
def prelu(w: Writing) -> str:
    x, slope = w.type(0).shape, w.type(1).shape
    if broadcast_shapes(x, slope) != x:
        raise w.refuse("PRelu needs slopes that broadcast to its input")
    return w.emit("PRelu", *w.inputs)


@writes("gelu")
def gelu(w: Writing) -> str:
    return w.emit("Gelu", *w.inputs)


@writes("gelu_tanh")
def gelu_tanh(w: Writing) -> str:
    return w.emit("Gelu", *w.inputs, approximate="tanh")


@writes("is_inf")
def is_inf(w: Writing) -> str:
    a = w.attrs
    if not a["positive"] and not a["negative"]:
        raise w.refuse("IsInf needs a sign")
    return w.emit("IsInf", *w.inputs, detect_positive=int(a["positive"]), detect_negative=int(a["negative"]))


@writes("bit_cast")
def bit_cast(w: Writing) -> str:
    to = w.attrs["to"]
    return w.emit("BitCast", *w.inputs, gives=to, to=CODES[to.value])


# --- quantization


def _layout(w: Writing) -> tuple[list[str], dict[str, int | None]]:
    """Returns scale and zero point, as numbers, one for each element of an axis, or blocks, and the attributes."""
    axis, block, rank = w.attrs["axis"], w.attrs["block"], w.type(0).rank
    shapes = {w.type(i).shape for i in range(1, len(w.node.inputs))}
    if all(w.type(i).size == 1 for i in range(1, len(w.node.inputs))):
        names = [w.input(i) if w.type(i).shape == () else w.reshape(w.input(i), ()) for i in range(1, len(w.inputs))]
        return names, {}
    if (
        len(shapes) > 1
        or not block
        and any(len(s) != 1 for s in shapes)
        or block
        and any(len(s) != rank for s in shapes)
    ):
        raise w.refuse("scales and zero points must be of one shape, [size of the axis] or of blocks")
    return list(w.inputs[1:]), {"axis": axis, "block_size": block or None}


@writes("dequantize")
def dequantize(w: Writing) -> str:
    if w.type(1).dtype not in (F32, F16, BF16) or w.type(0).dtype is I32 and len(w.inputs) > 2:
        raise w.refuse("DequantizeLinear needs a scale of 16 or 32 bits, and no zero point of i32")
    operands, attrs = _layout(w)
    return w.emit("DequantizeLinear", w.input(0), *operands, gives=w.result.dtype, **attrs)


@writes("quantize")
def quantize(w: Writing) -> str:
    """Also writes a missing zero point, since it fixes the type. Only f32 rounds as QuantizeLinear does."""
    to, scale = w.attrs["to"], w.type(1)
    if not (w.type(0).dtype is scale.dtype is F32 and scale.known):
        raise w.refuse("QuantizeLinear needs f32")
    if to.is_float and len(w.inputs) > 2:
        raise w.refuse("floats have no zero point")
    operands, attrs = _layout(w)
    if len(operands) < 2:
        shape = () if scale.size == 1 else scale.shape
        operands.append(w.constant(np.zeros(shape, np.float32).astype(to.numpy)))
    saturate = 0 if to.value.startswith("f8") and not w.attrs["saturate"] else None
    return w.emit("QuantizeLinear", w.input(0), *operands, gives=to, saturate=saturate, **attrs)


@writes("lookup")
def lookup(w: Writing) -> str:
    """Writes LabelEncoder of ai.onnx.ml; of equal keys, the last counts."""
    keys = w.known(1)
    if keys is None or not keys.size:
        raise w.refuse("the keys must be constants")
    places = {str(key): i for i, key in enumerate(keys.tolist())}
    w.model.opsets.setdefault("ai.onnx.ml", 4)
    attrs = dict(keys_strings=list(places), values_int64s=list(places.values()), default_int64=-1)
    (y,) = w.emit_all("LabelEncoder", [w.input(0)], [I64], domain="ai.onnx.ml", **attrs)
    return y


def narrow(dtype: DType) -> bool:
    """True if sums in i32, cut to the type, equal those in the type: modulo its width."""
    return dtype.is_integer and dtype is not STRING and dtype.bits < 32
