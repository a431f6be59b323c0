"""Kernels for NVIDIA GPUs as plain data: cubins, and the tensor maps that they take in place of addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_AXES = 5
# element types of maps, as CUtensorMapDataType has them, with their bytes: f16, bf16
KINDS = {6: 2, 9: 2}
# ways to spread rows over banks, as CUtensorMapSwizzle has them, with the bytes of a row that they spread
SWIZZLES = {0: 16, 1: 32, 2: 64, 3: 128}
MAX_STEP = 8  # between the elements along an axis that are fetched
# elements along an axis, and pixels between corners, that are fetched at once
MAX_BOX = {False: 256, True: 1024}


@dataclass(frozen=True)
class TensorMap:
    """What a kernel takes in place of the address of an operand (by its number): how the units that fetch boxes of
    memory see it, a tensor map. Axes from the innermost on, whose elements lie side by side; `strides` in bytes, of all
    the others. `kind` is an element type, `swizzle` how rows lie in shared memory.

    `box`: elements along each axis that are fetched at once, `steps` apart. Where there are corners, the axes are
    channels, those of a picture (columns, rows), and pictures, and the box is so many channels of so many pixels:
    pixels follow each other as in a picture, a row from `lower` of its first to `upper` of its last, rows likewise,
    then the next picture (im2col mode). What lies outside reads as zero.
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
        """As JSON has it."""
        parts: list[Any] = [tuple(x) if isinstance(x, list) else x for x in row]
        return cls(*parts)

    def rejection(self) -> str | None:
        """What the driver would not take of it (the driver API reference, "Tensor Map Object Management"); None for
        nothing."""
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
    """One kernel compiled for one architecture (80 for sm_80). `shared`: dynamic bytes per block; `warps`: of a block,
    all of them; `clusters`: blocks per program; `scratch`: bytes of global memory per block, at multiples of `align`.
    `phased`: it is told from which phase to which it goes; 1: one in a launch; 2: any number, where all its programs
    are on the GPU at once. `maps`: operands that it takes by maps."""

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
