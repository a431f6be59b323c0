"""Decides which layers of a build are in INT8: by the caller's choice, or by the times of their steps."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pelton.errors import InputError
from pelton.ir.classes import Classes
from pelton.passes.precision.calibrated import Layer
from pelton.runtime import Engine

from .race import microseconds


@dataclass(frozen=True)
class LayerPrecision:
    """Decision on a layer: "int8" or "fp32", the reason, and the microseconds of its steps in either, where known."""

    layer: Layer
    precision: str = "int8"
    reason: str = "not slower in integers"
    times: Mapping[str, float] = field(default_factory=dict)
    fixed: bool = False  # by the caller

    def reverted(self, reason: str) -> LayerPrecision:
        """Returns the decision for FP32 instead."""
        return replace(self, precision="fp32", reason=reason)

    def describe(self, rest: str) -> dict[str, Any]:
        """Returns plain data for the metadata of an engine. rest: the precision of layers outside INT8."""
        return {
            "layer": self.layer.name,
            "precision": self.precision if self.precision == "int8" else rest,
            "reason": self.reason,
            "macs": self.layer.macs,
            "us": {"int8" if k == "int8" else rest: round(v, 1) for k, v in self.times.items()},
        }


def override(choices: Sequence[LayerPrecision], precision_of: Mapping[str, str]) -> tuple[LayerPrecision, ...]:
    """Fixes the precision of layers whose names match a pattern, by the last match; InputError if none matches."""
    fixed = list(choices)
    for pattern, precision in precision_of.items():
        matches = [
            i for i, c in enumerate(choices) if any(fnmatch.fnmatchcase(name, pattern) for name in c.layer.names)
        ]
        if not matches:
            known = ", ".join(c.layer.name for c in choices[:3])
            raise InputError(
                f"precision_of matches no layer that can use INT8: {pattern!r}; there are {len(choices)} such"
                f" layers, including {known or 'none'}"
            )
        for i in matches:
            fixed[i] = replace(choices[i], precision=precision, reason="as asked for", fixed=True)
    return tuple(fixed)


def choose_by_time(choices: Sequence[LayerPrecision], fp32: Engine, int8: Engine) -> tuple[LayerPrecision, ...]:
    """Reverts layers whose steps took longer in integers, and adds the times.

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

    def timed(choice: LayerPrecision) -> LayerPrecision:
        times = sums.get(clusters.find(_parts([choice.layer.name])[0]), {})
        if choice.precision != "int8" or choice.fixed or not times or not all(t > 0 for t in times.values()):
            return choice
        choice = replace(choice, times=times)
        if times["int8"] <= times["fp32"]:
            return choice
        return choice.reverted(f"slower in integers: {times['int8']:.0f} µs, {times['fp32']:.0f} µs without")

    return tuple(map(timed, choices))


def _parts(layers: Iterable[str]) -> list[str]:
    """Splits the names of merged nodes, which are joined by +."""
    return [part for name in layers for part in name.split("+")]
