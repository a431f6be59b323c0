"""Decides which layers of a build are in INT8: by the caller's choice, or by the times of their steps."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pelton.errors import InputError
from pelton.ir.classes import Classes
from pelton.passes.precision.calibrated import Layer
from pelton.runtime import Engine

from .race import microseconds


@dataclass
class LayerPrecision:
    """Decision on a layer: "int8" or "fp32", the reason, and the microseconds of its steps in either, where known."""

    layer: Layer
    precision: str = "int8"
    reason: str = "not slower in integers"
    times: Mapping[str, float] = field(default_factory=dict)
    fixed: bool = False  # by the caller

    def set_back(self, reason: str) -> None:
        """Leaves the layer in FP32."""
        self.precision, self.reason = "fp32", reason

    def describe(self, rest: str) -> dict[str, Any]:
        """Returns plain data for the metadata of an engine. rest: the precision of layers outside INT8."""
        return {
            "layer": self.layer.name,
            "precision": self.precision if self.precision == "int8" else rest,
            "reason": self.reason,
            "macs": self.layer.macs,
            "us": {"int8" if k == "int8" else rest: round(v, 1) for k, v in self.times.items()},
        }


def override(choices: Sequence[LayerPrecision], given: Mapping[str, str]) -> None:
    """Fixes the precision of layers whose names match a pattern, by the last match; InputError if none matches."""
    for pattern, precision in given.items():
        found = [c for c in choices if any(fnmatch.fnmatchcase(name, pattern) for name in c.layer.names)]
        if not found:
            known = ", ".join(c.layer.name for c in choices[:3])
            raise InputError(
                f"precision_of names {pattern!r}, which is no layer that can be in INT8; there are"
                f" {len(choices)} of these, such as {known or 'none'}"
            )
        for choice in found:
            choice.precision, choice.reason, choice.fixed = precision, "as asked for", True


def choose_by_time(choices: Sequence[LayerPrecision], fp32: Engine, int8: Engine) -> bool:
    """Reverts layers whose steps took longer in integers; True if there were any.

    Steps of several layers count for these together. Untimed steps use a model's estimate (GPUs); without a model,
    engines with such steps decide nothing.
    """
    clusters = Classes[str]()
    engines = {"fp32": fp32, "int8": int8}
    for engine in engines.values():
        for step in engine.steps:
            names = _parts(step.info.get("layers") or ())
            for name in names[1:]:
                clusters.join(name, names[0])
    sums: dict[str, dict[str, float]] = {}
    for kind, engine in engines.items():
        for step in engine.steps:
            for name in _parts(step.info.get("layers") or ())[:1]:
                cluster = sums.setdefault(clusters.find(name), dict.fromkeys(engines, 0.0))
                cluster[kind] += microseconds(step)
    changed = False
    for choice in choices:
        times = sums.get(clusters.find(_parts([choice.layer.name])[0]), {})
        if choice.precision != "int8" or choice.fixed or not times or not all(t > 0 for t in times.values()):
            continue
        choice.times = times
        if times["int8"] > times["fp32"]:
            choice.set_back(f"slower in integers: {times['int8']:.0f} µs, {times['fp32']:.0f} µs without")
            changed = True
    return changed


def _parts(layers: Iterable[str]) -> list[str]:
    """Splits the names of merged nodes, which are joined by +."""
    return [part for name in layers for part in name.split("+")]
