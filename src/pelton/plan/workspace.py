"""Private memory of a kernel, beside its operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pelton.ir.dims import Size, at, is_known
from pelton.ir.types import DType


@dataclass(frozen=True, eq=False)
class KernelWorkspace:
    """Memory shared by the programs of one launch. `zero`: zero when the kernel begins, and left zero for its next run;
    other such memory has undefined content."""

    shape: tuple[Size, ...]
    dtype: DType
    zero: bool = False

    @property
    def bytes(self) -> Size:
        return math.prod(self.shape) * self.dtype.size

    def sized(self, sizes: Mapping[str, int]) -> KernelWorkspace:
        """Returns the same for these values of the symbols."""
        return self if is_known(*self.shape) else replace(self, shape=tuple(at(d, sizes) for d in self.shape))
