"""The ways to round a layer's weights, and the choice of the one with the least error of the layer's outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .blocks import WeightGrid, PackedRows, find_scales, round_to_nearest
from .cluster import cluster
from .compensate import compensate, damped, descend, fit_scales
from .moments import Moments
from .scaling import gains

METHODS = ("auto", "nearest", "clip", "gptq")
FITS = 2  # rounds of fitting scales to codes, and codes to scales
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Version:
    """Compressed weights of a layer.

    weights: what they mean in the original program, f32[rows, inner]. method: their origin in words. bits: of a code,
    32 for floats. packed: codes of the weights times `gain`, [inner], which the nodes in front divide by; None for
    floats. error: of the layer's outputs (`Moments.error`); without data, of its weights. codebook: the values that
    clustered floats share, and the index of each weight's.
    """

    weights: Array
    method: str
    bits: int
    error: float | None = None
    packed: PackedRows | None = None
    gain: Array | None = None
    codebook: tuple[Array, Array] | None = None


def weight_error(rows: Array, compressed: Array) -> float:
    """Returns the power of the error of weights divided by their power."""
    power = float(np.square(rows).sum())
    return float(np.square(compressed - rows).sum()) / power if power else 0.0


def versions(
    rows: Array, grid: WeightGrid, method: str, moments: Moments | None, pruned: Array | None, gain: Array | None = None
) -> Iterator[Version]:
    """Yields the rows [rows, inner] as each method rounds them, times a gain if there is one. pruned: True for weights
    that are 0."""
    by = np.ones(rows.shape[1]) if gain is None else gain
    wide = rows * by
    own = wide if pruned is None else np.where(pruned, 0.0, wide)
    around = None if moments is None else moments.scaled(by)

    def version(packed: PackedRows, name: str) -> Version:
        weights = packed.weights()
        weights = weights if gain is None else (weights / by).astype(np.float32)
        error = weight_error(rows, weights) if moments is None else moments.error(rows, weights)
        name = name if gain is None else f"{name}, scaled"
        return Version(weights, name, grid.bits, error, packed, gain)

    if method == "nearest":
        yield version(round_to_nearest(own, find_scales(own, grid, clip=False)), "nearest")
    if method in ("clip", "auto"):
        importance = None if around is None else np.diag(around.own)
        yield version(round_to_nearest(own, find_scales(own, grid, importance)), "clip")
    if method in ("gptq", "auto") and around is not None:
        full, target = damped(around.own), around.target(wide)
        kept = target if pruned is None else np.where(pruned, 0.0, target)
        scales = find_scales(kept, grid, np.diag(around.own))
        packed = min(
            (compensate(target, scales, full, ordered, pruned) for ordered in (False, True)),
            key=lambda p: around.error(wide, p.weights()),
        )
        packed = descend(target, packed, full, pruned=pruned)
        for _ in range(FITS):
            packed = descend(target, fit_scales(target, packed, full), full, pruned=pruned)
        yield version(packed, "gptq")


def best(found: Sequence[Version]) -> Version:
    """Returns the version of least error; the first of equal ones."""
    return min(found, key=lambda v: 0.0 if v.error is None else v.error)


def choose(
    rows: Sequence[Array],
    grids: Sequence[WeightGrid],
    method: str,
    moments: Moments | None,
    pruned: Sequence[Array | None],
    scalable: bool,
) -> list[Version]:
    """Returns the best version of each layer of a group, which reads one input. scalable: the nodes in front can divide
    that input; the layers then share a gain, if that makes the sum of their errors less."""

    def all_with(gain: Array | None, method: str) -> list[Version]:
        return [best([*versions(r, g, method, moments, p, gain)]) for r, g, p in zip(rows, grids, pruned)]

    plain = all_with(None, method)
    if not scalable or moments is None or method == "nearest":
        return plain

    def total(found: Sequence[Version]) -> float:
        return sum(v.error or 0.0 for v in found)

    # clipping is fast, and tells which gain is worth the rest
    tried = [(total(all_with(gain, "clip")), i, gain) for i, gain in enumerate([None, *gains(moments.own)])]
    gain = min(tried, key=lambda t: t[:2])[2]
    if gain is None:
        return plain
    scaled = all_with(gain, method)
    return scaled if total(scaled) < total(plain) else plain


def in_eight_bits(rows: Array, version: Version, moments: Moments | None, pruned: Array | None) -> Version:
    """Returns the same rows in 8 bits with the gain of a version."""
    assert version.packed is not None
    grid = replace(version.packed.grid, bits=8)
    return best([*versions(rows, grid, "clip", moments, pruned, version.gain)])


def in_floats(rows: Array, moments: Moments | None, pruned: Array | None, clusters: int) -> Version:
    """Returns the rows as floats, with zeros where they are pruned, and with so many different values unless 0."""
    weights = (rows if pruned is None else np.where(pruned, 0.0, rows)).astype(np.float32)
    codebook = None
    if clusters:
        codebook = cluster(weights, clusters)
        weights = codebook[0][codebook[1]]
    error = weight_error(rows, weights) if moments is None else moments.error(rows, weights)
    return Version(weights, "k-means" if clusters else "pruned", 32, error, codebook=codebook)


def as_they_are(rows: Array, version: Version) -> Version:
    """Returns the original rows, with the gain that other layers of their group have."""
    return Version(rows, "float", 32, gain=version.gain)


def nbytes(version: Version) -> int:
    """Returns the bytes of a version in a file."""
    if version.packed is not None:
        return version.packed.nbytes
    if version.codebook is not None:
        return version.codebook[0].nbytes + version.codebook[1].nbytes
    return version.weights.nbytes
