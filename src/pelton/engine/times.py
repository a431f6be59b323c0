"""Times of an engine's steps, from the engine's own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from pelton.record import record

from .plan import Step

FLOPS, BYTES = 50, 20  # maximum in a nanosecond


@record(frozen=True)
class StepTime:
    """Nanoseconds and their source: "measured", "tuned" (when the engine was built), "estimated" (from operations and
    bytes), or "unknown", with 0 nanoseconds."""

    ns: float
    source: str


def recorded_time(step: Step) -> StepTime:
    """Returns the time of a step whose numbers are resolved: as the build or `pelton tune` timed its tactic, else an
    estimate: that of the build, or the longer of `FLOPS` operations and `BYTES` bytes in a nanosecond."""
    info = step.info
    timed = times_of(info).get(str(info.get("tactic")))
    if timed is not None:
        return StepTime(timed, "tuned")
    if is_number(info.get("estimate_us")):
        return StepTime(1e3 * info["estimate_us"], "estimated")
    flops, moved = info.get("flops"), info.get("bytes")
    if not step.host and is_number(flops) and is_number(moved):
        return StepTime(max(flops / FLOPS, moved / BYTES), "estimated")
    return StepTime(0.0, "unknown")


def times_of(info: Mapping[str, Any]) -> dict[str, float]:
    """Returns tactic → nanoseconds, of all that were timed for a step, the fastest first."""
    times = info.get("times_ns")
    timed = {str(k): float(v) for k, v in times.items() if is_number(v)} if isinstance(times, Mapping) else {}
    return dict(sorted(timed.items(), key=lambda item: item[1]))


def is_number(x: object) -> TypeGuard[float]:
    """Returns True if this is a finite number that is not negative."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x < float("inf")


def shares(times: Sequence[StepTime]) -> list[float]:
    """Returns each time as a share of their sum."""
    total = sum(t.ns for t in times) or 1.0
    return [t.ns / total for t in times]
