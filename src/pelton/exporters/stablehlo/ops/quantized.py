"""Writer of quantization to integers of up to 16 bits."""

from __future__ import annotations

from pelton.ir.graph import Node
from pelton.ir.types import F32, F64, DType

from ..blocks import Operations, SsaValue
from ..literals import Inexpressible
from ..registry import is_half, writes


@writes("quantize")
def quantize(s: Operations, node: Node, x: SsaValue, scale: SsaValue, zero: SsaValue | None = None) -> SsaValue:
    """Writes x / scale, rounded half to even, + zero, clamped and converted."""
    to, axis, dtype = node.attrs["to"], node.attrs["axis"], x.dtype
    if not to.is_integer or to.bits > 16 or node.attrs["block"]:
        raise Inexpressible("floats, wide integers and blocks are quantized by simpler operations")
    within = F64 if dtype is F64 else F32
    y = _divided(s, x, _spread(s, s.convert(scale, dtype), x, axis))
    y = s.convert(s.unary("round_nearest_even", y), within)
    if zero is not None and not (zero.array is not None and not zero.array.any()):
        y = s.add(y, _spread(s, s.convert(zero, within), x, axis))
    return s.convert(s.clamp(y, to.lowest, to.highest), to)


def _divided(s: Operations, x: SsaValue, by: SsaValue) -> SsaValue:
    """Writes a quotient, of halves by way of f32."""
    dtype: DType = x.dtype
    if not is_half(dtype):
        return s.divide(x, by)
    return s.convert(s.divide(s.convert(x, F32), s.convert(by, F32)), dtype)


def _spread(s: Operations, v: SsaValue, x: SsaValue, axis: int) -> SsaValue:
    """Returns one number, or one for each element of an axis, in the shape of x."""
    if v.type.size == 1:
        return s.broadcast(s.reshape(v, ()) if v.array is None else s.constant(v.array.reshape(())), x.shape)
    return s.broadcast(v, x.shape) if len(v.shape) == len(x.shape) > 1 else s.spread(v, x.shape, [axis])
