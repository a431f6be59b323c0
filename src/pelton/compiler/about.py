"""Metadata of engines: how they were built, and the information of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pelton.passes.pipeline import PIPELINE
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Task
from pelton.tune.search import Choice
from pelton.tune.packed_weights import Packing

from . import half_weights
from .compilation import Compilation


def meta(c: Compilation) -> dict[str, Any]:
    """The metadata of an engine whose kernels are compiled; `checked` is filled in when the engine is checked."""
    assert c.back_end is not None
    options, rules = c.options, c.report.of(dict(PIPELINE))
    return {
        **c.back_end.meta,
        "level": options.level,
        "strict": options.strict,
        "precision": options.precision,
        "report": {"fired": rules.fired(), "refused": rules.rejected()},
        "fusion_refusals": [f"{n.node}: {n.reason}" for n in c.fused.notes],
        "copies": c.lowered.placed.copies,
        "layouts": c.layouts,
        "chains": [*c.fused.chains, *c.lowered.launches],
        "host_steps": host_steps(c.lowered.scheduled),
        "half": half_weights.report(c.lowered.placed, c.lowered.choices, c.target, options.precision_of or {}),
        "weights": _weights([choice.packing for choice in c.lowered.choices.values()]),
        "model": {k: v for k, v in asdict(c.imported.info).items() if k != "path"},
        "forms": c.imported.forms,
        "checked": [],
        "image": options.image,
        "labels": list(options.labels) if options.labels else None,
    }


def host_steps(chosen: Sequence[ScheduledTask]) -> list[str]:
    """The names of the steps that run by reference on the host."""
    return [str(c.info["name"]) for c in chosen if c.kernel is None]


def schedule(task: Task, choice: Choice | None, wave: int) -> ScheduledTask:
    """A task with its kernels, or a host step if it has none."""
    if choice is None:
        op, name = task.node.op.name, task.node.name
        return ScheduledTask(task, None, wave, {"name": name or op, "op": op, "tactic": "host", "layers": [name]})
    return ScheduledTask(
        task, choice.kernel, wave, _info(task, choice), tuple((t.name, k) for t, k in choice.alternatives)
    )


def _info(task: Task, choice: Choice) -> Mapping[str, Any]:
    r = task.region
    name = "+".join(r.layers[:3]) + ("+…" if len(r.layers) > 3 else "") or r.title()
    return {
        "name": name,
        "op": r.title(),
        "tactic": choice.tactic.name,
        "layers": list(r.layers),
        "flops": r.flops(),
        "bytes": choice.kernel.traffic(r, task.layouts),
        "times_ns": dict(sorted(choice.times.items())),
    }


def _weights(packings: Sequence[Packing]) -> dict[str, float]:
    """Bytes of weights in the model and packed; nanoseconds saved by packings that are not the smallest."""
    return {
        "own": sum(p.own for p in packings),
        "packed": sum(p.packed for p in packings),
        "saved_ns": sum(p.saved for p in packings),
    }
