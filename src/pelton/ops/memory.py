"""Ops that copy data to another layout, or reinterpret its bits."""

from pelton.ir.types import I32, STRING, DType, TensorType

from .op import expect, pointwise, structured


@pointwise(moves=True, examples=(("f32[5, 13]",), ("i64[3, 7]",), ("bool[2, 9]",)))
def copy(x):
    """y = x, copied to another layout."""
    return x


@structured(
    "BitCast",
    bits=True,
    examples=(
        ("f32[5, 13]", dict(to=I32)),
        ("bf16[37]", dict(to=DType.I16)),
        ("i4[3, 7]", dict(to=DType.U4)),
        ("bool[2, 9]", dict(to=DType.U8)),
    ),
)
class bit_cast:
    """The bits of x as another element type of the same width."""

    def infer(x: TensorType, *, to: DType) -> TensorType:
        expect(
            STRING not in (x.dtype, to) and x.dtype.size == to.size and max(x.dtype.bits, 8) == max(to.bits, 8),
            f"needs a type as wide, {to.value} is not",
        )
        return x.with_dtype(to)

    def reference(x, *, to):
        return x.view(to.numpy)
