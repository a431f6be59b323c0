"""Replicas: contexts of a model's engine on several devices, as `instance_group` of Triton's configurations asks for.

Source: message ModelInstanceGroup. Each of `gpus`, in groups of KIND_GPU and KIND_AUTO, gets `count` contexts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pelton.backends import backend
from pelton.errors import EngineError, InputError

if TYPE_CHECKING:
    from pelton.runtime.engine import Engine

Replicas = dict[int, tuple["Engine", int]]  # device → the engine there, and the number of its contexts


def place(engine: Engine, name: str, config: Any) -> Replicas:
    """Starts an engine on every device that the configuration names; without `instance_group`, on none.

    Raises InputError for groups that contradict themselves, and for devices that do not exist; EngineError if the
    engine does not run on one.
    """
    if not config.instance_group:
        return {}
    replicas: Replicas = {}
    for device, count in _counts(name, config, engine.plain.target).items():
        one = copy.copy(engine)  # not started yet, of the same mapped weights
        try:
            replicas[device] = one.start(device), count
        except EngineError as e:
            raise EngineError(f"model {name!r}, instance_group on device {device}: {e}") from None
    return replicas


def _counts(name: str, config: Any, target: Mapping[str, Any]) -> dict[int, int]:
    """Returns device → contexts there. Groups without `gpus` are on device 0, those of KIND_GPU on all."""
    counts: dict[int, int] = {}
    for group in config.instance_group:
        kind, field = type(group).Kind.Name(group.kind), f"model {name!r}: instance_group.gpus"
        listed = list(group.gpus)
        if group.count < 0:
            raise InputError(f"model {name!r}: instance_group.count is 1 or more, got {group.count}")
        if listed and kind not in ("KIND_GPU", "KIND_AUTO"):
            raise InputError(f"{field} is {listed}, but the group's kind is {kind}: make it KIND_GPU, or remove gpus")
        present = backend(target).devices() if listed or kind == "KIND_GPU" else 0
        absent = [device for device in listed if not 0 <= device < present]
        if absent:
            known = ", ".join(map(str, range(present)))
            remedy = f"choose from {known}" if present else "remove gpus: the engine is for CPUs"
            raise InputError(f"{field} is {listed}, but there is no device {absent[0]}; {remedy}")
        for device in listed or range(max(1, present)):
            counts[device] = counts.get(device, 0) + (group.count or 1)
    return counts
