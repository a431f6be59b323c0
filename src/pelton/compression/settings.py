"""The choices of a caller of `pelton.compress`, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pelton.errors import InputError, near

from .blocks import WeightGrid
from .layers import WeightLayer
from .methods import METHODS
from .prune import Sparsity, read_sparsity

BITS = {"int4": 4, "int8": 8, "float": 32}
BLOCKS = (16, 32, 64, 128)
CLUSTERS = range(2, 257)


@dataclass(frozen=True)
class Settings:
    """How to compress a program. weights, head, embedding: bits of products, of the last product and of tables."""

    weights: int
    head: int
    embedding: int
    block: int
    zero_points: bool
    method: str
    keep: tuple[str, ...]
    max_drop: float | None
    sparsity: Sparsity | None
    clusters: int
    perplexity: bool

    def bits(self, layer: WeightLayer) -> int:
        """Returns the bits that a layer's weights get, 32 for floats."""
        if layer.kind == "table":
            return self.embedding
        return self.head if layer.head else self.weights

    def grid(self, layer: WeightLayer, bits: int) -> WeightGrid:
        """Returns the grid of a layer's rows; short rows are one block."""
        return WeightGrid(bits, layer.block(self.block), self.zero_points)


def check_settings(
    *,
    weights: str,
    block: int,
    zero_points: bool,
    method: str,
    max_drop: float | None,
    head: str | None,
    embedding: str | None,
    keep: Sequence[str],
    sparsity: Any,
    cluster: int | None,
    perplexity: bool,
    has_data: bool,
) -> Settings:
    """Returns the settings; InputError for values out of range and those that exclude each other."""
    bits = {name: _bits(name, v) for name, v in (("weights", weights), ("head", head), ("embedding", embedding))}
    _expect("block", block, BLOCKS)
    _expect("method", method, METHODS)
    if isinstance(keep, str):
        raise InputError(f"keep is a list of names, got the text {keep!r}; pass [{keep!r}]")
    if max_drop is not None and (
        isinstance(max_drop, bool) or not isinstance(max_drop, (int, float)) or not 0 <= max_drop < math.inf
    ):
        raise InputError(f"max_drop is a number from 0 on, such as 0.01, got {max_drop!r}")
    if cluster is not None and (isinstance(cluster, bool) or cluster not in CLUSTERS):
        raise InputError(f"cluster is a number of values from {CLUSTERS[0]} to {CLUSTERS[-1]}, got {cluster!r}")
    needs = {"method gptq": method == "gptq", "max_drop": max_drop is not None, "perplexity": bool(perplexity)}
    for name, of in needs.items():
        if of and not has_data:
            raise InputError(f"{name} needs typical inputs as data; pass an .npz file, or a dict of arrays")
    general = bits["weights"] or 4
    if cluster is not None and min(general, bits["head"] or 32, bits["embedding"] or 32) < 32:
        raise InputError("cluster is for weights of type float: integers of few bits are few values already")
    if general == 32 and cluster is None and sparsity is None and min(v or 32 for v in bits.values()) == 32:
        raise InputError("weights of type float change nothing without sparsity or cluster; set one, or the type int4")
    return Settings(
        weights=general,
        head=bits["head"] or max(general, 8),
        embedding=bits["embedding"] or max(general, 8),
        block=block,
        zero_points=bool(zero_points),
        method=method,
        keep=tuple(keep),
        max_drop=max_drop,
        sparsity=None if sparsity is None else read_sparsity(sparsity),
        clusters=cluster or 0,
        perplexity=bool(perplexity),
    )


def _bits(name: str, value: str | None) -> int | None:
    """Returns the bits of a type by its name; None for None, except for the weights themselves."""
    if value is None and name != "weights":
        return None
    _expect(name, value, tuple(BITS))
    return BITS[str(value)]


def _expect(name: str, value: Any, known: Sequence[Any]) -> None:
    if isinstance(value, bool) or value not in known:
        raise InputError(
            f"{name} is one of {', '.join(map(str, known))}, got {value!r}{near(str(value), map(str, known))}"
        )
