"""Parses the input shapes of an importer's callers; errors and limits that importers share."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pelton.logs import Logger
from pelton.errors import InputError, near
from pelton.ir.dims import UNBOUNDED
from pelton.ir.graph import Value
from pelton.ir.imported import OnData, OnSizes
from pelton.ir.size_constraints import Range
from pelton.ir.types import TensorType

__all__ = ["MAX_UNROLLED", "MAX_UNROLLED_NODES", "OnData", "OnSizes", "Range", "Shape", "parse_shape"]

log = Logger("pelton.importers")

MAX_UNROLLED = 256  # iterations of a loop with a known count that may be unrolled
MAX_UNROLLED_NODES = 5_000  # nodes of all unrolled iterations, nested loops included

Shape = int | str | Sequence[int | str | tuple[int, int, int]]


def parse_shape(name: str, given: Shape) -> tuple[int | Range, ...]:
    """Parses `"1x3x224x224"`, `"1..8..32x3"` (minimum..optimum..maximum; `1..8..` has no upper bound), or a tuple.

    Elements of a tuple are integers, texts of ranges, and triples. One integer is a shape of one axis. Raises
    InputError for anything else.
    """
    expected = f"the shape of {name!r} must be like '1x3x224x224' or '1..8..32x3x224x224' (min..optimum..max)"
    parts: Sequence[int | str | tuple[int, int, int]]
    if isinstance(given, str):
        parts = given.strip().split("x") if given.strip() else []
    elif isinstance(given, int):
        parts = (given,)
    else:
        parts = given
        expected += " or a tuple of integers and ranges"
    try:
        return tuple(map(_parse_size, parts))
    except (TypeError, ValueError):
        raise InputError(f"{expected}, got {given!r}") from None


def split_dimensions(
    given: Mapping[str, tuple[int | Range, ...]], dimensions: Collection[str]
) -> tuple[dict[str, int | Range], dict[str, tuple[int | Range, ...]]]:
    """Splits shapes into the sizes of dimensions with these names, and the shapes of inputs.

    Raises InputError for a dimension with several sizes.
    """
    sizes = {name: shape for name, shape in given.items() if name in dimensions}
    for name, shape in sizes.items():
        if len(shape) != 1:
            raise InputError(
                f"{name!r} is a dimension, whose size is a number or a range such as '1..8..32', got"
                f" {'x'.join(map(str, shape))!r}"
            )
    return {name: size for name, (size,) in sizes.items()}, {n: s for n, s in given.items() if n not in sizes}


def check_inputs(file: str, given: Iterable[str], inputs: Collection[str]) -> None:
    """Raises InputError for a name that is not an input of the file."""
    for name in given:
        if name not in inputs:
            raise InputError(f"{file}: there is no input {name!r}{near(name, inputs)}; there are {', '.join(inputs)}")


def constant_of(v: Value, given: Any) -> np.ndarray:
    """Returns the array of an input that becomes a constant; raises InputError if it does not fit."""
    try:
        array = np.asarray(given, v.type.dtype.numpy)
    except (TypeError, ValueError) as e:
        raise InputError(f"input {v.name!r} is {v.type}, its value is none of these: {e}") from None
    if TensorType.of(array) != v.type:
        raise InputError(f"input {v.name!r} is {v.type}, its value is of shape {list(array.shape)}")
    return array


def _parse_size(part: object) -> int | Range:
    if isinstance(part, str):
        low, *others = part.split("..")
        numbers = [int(low), *(int(p) if p.strip() or i == 0 else UNBOUNDED for i, p in enumerate(others))]
    else:
        elements: Sequence[Any] = part if isinstance(part, (tuple, list)) else [part]
        numbers = [operator.index(p) for p in elements]
    if len(numbers) not in (1, 3) or numbers != sorted(numbers) or numbers[0] < 0:
        raise ValueError(part)
    return numbers[0] if numbers[0] == numbers[-1] else Range(*numbers)
