"""Declared types of inputs: `f32[batch=1..8..32, 3, 2*width]`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton.errors import InputError, near
from pelton.ir import dims
from pelton.ir.dims import Size
from pelton.ir.dims_text import parse
from pelton.ir.types import DType, TensorType

OPTIMUM = 128  # of a dynamic dimension behind the first axis without another one in its declaration
EXAMPLE = "'f32[batch, 3, 224, 224]' or 'f32[batch=1..8..32, 3]'"


class Declarations:
    """The dynamic dimensions of a network by name."""

    def __init__(self) -> None:
        self.sizes: dict[str, Size] = {}

    def tensor_type(self, given: str | Sequence[int | str], dtype: str | DType = "f32") -> TensorType:
        """Parses a type from a text or a shape; InputError for others."""
        if isinstance(given, str):
            dtype, bracket, rest = given.strip().partition("[")
            if not bracket or not rest.endswith("]"):
                raise InputError(f"the type of an input must be like {EXAMPLE}, got {given!r}")
            sizes: Sequence[int | str] = rest[:-1].split(",") if rest[:-1].strip() else ()
        else:
            sizes = given
        return TensorType(element_type(dtype), tuple(self._size(s, axis) for axis, s in enumerate(sizes)))

    def _size(self, given: int | str | Size, axis: int) -> Size:
        if isinstance(given, dims.Dim):
            return given
        if isinstance(given, (int, np.integer)):
            given = str(given)
        if not isinstance(given, str):
            raise InputError(f"a size must be a number, or a name as in {EXAMPLE}, got {given!r}")
        text, _, bounds = map(str.strip, given.partition("="))
        if not bounds and ".." in text:
            text, bounds = f"size{len(self.sizes)}", text
        try:
            if text.isidentifier() and text not in self.sizes:
                low, best, high = (bounds or f"1..{OPTIMUM if axis else 1}..").split("..")
                self.sizes[text] = dims.symbol(text, int(low), int(best), int(high) if high else dims.UNBOUNDED)
            elif bounds:
                raise ValueError("its bounds belong to its first occurrence")
            size = parse(text, self.sizes)
        except ValueError as e:
            raise InputError(
                f"a size must be a number, a name or an expression, as in {EXAMPLE}, got {given!r}: {e}"
            ) from None
        if dims.is_known(size) and size < 0:
            raise InputError(f"a size must not be below 0, got {given}; a name is a dynamic dimension, as in {EXAMPLE}")
        return size


def element_type(given: str | DType) -> DType:
    """Returns the element type of a name; InputError if there is none."""
    try:
        return given if isinstance(given, DType) else DType(given.strip())
    except (ValueError, AttributeError):
        names = [d.value for d in DType]
        raise InputError(
            f"{given!r} is no element type{near(str(given), names)}; there are {', '.join(names)}"
        ) from None
