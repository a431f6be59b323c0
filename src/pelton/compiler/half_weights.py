"""Layers with weights in half precision: the caller's choices, and a report of each layer."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from pelton.codegen.c.halves import HalfWeights
from pelton.codegen.template import Tactic, Target, templates
from pelton.errors import InputError
from pelton.ir.types import F32
from pelton.options import Options
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region
from pelton.tuning.candidates import template_rejection
from pelton.tuning.search import Choice, Found

UNREAD = "no kernel for these sizes reads it in halves"


def override(placed: Placed, options: Options) -> Callable[[Task, Found], Found]:
    """Returns a filter of candidates by `precision_of`: layers in fp32 round no weights, others round theirs wherever a
    kernel can. InputError for a pattern that matches no layer with a kernel."""
    precisions = (options.precision_of or {}) if options.precision in ("fp16", "bf16") else {}
    regions = [t.region for t in placed.tasks if isinstance(t.what, Region)]
    for pattern in precisions:
        if not any(_matches(pattern, r) for r in regions):
            known = [name for r in regions if _variants(r, "") for name in r.layers][:3]
            raise InputError(
                f"precision_of matches no layer with a kernel: {pattern!r}; layers that may have weights in"
                f" {options.precision} include {', '.join(known) or 'none'}"
            )

    def among(task: Task, found: Found) -> Found:
        asked = _asked(task.region, precisions)
        if asked is None:
            return found
        rounding = [(t, c) for t, c in found if t.stored(c) is not F32 and not t.is_exact(c)]
        if asked == "fp32":
            return [pair for pair in found if pair not in rounding]
        return rounding or found

    return among


def report(
    placed: Placed, choices: Mapping[int, Choice], target: Target, precision_of: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Reports, for each region whose kernels can read weights in half precision, the chosen type, the reason, and the
    microseconds with weights in fp32 and in halves, where timed."""
    rows = []
    for i, choice in choices.items():
        region = placed.tasks[i].region
        variants = _variants(region, target.isa)
        if not variants:
            continue
        stored = choice.template.stored(choice.tactic).value
        times = _times(choice, target)
        asked = _asked(region, precision_of)
        if asked is not None:
            can = asked == "fp32" or stored != "f32"
            reason = "as asked for" if can else UNREAD
        elif stored != "f32":
            reason = "exact" if choice.template.is_exact(choice.tactic) else "faster"
        elif "half" in times:
            reason = "not faster"
        elif target.half is not F32 and (rejection := variants[0].rounding_rejection(region, target.half)):
            reason = rejection
        else:
            continue
        names = ["+".join(region.layers) or region.title(), stored, reason]
        rows.append(dict(zip(("layer", "weights", "reason"), names)) | {"us": times})
    return rows


def _variants(region: Region, isa: str) -> list[HalfWeights]:
    """Returns the templates that can read this region's weights in half precision."""
    candidates = (t for t in templates(isa).values() if isinstance(t, HalfWeights))
    return [t for t in candidates if template_rejection(t, region) is None]


def _times(choice: Choice, target: Target) -> dict[str, float]:
    """Returns the shortest microseconds of its kernels with weights in fp32 and in half precision."""
    times: dict[str, float] = {}
    for name, ns in choice.times.items():
        tactic = Tactic.parse(name)
        kind = "fp32" if templates(target.isa)[tactic.template].stored(tactic) is F32 else "half"
        times[kind] = min(times.get(kind, float("inf")), round(ns / 1e3, 1))
    return times


def _asked(region: Region, given: Mapping[str, str]) -> str | None:
    """Returns the precision in the last pattern that matches a layer of the region."""
    return next((given[p] for p in reversed(list(given)) if _matches(p, region)), None)


def _matches(pattern: str, region: Region) -> bool:
    """True if a pattern matches a layer, or the region's name in `report`."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in (*region.layers, "+".join(region.layers)))
