"""Casts, with defined results where a type does not hold a number."""

from __future__ import annotations

from pelton.ir.types import BOOL, F32, I32, U8, U32, DType

from .blocks import Operations, SsaValue

E8 = DType.F8E8M0FNU


def cast(s: Operations, x: SsaValue, to: DType, saturate: bool = True, round_mode: str = "up") -> SsaValue:
    """Writes a cast: floats to integers towards zero, integers modulo the width, anything to bool by `!= 0`.

    saturate: floats of a byte are finite. round_mode: of a fraction, for f8e8m0fnu.
    """
    source = x.dtype
    if source is to:
        return x
    if to is BOOL:
        return s.compare("NE", x, 0)
    if to is E8:
        wide = s.convert(x, F32)
        return s.one("bitcast_convert", [_power_of_two(s, wide, saturate, round_mode)], x.type.with_dtype(E8))
    if source is E8:
        x = _from_power_of_two(s, x)
        source = F32
    if to.is_integer and source.is_float and to.bits < 32:
        x, source = s.convert(x, I32), I32
    if to.is_integer and source.is_integer and (to.bits < source.bits or to.bits == source.bits > 8):
        return _wrapped(s, x, to)
    if to.is_float and to.size == 1 and source is not BOOL:
        x = s.convert(x, F32)
        if saturate:
            x = s.clamp(x, -_largest(to), _largest(to))
    return s.convert(x, to)


def _largest(dtype: DType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy).max)


def _wrapped(s: Operations, x: SsaValue, to: DType) -> SsaValue:
    """Writes an integer modulo the width of a type: conversions beyond its range have no defined result."""
    if to.bits == x.dtype.bits:
        return s.one("bitcast_convert", [x], x.type.with_dtype(to))
    if not to.is_signed:
        return s.convert(s.binary("and", x, (1 << to.bits) - 1), to)
    signed = x if x.dtype.is_signed else cast(s, x, DType(x.dtype.value.replace("u", "i")))
    by = x.dtype.bits - to.bits
    return s.convert(s.binary("shift_right_arithmetic", s.binary("shift_left", signed, by), by), to)


def _power_of_two(s: Operations, x: SsaValue, saturate: bool, round_mode: str) -> SsaValue:
    """Writes the codes of f8e8m0fnu as bytes: exponents, 255 for NaN and infinity, without sign."""
    bits = s.one("bitcast_convert", [x], x.type.with_dtype(U32))
    exponent = s.binary("and", s.binary("shift_right_logical", bits, 23), 255)
    fraction = s.binary("and", bits, 0x7FFFFF)
    if round_mode != "down":
        up = s.compare("NE", fraction, 0)
        if round_mode == "nearest":
            half = s.binary("and", s.compare("EQ", fraction, 0x400000), s.compare("GT", exponent, 0))
            up = s.binary("or", s.compare("GT", fraction, 0x400000), half)
        up = s.binary("and", up, s.compare("LT", exponent, 254 if saturate else 255))
        exponent = s.add(exponent, s.convert(up, U32))
    return s.convert(exponent, U8)


def _from_power_of_two(s: Operations, x: SsaValue) -> SsaValue:
    """Writes f8e8m0fnu as f32: code 0 is 2⁻¹²⁷, which has the bits 0x400000, and 255 is NaN."""
    code = s.convert(s.one("bitcast_convert", [x], x.type.with_dtype(U8)), U32)
    bits = s.binary("shift_left", code, 23)
    bits = s.select(s.compare("EQ", code, 0), 0x400000, bits)
    bits = s.select(s.compare("EQ", code, 255), 0x7FC00000, bits)
    return s.one("bitcast_convert", [bits], x.type.with_dtype(F32))
