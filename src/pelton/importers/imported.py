"""What every importer returns, and how its caller says the shapes of inputs."""
from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pelton.errors import InputError
from pelton.ir.graph import Graph

log = logging.getLogger("pelton.importers")

Shape = str | Sequence[int]


@dataclass(frozen=True)
class Info:
    """What is worth knowing about a model besides its graph."""

    path: str = ""                                              # "" for a model that came as bytes or as an object
    producer: str = ""
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)     # domain ("" is ai.onnx) → version
    defaulted: tuple[str, ...] = ()                             # sizes nobody gave, which became 1: "image[0] (batch)"
    foreign: tuple[str, ...] = ()                               # ops that will run on the onnx package: "onnx::Unique@11 (node 'u')"
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Imported:
    """A model as a program."""

    graph: Graph
    info: Info


def parse_shape(name: str, given: Shape) -> tuple[int, ...]:
    """`"1x3x224x224"`, `"1..8..32x3"` (min..optimum..max: the optimum counts) or integers → sizes; InputError for anything else."""
    expected = f"the shape of {name!r} should be like '1x3x224x224' or '1..8..32x3x224x224' (min..optimum..max) or a tuple of integers"
    if isinstance(given, str):
        try:
            return tuple(_optimum(part) for part in given.strip().split("x")) if given.strip() else ()
        except ValueError:
            raise InputError(f"{expected}, got {given!r}") from None
    try:
        sizes = tuple(map(operator.index, given))
    except TypeError:
        raise InputError(f"{expected}, got {given!r}") from None
    if min(sizes, default=0) < 0:
        raise InputError(f"{expected}, got {given!r}")
    return sizes


def _optimum(part: str) -> int:
    bounds = [int(p) for p in part.split("..")]
    if len(bounds) not in (1, 3) or bounds != sorted(bounds) or bounds[0] < 0:
        raise ValueError(part)
    return bounds[len(bounds) // 2]
