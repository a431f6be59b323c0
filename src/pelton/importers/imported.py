"""What every importer returns, and how its caller says the shapes of inputs."""
from __future__ import annotations

import logging
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pelton.errors import InputError, ModelError
from pelton.ir.dims import UNBOUNDED
from pelton.ir.graph import Graph

log = logging.getLogger("pelton.importers")

Shape = str | Sequence[int | str | tuple[int, int, int]]
Forms = Mapping[str, Mapping[str, Any]]


class OnData(ModelError):
    """What an importer wants to know depends on the data: no straight line of steps can do this, a script may."""


class OnSizes(ModelError):
    """What is wrong may be so for the sizes alone that were assumed where nobody gave any."""


class Range(NamedTuple):
    """A size that a run decides, within bounds; programs are tuned for the usual one."""

    least: int
    usual: int
    most: int = UNBOUNDED

    def __str__(self) -> str:
        return f"{self.least}..{self.usual}..{self.most if self.most < UNBOUNDED else ''}"


@dataclass(frozen=True)
class Info:
    """What is worth knowing about a model besides its graph."""

    path: str = ""                                              # "" for a model that came as bytes or as an object
    producer: str = ""
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)     # domain ("" is ai.onnx) → version
    symbols: Mapping[str, tuple[int, int, int | None]] = field(default_factory=dict)        # sizes that a run decides: least, usual, most (None: any)
    defaulted: tuple[str, ...] = ()                             # sizes nobody gave: "image[0] (batch)"
    foreign: tuple[str, ...] = ()                               # ops that will run on the onnx package: "onnx::Unique@11 (node 'u')"
    wanted: tuple[str, ...] = ()                                # inputs that decide the program: knowing their values would have saved some of these
    values: Mapping[str, str] = field(default_factory=dict)     # inputs that became constants: "i64[2] = [1, 2]", "nothing"
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()                               # sizes that nobody gave and that had to be numbers: "x[2] (height) = 128"

    @property
    def called(self) -> str:
        """The name of the model's file; "" where it came without one."""
        return os.path.basename(self.path)


@dataclass(frozen=True)
class Imported:
    """A model as a program.

    `forms` tells which inputs and outputs of the model are no single tensor, and of which ports they consist: {"inputs": {"x": ["x[0]", "x[1]"]},
    "outputs": {"y": ["y[0]"], "z": None}}, a list for a sequence, None for an optional without a value, a dict for maps (`runtime.forms`). What it does not
    name is a port itself."""

    graph: Graph
    info: Info
    forms: Forms = field(default_factory=lambda: {"inputs": {}, "outputs": {}})


def parse_shape(name: str, given: Shape) -> tuple[int | Range, ...]:
    """`"1x3x224x224"`, `"1..8..32x3"` (least..usual..most; `1..8..` has no upper bound), or a tuple of integers, such ranges and triples; InputError for
    anything else."""
    expected = f"the shape of {name!r} should be like '1x3x224x224' or '1..8..32x3x224x224' (min..optimum..max)"
    expected += "" if isinstance(given, str) else " or a tuple of integers and ranges"
    parts = (given.strip().split("x") if given.strip() else []) if isinstance(given, str) else given
    try:
        return tuple(map(_size, parts))
    except (TypeError, ValueError):
        raise InputError(f"{expected}, got {given!r}") from None


def _size(part: object) -> int | Range:
    if isinstance(part, str):
        low, *others = part.split("..")
        numbers = [int(low), *(int(p) if p.strip() or i == 0 else UNBOUNDED for i, p in enumerate(others))]
    else:
        numbers = [operator.index(p) for p in (part if isinstance(part, (tuple, list)) else [part])]      # type: ignore[arg-type]
    if len(numbers) not in (1, 3) or numbers != sorted(numbers) or numbers[0] < 0:
        raise ValueError(part)
    return numbers[0] if numbers[0] == numbers[-1] else Range(*numbers)
