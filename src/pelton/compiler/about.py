"""Metadata of engines: how they were built, and the information of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pelton import plugins
from pelton.codegen.template import Target
from pelton.ir.dims import is_known
from pelton.passes.pipeline import PIPELINE
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region, cut
from pelton.tuning.candidates import why_no_kernel
from pelton.tuning.search import Choice
from pelton.tuning.packed_weights import Packing

from . import half_weights
from .compilation import Compilation
from .in_place import overwritten


def meta(c: Compilation) -> dict[str, Any]:
    """Returns the metadata of an engine with compiled kernels; the check of the engine fills in `checked`."""
    assert c.back_end is not None
    options, rules = c.options, c.report.of(dict(PIPELINE))
    return {
        **c.back_end.meta,
        "level": options.level,
        "strict": options.strict,
        "recorded": options.load_tactics is not None,
        "precision": options.precision,
        "report": {"fired": rules.fired(), "refused": rules.rejected()},
        "fusion_refusals": [f"{n.node}: {n.reason}" for n in c.fused.notes],
        "copies": list(c.lowered.placed.copies.values()),
        "layouts": c.layouts,
        "chains": [*c.fused.chains, *c.lowered.launches],
        "host_steps": host_steps(c.lowered.scheduled),
        "half": half_weights.report(c.lowered.placed, c.lowered.choices, c.target, options.precision_of or {}),
        "weights": _weights([choice.packing for choice in c.lowered.choices.values()]),
        "model": c.imported.info.record(),
        "plugins": plugins.fingerprints(c.imported.graph),
        "forms": c.imported.forms,
        "checked": [],
        "image": options.image,
        "labels": list(options.labels) if options.labels else None,
    }


def host_steps(chosen: Sequence[ScheduledTask]) -> list[str]:
    """Returns the names of the host steps."""
    return [str(c.info["name"]) for c in chosen if c.kernel is None]


def schedule(task: Task, choice: Choice | None, wave: int, target: Target, placed: Placed) -> ScheduledTask:
    """Schedules a task with its kernels, or as a host step if it has none. Steps record the reason for a copy, and why
    no kernel takes a host step."""
    reasons = [placed.copies[v] for v in task.writes if v in placed.copies]
    if choice is None and (why_not := why_no_kernel(cut(placed.graph, (task.node,), (task.node,)), target.isa)):
        reasons.append(why_not)
    why = {"reason": "; ".join(reasons)} if reasons else {}
    if choice is None:
        op, name = task.node.op.name, task.node.name
        host_info = {"name": name or op, "op": op, "tactic": "host", "layers": name.split("+"), **why}
        return ScheduledTask(task, None, wave, host_info)
    info = {**_info(task, choice, target), **why}
    return ScheduledTask(task, choice.kernel, wave, info, tuple((t.name, k) for t, k in choice.alternatives))


def _info(task: Task, choice: Choice, target: Target) -> Mapping[str, Any]:
    r = task.region
    name = "+".join(r.layers[:3]) + ("+…" if len(r.layers) > 3 else "") or r.title()
    info = {
        "name": name,
        "op": r.title(),
        "tactic": choice.tactic.name,
        "layers": list(r.layers),
        "flops": r.flops(),
        **({"rounding": rounding} if (rounding := choice.template.rounding(choice.tactic)) else {}),
        **({"sparsity": sparsity} if (sparsity := choice.template.sparsity(choice.tactic)) else {}),
        "bytes": choice.kernel.traffic(r, task.layouts),
        "times_ns": dict(sorted(choice.times.items())),
    }
    if not target.isa.startswith("sm_") and target.level.small:
        info["in_place"] = overwritten(task, choice.kernel, choice.template)
    if target.isa.startswith("sm_") and not choice.times:
        info["estimate_us"] = _estimate(info, choice, r, target)
    return info


def _estimate(info: Mapping[str, Any], choice: Choice, region: Region, target: Target) -> float | None:
    """Estimates the microseconds of a GPU kernel by a model; None for dynamic sizes."""
    from pelton.codegen.triton import cost  # only GPU engines need it

    if not is_known(info["flops"], info["bytes"]):
        return None
    params = dict(choice.tactic.params)
    size = region.anchor.inputs[0].type.dtype.size if region.anchor is not None and "PRECISION" in params else 0
    estimate = cost.microseconds(int(info["flops"]), int(info["bytes"]), size, params.get("PRECISION", 0), target)
    return round(estimate, 3)


def _weights(packings: Sequence[Packing]) -> dict[str, float]:
    """Sums bytes of weights in the model and packed, and nanoseconds saved by packings other than the smallest."""
    return {
        "own": sum(p.own for p in packings),
        "packed": sum(p.packed for p in packings),
        "saved_ns": sum(p.saved for p in packings),
    }
