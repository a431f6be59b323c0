"""Element types and tensor types, independent of the memory layout."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

import numpy as np

from .dims import Dim, Size, Undecided, equal


class DType(enum.Enum):
    """An element type; the value is its name in the text form."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0FNU = "f8e8m0fnu"
    F6E2M3FN = "f6e2m3fn"
    F6E3M2FN = "f6e3m2fn"
    F4E2M1FN = "f4e2m1fn"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    I4 = "i4"
    I2 = "i2"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    U4 = "u4"
    U2 = "u2"
    BOOL = "bool"
    STRING = "string"
    C64 = "c64"
    C128 = "c128"

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype of arrays of this type (narrow floats and integers of 2 and 4 bits come from ml_dtypes)."""
        if self in _NUMPY:
            return np.dtype(_NUMPY[self])
        import ml_dtypes  # only models with such a type need it

        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[self]))

    @property
    def size(self) -> int:
        """Bytes per element in memory; types of less than eight bits take one byte."""
        return self.numpy.itemsize

    @property
    def bits(self) -> int:
        """Bits of a number of this type, regardless of its memory."""
        return 1 if self is DType.BOOL else int(re.findall(r"\d+", self.value)[0])

    @property
    def is_float(self) -> bool:
        return self.value[0] == "f" or self is DType.BF16

    @property
    def is_integer(self) -> bool:
        return self.value[0] in "iu"

    @property
    def is_signed(self) -> bool:
        return self.value[0] == "i"

    @property
    def lowest(self) -> float:
        """The lowest number of this type, -∞ for floats."""
        if self.is_float:
            return -math.inf
        return -(1 << self.bits - 1) if self.is_signed else 0

    @property
    def highest(self) -> float:
        """The highest number of this type, ∞ for floats."""
        return math.inf if self.is_float else (1 << self.bits - self.is_signed) - 1

    @classmethod
    def of(cls, array_or_dtype) -> "DType":
        """Returns the element type of a numpy array or dtype; TypeError if there is none."""
        dtype = np.dtype(getattr(array_or_dtype, "dtype", array_or_dtype))
        if dtype.kind in "OUST":
            return cls.STRING
        member = _BY_NUMPY_NAME.get(dtype.name)
        if member is None:
            raise TypeError(f"no element type for numpy dtype {dtype}")
        return member


_NUMPY = {
    DType.F64: "float64",
    DType.F32: "float32",
    DType.F16: "float16",
    DType.I64: "int64",
    DType.I32: "int32",
    DType.I16: "int16",
    DType.I8: "int8",
    DType.U64: "uint64",
    DType.U32: "uint32",
    DType.U16: "uint16",
    DType.U8: "uint8",
    DType.BOOL: "bool",
    DType.STRING: "object",
    DType.C64: "complex64",
    DType.C128: "complex128",
}
_ML_DTYPES = {
    DType.BF16: "bfloat16",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.F8E8M0FNU: "float8_e8m0fnu",
    DType.F6E2M3FN: "float6_e2m3fn",
    DType.F6E3M2FN: "float6_e3m2fn",
    DType.F4E2M1FN: "float4_e2m1fn",
    DType.I4: "int4",
    DType.U4: "uint4",
    DType.I2: "int2",
    DType.U2: "uint2",
}
_BY_NUMPY_NAME = {name: dtype for dtype, name in [*_NUMPY.items(), *_ML_DTYPES.items()]}

F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, STRING = (
    DType.F64,
    DType.F32,
    DType.F16,
    DType.BF16,
    DType.I64,
    DType.I32,
    DType.I16,
    DType.I8,
    DType.U64,
    DType.U32,
    DType.U16,
    DType.U8,
    DType.BOOL,
    DType.STRING,
)


@dataclass(frozen=True)
class TensorType:
    """dtype and logical shape; prints as `f32[1, 3, 224, 224]`, or `f32[2*batch, 3]` with a dynamic dimension."""

    dtype: DType
    shape: tuple[Size, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def known(self) -> bool:
        """True if all sizes are numbers."""
        return not any(isinstance(d, Dim) for d in self.shape)

    @property
    def size(self) -> Size:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> Size:
        return self.size * self.dtype.size

    def with_shape(self, shape) -> "TensorType":
        sizes = tuple(shape)
        for d in sizes:
            if not isinstance(d, Dim) and int(d) != d:
                raise ValueError(f"a size must be an integer, got {d!r}")
        return TensorType(self.dtype, tuple(d if isinstance(d, Dim) else int(d) for d in sizes))

    def with_dtype(self, dtype: DType) -> "TensorType":
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"

    @classmethod
    def parse(cls, text: str) -> "TensorType":
        """Parses `f32[2, 3]`; ValueError for anything else."""
        name, bracket, dims = text.strip().partition("[")
        if not bracket or not dims.endswith("]"):
            raise ValueError(f"not a tensor type: {text!r} (expected e.g. 'f32[2, 3]')")
        inner = dims[:-1].strip()
        return cls(DType(name.strip()), tuple(int(d) for d in inner.split(",")) if inner else ())

    @classmethod
    def of(cls, array) -> "TensorType":
        return cls(DType.of(array), tuple(np.shape(array)))


def broadcast_shapes(*shapes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Broadcasts shapes as numpy does; raises ValueError if they do not fit, Undecided if dynamic dimensions decide
    that."""
    rank = max(map(len, shapes), default=0)
    out = []
    for axis in range(-rank, 0):
        dims = list(dict.fromkeys(s[axis] for s in shapes if len(s) >= -axis and s[axis] != 1))
        for a, b in zip(dims, dims[1:]):
            try:
                if equal(a, b):
                    continue
                for d in (a, b):
                    equal(d, 1)  # raises Undecided where the dimension may be 1 at run time
            except Undecided as e:
                raise Undecided(
                    f"shapes must broadcast: {e}", e.difference, e.relation, _broadcasting(*shapes)
                ) from None
            raise ValueError("shapes do not broadcast: " + " and ".join(str(list(s)) for s in shapes))
        out.append(dims[0] if dims else 1)
    return tuple(out)


def _broadcasting(*shapes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Returns sizes that are 0 wherever shapes broadcast; none if they would be too long."""
    products = list[Size]()
    for axis in range(-max(map(len, shapes)), 0):
        sizes = list(dict.fromkeys(s[axis] for s in shapes if len(s) >= -axis))
        try:
            products += [(a - b) * (a - 1) * (b - 1) for i, a in enumerate(sizes) for b in sizes[:i]]
        except Undecided:
            continue
    return tuple(products)
