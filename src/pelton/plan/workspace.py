"""Memory that a kernel has for itself, beside its operands."""
from __future__ import annotations

import math
from dataclasses import dataclass

from pelton.ir.types import DType


@dataclass(frozen=True, eq=False)
class Workspace:
    """What the programs of one launch tell each other. `zero`: it is zero when the kernel begins and the kernel leaves it so, for its next run; what lies in
    other such memory is anybody's guess."""

    shape: tuple[int, ...]
    dtype: DType
    zero: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size
