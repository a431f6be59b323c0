"""Kernels for NVIDIA GPUs as plain data: cubins, and the tensor maps that replace addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_AXES = 5
# element types of maps, by CUtensorMapDataType, with their bytes: f16, bf16
KINDS = {6: 2, 9: 2}
# ways to spread rows over banks, by CUtensorMapSwizzle, with the bytes of a row that they spread
SWIZZLES = {0: 16, 1: 32, 2: 64, 3: 128}
MAX_STEP = 8  # between the fetched elements along an axis
# elements along an axis, and pixels between corners, in one fetch
MAX_BOX = {False: 256, True: 1024}


@dataclass(frozen=True)
class TensorMap:
    """A tensor map, a kernel's argument in place of the address of an operand (by its number): the view of memory for
    the units that fetch boxes. Axes from the innermost on, whose elements are adjacent; `strides` in bytes, of all the
    others. `kind` is an element type, `swizzle` the arrangement of rows in shared memory.

    `box`: elements along each axis in one fetch, `steps` apart. With corners, the axes are channels, those of a picture
    (columns, rows), and pictures, and the box is a number of channels of a number of pixels: pixels follow each other
    as in a picture, a row from `lower` of its first to `upper` of its last, rows likewise, then the next picture
    (im2col mode). Elements outside read as zero.
    """

    operand: int
    kind: int
    swizzle: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    @classmethod
    def of(cls, row: Sequence[Any]) -> TensorMap:
        """Builds a map from its JSON form."""
        parts: list[Any] = [tuple(x) if isinstance(x, list) else x for x in row]
        return cls(*parts)

    def rejection(self) -> str | None:
        """Returns the part that the driver would reject (the driver API reference, "Tensor Map Object Management");
        None if it is valid."""
        axes, corners = len(self.sizes), bool(self.lower or self.upper)
        if self.kind not in KINDS or self.swizzle not in SWIZZLES or self.operand < 0:
            return f"the kind {self.kind}, swizzle {self.swizzle} or operand {self.operand}"
        if not (3 if corners else 1) <= axes <= MAX_AXES or len(self.strides) != axes - 1 or len(self.steps) != axes:
            return f"{axes} axes with {len(self.strides)} strides and {len(self.steps)} steps"
        if len(self.box) != (2 if corners else axes) or corners and not len(self.lower) == len(self.upper) == axes - 2:
            return f"a box of {len(self.box)} extents with {len(self.lower)} and {len(self.upper)} corners"
        most = 1 << 16 // max(1, axes - 2) - 1 if corners else 0
        if not all(1 <= n <= 1 << 32 for n in self.sizes) or not all(
            0 < n < 1 << 40 and n % 16 == 0 for n in self.strides
        ):
            return f"sizes {self.sizes} at strides of {self.strides} bytes"
        if not all(1 <= n <= MAX_BOX[corners and i == 1] for i, n in enumerate(self.box)) or not all(
            1 <= n <= MAX_STEP for n in self.steps
        ):
            return f"a box of {self.box} by steps of {self.steps}"
        if (
            self.box[0] * KINDS[self.kind] % 16
            or self.swizzle
            and self.box[0] * KINDS[self.kind] > SWIZZLES[self.swizzle]
        ):
            return f"rows of {self.box[0] * KINDS[self.kind]} bytes, spread over {SWIZZLES[self.swizzle]}"
        if not all(-most <= n < most for n in (*self.lower, *self.upper)):
            return f"corners {self.lower} and {self.upper}"
        return None


@dataclass(frozen=True)
class Cubin:
    """One kernel compiled for one architecture (80 for sm_80). `shared`: dynamic bytes per block; `warps`: all of a
    block; `clusters`: blocks per program; `scratch`: bytes of global memory per block, at multiples of `align`.
    `phased`: the kernel takes a range of phases; 1: one phase in a launch; 2: any number, if all its programs are on
    the GPU at once. `maps`: operands passed as maps."""

    symbol: str
    arch: int
    image: bytes
    shared: int
    warps: int
    clusters: int = 1
    scratch: int = 0
    align: int = 1
    phased: int = 0
    maps: tuple[TensorMap, ...] = ()
