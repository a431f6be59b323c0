"""Removes casts without effect, and merges casts of casts."""

from __future__ import annotations

from pelton.ir.types import BOOL, F16, F32, F64, I32, U8, DType
from pelton.ops.words import cast
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import rule, when


def _holds(dtype: DType, other: DType) -> bool:
    """True if `dtype` represents every number of `other`."""
    if other is BOOL or dtype is other:
        return dtype.is_float or dtype.is_integer or dtype is other
    if other.is_integer:
        bits, room = int(other.value[1:]), {F64: 53, F32: 24}.get(dtype, 0)
        if dtype.is_integer and (dtype.is_signed or not other.is_signed):
            room = int(dtype.value[1:]) - (dtype.is_signed and not other.is_signed)
        return bits <= room
    return other.is_float and (dtype is F64 or (dtype is F32 and other.size <= 2))


@rule(lambda x: cast(x, to=ANY), stage="simplify", examples=[dict(x="f16[2, 3]", to=F16)])
def cast_same(x, to):
    """A cast to its own type is removed."""
    when(x.type.dtype is to)
    return x


@rule(
    lambda x, *, between, to: cast(cast(x, to=between), to=to),
    stage="simplify",
    shared=True,
    examples=[
        dict(x="f32[5]", between=F64, to=I32),
        dict(x="u8[5]", between=I32, to=F32),
        dict(x="bool[5]", between=F32, to=U8),
    ],
)
def cast_cast(x, between, to):
    """A cast through a type that holds all values becomes a single cast."""
    when(_holds(between, x.type.dtype))
    return cast(x, to=to)
